"""The memory plan: its bytes are those of real models, and its phases follow the config."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Qwen2Config

from burnish.config import load
from burnish.config.adapters import adapter_of
from burnish.config.optim import OptimConfig
from burnish.doctor.activations import MicroBatch, forward_temporaries
from burnish.doctor.engine import checksum_words, engine_plan
from burnish.doctor.head import HeadPlan
from burnish.doctor.memory import Phase, Plan, Shapes, generate_plan, sft_plan, train_plan, update_peak
from burnish.doctor.roles import Shards, adapter_parameters, four_bit_bytes, trained_role, weight_bytes
from burnish.doctor.shapes import find_shape, shape_of
from burnish.models.fourbit import four_bits, is_packed
from burnish.models.fused.fp8 import FP8, fp8_layers, torch_product, use_fp8_layers
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.lora import add_adapters
from burnish.models.recompute import enable_recompute
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.graph_decode import GraphDecoder
from burnish.rollout.engines.builtin.kv_cache import CacheShape
from burnish.rollout.engines.digests import sums_of
from burnish.sizing import CACHE_BLOCK, CPU_PREFILL_TOKENS, GIB, LOGIT_CHUNK_BYTES, max_chunk_rows
from burnish.training.ema import MovingAverage
from burnish.training.optim import Optimizer

from ..conftest import SIZES
from .meter import Small

MODEL = "actor_rollout_ref.model"
ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
GRPO = ["algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=8"]


def bytes_of(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def role_of(small: Small, *overrides: str, head: bool = True):
    cfg = load([f"{MODEL}.path=m", *overrides], check=False).cfg
    model, fsdp = cfg.actor_rollout_ref.model, cfg.actor_rollout_ref.actor.fsdp_config
    # Measured on a CPU but planned for a GPU, where the memory keys have an effect.
    return trained_role(
        "policy",
        small.shape,
        model,
        fsdp,
        Shards(),
        key=MODEL,
        on_cpu=False,
        head=head,
        logits=HeadPlan("cpu"),
        ema=True,
    )


@pytest.mark.parametrize(("form", "dtype"), [("fp32", "fp32"), ("bf16", "bf16")])
def test_weights_gradients_and_optimizer_are_exact(form, dtype):
    small = Small("qwen2", form)
    role = role_of(small, f"{ACTOR}.fsdp_config.model_dtype={dtype}")
    optimizer = Optimizer(small.model, OptimConfig(), total_steps=1, updates_per_step=1)
    small.backend.log_probs(small.rows, 1.0, False)[0].sum().backward()
    assert role.weights == bytes_of(small.model.parameters())
    assert role.gradients == bytes_of(p.grad for p in small.model.parameters())
    assert role.optimizer == bytes_of(optimizer._state())
    assert role.ema == bytes_of(MovingAverage(small.model, 0.9).weights.values())


@pytest.mark.parametrize("targets", ["all-linear", "[q_proj,v_proj]"])
def test_adapters_are_exact(targets):
    small = Small("qwen2")
    cfg = load([f"{MODEL}.path=m", f"{MODEL}.lora_rank=4", f"{MODEL}.target_modules={targets}"], check=False).cfg
    settings = adapter_of(cfg.actor_rollout_ref.model, MODEL)
    add_adapters(small.model, settings, dtype=torch.float32, heads=(), seed=0)
    trained = [p for p in small.model.parameters() if p.requires_grad]
    role = role_of(small, f"{MODEL}.lora_rank=4", f"{MODEL}.target_modules={targets}")
    assert adapter_parameters(small.shape, settings) == (sum(p.numel() for p in trained), len(trained))
    assert role.gradients == bytes_of(trained)
    assert role.weights == bytes_of(small.model.parameters())


def test_four_bit_weights_are_exact(tmp_path):
    Small("qwen2", hidden_size=64, head_dim=16, intermediate_size=128).model.save_pretrained(tmp_path)
    quantized = load_causal_lm(
        ModelSource(str(tmp_path)),
        None,
        torch.float32,
        quantization_config=four_bits(torch.float32, ("lm_head",), MODEL),
        device_map={"": "cpu"},
    )
    shape = find_shape(str(tmp_path)).shape
    total = 0
    for parameter in quantized.parameters():
        total += parameter.numel() * parameter.element_size()
        if is_packed(parameter):
            state = parameter.quant_state
            total += bytes_of([state.absmax, state.state2.absmax])
    assert weight_bytes(shape, 4, shape.parameters, four_bit=True) == total
    assert four_bit_bytes(64 * 256) == 64 * 128 + 256 + 4


def test_the_cache_has_the_size_of_the_engines_cache():
    small = Small("qwen2")
    cfg = load([f"{MODEL}.path=m", f"{ROLLOUT}.dtype=bf16"], check=False).cfg
    plan = engine_plan(cfg.actor_rollout_ref.rollout, small.shape, 1, on_cpu=True)
    real = CacheShape(small.shape.layers, small.shape.kv_heads, small.shape.head_dim, torch.bfloat16)
    assert plan.token_bytes * CACHE_BLOCK == real.block_bytes
    assert plan.sequence_bytes == 4 * real.block_bytes  # 512 + 512 tokens
    in_8_bits = load([f"{MODEL}.path=m", f"{ROLLOUT}.engine_kwargs.builtin.kv_cache_dtype=fp8"], check=False).cfg
    rollout = in_8_bits.actor_rollout_ref.rollout
    assert 2 * engine_plan(rollout, small.shape, 1, on_cpu=False).token_bytes == plan.token_bytes


@pytest.mark.parametrize("by_block", [True, False])
def test_weights_of_8_bits_are_planned(by_block):
    config = Qwen2Config(**{**SIZES, "hidden_size": 256, "intermediate_size": 700})
    model = AutoModelForCausalLM.from_config(config).bfloat16().requires_grad_(False)
    shape, key = shape_of(config.to_dict()), f"{ROLLOUT}.use_block_quant_rollout={str(by_block).lower()}"
    settings = [f"{MODEL}.path=m", f"{ROLLOUT}.quantization=fp8", key, f"{ROLLOUT}.dtype=bf16"]
    plans = [
        engine_plan(load(part, check=False).cfg.actor_rollout_ref.rollout, shape, 1, on_cpu=True)
        for part in (settings, [*settings, f"{ROLLOUT}.quantization=null"])
    ]
    assert plans[1].weights == bytes_of(model.parameters()) and plans[1].rounding == 0
    use_fp8_layers(model, by_block, torch_product(F.linear), "k")
    held = [(layer.weight, layer.scales, layer.scale_rows) for layer in fp8_layers(model).values()]
    rest = [parameter for parameter in model.parameters() if parameter.dtype != FP8]
    assert plans[0].weights == bytes_of(rest) + sum(map(bytes_of, held)) < 0.6 * plans[1].weights
    assert plans[0].rounding == 6 * 256 * 700
    assert plans[0].num_checksum_words < plans[1].num_checksum_words


def test_the_builtin_engine_rounds_no_experts():
    saved, mixture = {}, find_shape("Qwen/Qwen3-30B-A3B").shape
    for name in ("builtin", "vllm"):
        settings = [f"{MODEL}.path=m", f"{ROLLOUT}.name={name}"]
        cfgs = [load(part, check=False).cfg for part in (settings, [*settings, f"{ROLLOUT}.quantization=fp8"])]
        whole, rounded = (engine_plan(c.actor_rollout_ref.rollout, mixture, 1, on_cpu=False).weights for c in cfgs)
        saved[name] = (whole - rounded) / whole
    assert 0 < saved["builtin"] < 0.1 and 0.4 < saved["vllm"] < 0.5


def test_a_prefill_on_a_cpu_is_planned_with_the_engines_limit():
    """On a CPU the engine splits a prefill into passes of 2,048 tokens, whatever max_num_batched_tokens is."""
    small = Small("qwen2")

    def planned(num_tokens, on_cpu):
        cfg = load([f"{MODEL}.path=m", f"{ROLLOUT}.max_num_batched_tokens={num_tokens}"], check=False).cfg
        return engine_plan(cfg.actor_rollout_ref.rollout, small.shape, 1, on_cpu=on_cpu).activations

    assert planned(8192, on_cpu=True) == planned(CPU_PREFILL_TOKENS, on_cpu=True) > planned(1024, on_cpu=True)
    assert planned(8192, on_cpu=False) > planned(CPU_PREFILL_TOKENS, on_cpu=False)


def test_memory_of_the_device_loop_is_that_of_the_engine(tmp_path):
    """The device loop runs on a CPU here, where it allocates the same memory."""
    small = Small("qwen2")
    small.model.save_pretrained(tmp_path)
    cfg = load([f"{MODEL}.path=m", f"{ROLLOUT}.dtype=fp32", f"{ROLLOUT}.max_num_seqs=5"], check=False).cfg
    planned = engine_plan(cfg.actor_rollout_ref.rollout, small.shape, 1, on_cpu=False)
    options = EngineOptions(
        *(ModelSource(str(tmp_path)), torch.float32, torch.device("cpu"), (0,)), max_model_len=1024, max_num_seqs=5
    )
    decoder = GraphDecoder(options)
    decoder.open_cache()
    assert planned.cache(1 << 40, 1 << 40)[0] == decoder.blocks.pool.num_blocks * decoder.runner.shape.block_bytes
    batch = decoder.batch
    mirrors = [batch.ints, batch.floats, batch.tables, batch.tokens, batch.log_probs, batch.end_ids]
    assert planned.logits_buffer == bytes_of([decoder.memory.logits]) == 5 * small.shape.vocab * 4
    pool = forward_temporaries(small.shape, small.itemsize, MicroBatch.of([1] * 5, 0))
    assert planned.decode_state == bytes_of(mirror.device for mirror in mirrors) + pool
    decoder.close_cache()


def test_weight_checksums_are_planned():
    small = Small("qwen2")
    sums = [sums_of(parameter) for _, parameter in small.model.named_parameters(remove_duplicate=False)]
    real = sum(len(part) for parts in sums for part in parts)
    assert checksum_words(small.shape, 4) == pytest.approx(real, rel=0.15)
    off = phases(plan(*GRPO, f"{ROLLOUT}.verify_weights=false"))["weight sync"]
    assert (
        part(off, "engine", "weight comparison")
        == 0
        < part(phases(plan(*GRPO))["weight sync"], "engine", "weight comparison")
    )


def test_cuda_graphs_stay_during_updates():
    asleep = phases(plan(*GRPO))
    mlp = 1024 * 4864 * 2  # an MLP activation of the largest batch
    assert part(asleep["update actor"], "engine", "CUDA graphs") > mlp
    eager = phases(plan(*GRPO, f"{ROLLOUT}.enforce_eager=true"))
    assert part(eager["update actor"], "engine", "CUDA graphs") < GIB // 1024
    awake = phases(plan(*GRPO, f"{ROLLOUT}.free_cache_engine=false"))
    for name in ("KV cache", "logits buffer"):
        assert part(asleep["update actor"], "engine", name) == 0
        assert part(awake["update actor"], "engine", name) == part(awake["rollout"], "engine", name) > 0


def test_the_logits_buffer_has_a_limit():
    def buffer(rows: int) -> int:
        return part(phases(plan(*GRPO, f"{ROLLOUT}.max_num_seqs={rows}"))["rollout"], "engine", "logits buffer")

    vocabulary = find_shape("qwen2.5-7b").shape.vocab
    assert buffer(1024) == 1024 * vocabulary * 2
    assert buffer(16384) == max_chunk_rows(vocabulary, 2, "cuda") * vocabulary * 2 <= LOGIT_CHUNK_BYTES["cuda"]


def test_compiled_layers_follow_the_config():
    def activations(*overrides: str, model: str = "qwen2.5-0.5b") -> int:
        keep = f"{MODEL}.enable_gradient_checkpointing=false"
        return part(phases(plan(*GRPO, keep, *overrides, model=model))["update actor"], "policy", "activations")

    off = f"{ACTOR}.use_torch_compile=false"
    compiled, plain = activations(), activations(off)
    assert compiled < 0.7 * plain
    assert activations(f"{MODEL}.use_liger=true") == plain
    two = "trainer.n_gpus_per_node=2"
    assert activations(two) == activations(two, off)
    mixture = "qwen3-30b-a3b"
    assert activations(model=mixture) == activations(off, model=mixture)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
@pytest.mark.parametrize("vocab", [16, 3000])
def test_the_peak_of_an_update_is_near_the_plan(form, recompute, vocab):
    """With temporaries: measured over a whole forward and backward pass."""
    small = Small("qwen2", form, (150, 150), vocab_size=vocab, hidden_size=64, head_dim=16, intermediate_size=256)
    if recompute:
        enable_recompute(small.model, None, None, "model")
    weights = {"fp32": "fp32", "mixed": "fp32", "bf16": "bf16"}[form]
    compute = {"fp32": "fp32", "mixed": "bf16", "bf16": "bf16"}[form]
    fsdp = f"{ACTOR}.fsdp_config"
    role = role_of(
        small,
        f"{fsdp}.model_dtype={weights}",
        f"{fsdp}.mixed_precision.param_dtype={compute}",
        f"{MODEL}.enable_gradient_checkpointing={recompute}",
    )
    assert role.itemsize == small.itemsize
    assert sum(update_peak(role, small.micro_batch).values()) == pytest.approx(small.peak_of_update(), rel=0.12)


def plan(*overrides: str, model: str = "qwen2.5-7b", capacity: int = 80, **shapes) -> Plan:
    cfg = load([f"{MODEL}.path={model}", *overrides], check=False).cfg
    return train_plan(cfg, Shapes(find_shape(model).shape, **shapes), capacity * GIB)


def part(phase: Phase, role: str, name: str) -> int:
    return sum(part.bytes for part in phase.parts if (part.role, part.name) == (role, name))


def phases(plan: Plan) -> dict[str, Phase]:
    return {phase.name: phase for phase in plan.phases}


def test_phases_follow_the_roles():
    assert list(phases(plan(*GRPO))) == ["rollout", "old log-probs", "update actor", "weight sync"]
    reward_model = find_shape("llama-3-8b").shape
    whole = plan(f"{ACTOR}.use_kl_loss=true", "reward_model.enable=true", reward_model=reward_model)
    assert list(phases(whole)) == [
        *("rollout", "reward model", "old log-probs", "reference", "values", "update critic", "update actor"),
        "weight sync",
    ]
    num_parameters = reward_model.backbone + reward_model.hidden + 1
    assert part(phases(whole)["reward model"], "reward model", "weights") == 2 * num_parameters


def test_offloading_frees_memory_in_other_phases():
    before = phases(plan(*GRPO))
    fsdp = f"{ACTOR}.fsdp_config"
    after = phases(plan(*GRPO, f"{fsdp}.param_offload=true", f"{fsdp}.optimizer_offload=true"))
    weights, state = part(before["rollout"], "policy", "weights"), part(before["rollout"], "policy", "optimizer")
    assert part(after["rollout"], "policy", "weights") == part(after["rollout"], "policy", "optimizer") == 0
    assert part(after["update actor"], "policy", "optimizer") == state
    assert part(after["weight sync"], "policy", "weights") == weights
    on_cpu = phases(plan(*GRPO, f"{fsdp}.offload_policy=true"))
    assert part(on_cpu["update actor"], "policy", "optimizer") == 0


def test_adapters_share_the_reference_and_four_bits_shrink_the_weights():
    kl = f"{ACTOR}.use_kl_loss=true"
    full, lora = phases(plan(*GRPO, kl)), phases(plan(*GRPO, kl, f"{MODEL}.lora_rank=16"))
    assert part(full["rollout"], "reference", "weights") > 0
    assert part(lora["rollout"], "reference", "weights") == 0
    assert "reference" in lora
    assert part(lora["update actor"], "policy", "gradients") < part(full["update actor"], "policy", "gradients") / 50
    four = phases(plan(*GRPO, kl, f"{MODEL}.lora_rank=16", f"{MODEL}.load_in_4bit=true"))
    assert part(four["rollout"], "policy", "weights") < part(lora["rollout"], "policy", "weights") / 3


def test_ranks_divide_and_gather():
    one, eight = phases(plan(*GRPO)), phases(plan(*GRPO, "trainer.n_gpus_per_node=8"))
    for name in ("weights", "gradients"):
        assert part(eight["update actor"], "policy", name) == part(one["update actor"], "policy", name) // 8
    assert part(eight["update actor"], "policy", "gathered weights") > 0
    assert part(one["update actor"], "policy", "gathered weights") == 0
    assert part(eight["rollout"], "engine", "weights") == part(one["rollout"], "engine", "weights")
    spread = [f"{ROLLOUT}.tensor_model_parallel_size=4", f"{ROLLOUT}.name=vllm"]
    for more in ([], ["trainer.n_gpus_per_node=8"]):
        sharded = phases(plan(*GRPO, *spread, *more))
        assert part(sharded["rollout"], "engine", "weights") == part(one["rollout"], "engine", "weights") // 4


def test_tensor_ranks_of_the_built_in_engine_divide_its_layers():
    spread = [f"{ROLLOUT}.tensor_model_parallel_size=4", "trainer.n_gpus_per_node=8"]
    whole, shared = phases(plan(*GRPO, spread[1]))["rollout"], phases(plan(*GRPO, *spread))["rollout"]
    shape = find_shape("qwen2.5-7b").shape
    saved = part(whole, "engine", "weights") - part(shared, "engine", "weights")
    assert saved == 2 * shape.layers * shape.layer * 3 // 4


def test_tensor_ranks_divide_the_layers_only():
    eight = "trainer.n_gpus_per_node=8"
    sizes = [f"{ACTOR}.strategy=megatron", f"{ACTOR}.megatron.tensor_model_parallel_size=2"]
    tensor = phases(plan(*GRPO, *sizes, eight))["update actor"]
    plain = phases(plan(*GRPO, eight))["update actor"]
    shape = find_shape("qwen2.5-7b").shape
    inside = shape.layers * shape.layer
    outside = shape.parameters - inside
    assert part(tensor, "policy", "weights") == pytest.approx(4 * (inside / 8 + outside / 4), rel=1e-6)
    assert part(tensor, "policy", "optimizer") == pytest.approx(8 * (inside / 8 + outside / 4), rel=1e-3)
    saved = part(plain, "policy", "gathered weights") - part(tensor, "policy", "gathered weights")
    assert saved == pytest.approx(2 * shape.layer, rel=1e-6)


def test_checkpointing_and_micro_batches_change_the_activations():
    def activations(*overrides: str) -> int:
        phase = phases(plan(*GRPO, *overrides))["update actor"]
        return sum(part.bytes for part in phase.parts if part.name in ("activations", "weight copies"))

    rows = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    assert activations(f"{rows}=8") < activations(f"{rows}=32")
    assert activations(f"{rows}=32") < activations(f"{rows}=32", f"{MODEL}.enable_gradient_checkpointing=false") / 3


def test_gradients_of_a_single_micro_batch_replace_activations():
    def update(micro: int, *more: str) -> Phase:
        batch = ("data.train_batch_size=4", f"{ACTOR}.ppo_mini_batch_size=4")
        overrides = (*GRPO, *batch, f"{ACTOR}.ppo_micro_batch_size_per_gpu={micro}", *more)
        return phases(plan(*overrides, model="qwen2.5-0.5b"))["update actor"]

    def gradients(phase: Phase) -> int:
        return part(phase, "policy", "gradients")

    assert gradients(update(16)) > 0 == gradients(update(32))
    short = ("data.max_prompt_length=8", "data.max_response_length=8")
    # With few activations the peak is at the end of the backward pass, where all gradients exist.
    assert gradients(update(32, *short)) == gradients(update(16, *short)) > 0
    assert update(32, *short).bytes < update(32).bytes


def test_external_engines_reserve_a_share_of_the_gpu():
    builtin, vllm = (
        phases(plan(*GRPO, f"{ROLLOUT}.name={name}", model="qwen2.5-0.5b")) for name in ("builtin", "vllm")
    )
    reserved = sum(part.bytes for part in vllm["rollout"].parts if part.role == "engine")
    assert reserved == pytest.approx(0.5 * 80 * GIB, rel=1e-6)
    assert part(vllm["update actor"], "engine", "weights") == 0
    assert part(builtin["update actor"], "engine", "weights") > 0
    assert "all 1,024 sequences" in builtin["rollout"].note


def test_phases_that_do_not_fit_are_named():
    assert [phase.name for phase in plan(*GRPO, model="qwen2.5-0.5b").too_big] == []
    too_big = plan(*GRPO).too_big
    assert "update actor" in {phase.name for phase in too_big}
    assert plan(*GRPO).to_json()["fits"] is False


def test_other_jobs_have_plans():
    shape = find_shape("qwen2.5-0.5b").shape
    sft = sft_plan(load(["model.partial_pretrain=m"], job="sft", check=False).cfg, shape, 80 * GIB)
    assert [phase.name for phase in sft.phases] == ["update"]
    assert part(sft.phases[0], "model", "gradients") == 4 * shape.parameters
    generate = generate_plan(load(["model.path=m"], job="generate", check=False).cfg, shape, 80 * GIB)
    assert [phase.name for phase in generate.phases] == ["rollout"]
