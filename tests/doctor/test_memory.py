"""The memory plan: its bytes are those of real models, and its phases follow the keys."""

from __future__ import annotations

import pytest
import torch

from burnish.config import load
from burnish.config.adapters import adapter_of
from burnish.config.optim import OptimConfig
from burnish.doctor import engine
from burnish.doctor.activations import Pass, forward_space
from burnish.doctor.arithmetic import CPU_TOKENS
from burnish.doctor.engine import CACHE_BLOCK, engine_plan
from burnish.doctor.head import HeadPlan
from burnish.doctor.memory import GIB, Phase, Plan, Shapes, generate_plan, sft_plan, train_plan, worst_moment
from burnish.doctor.roles import Spread, adapter_parameters, four_bit_bytes, taught, weight_bytes
from burnish.doctor.shapes import find_shape
from burnish.models import wide
from burnish.models.chunks import BUDGET, chunk_rows
from burnish.models.fourbit import four_bits, is_packed
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.lora import add_adapters
from burnish.models.recompute import enable_recompute
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin import decode_plan, graph_decode
from burnish.rollout.engines.builtin.decode_plan import DecodePlan
from burnish.rollout.engines.builtin.graph_decode import GraphDecoder
from burnish.rollout.engines.builtin.kv_cache import BLOCK_SIZE, CacheShape
from burnish.rollout.engines.digests import sums_of
from burnish.training import packing
from burnish.training.ema import MovingAverage
from burnish.training.optim import Optimizer

from .meter import Small

MODEL = "actor_rollout_ref.model"
ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
GRPO = ["algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=8"]


def bytes_of(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def role_of(small: Small, *overrides: str, head: bool = True):
    cfg = load([f"{MODEL}.path=m", *overrides], check=False).cfg
    model, fsdp = cfg.actor_rollout_ref.model, cfg.actor_rollout_ref.actor.fsdp_config
    # Counted on a CPU, but planned as for a GPU, where keys about memory act.
    return taught(
        "policy",
        small.shape,
        model,
        fsdp,
        Spread(),
        key=MODEL,
        on_cpu=False,
        head=head,
        logits=HeadPlan("cpu"),
        average=True,
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
    assert role.average == bytes_of(MovingAverage(small.model, 0.9).weights.values())


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
    quantised = load_causal_lm(
        ModelSource(str(tmp_path)),
        None,
        torch.float32,
        quantization_config=four_bits(torch.float32, ("lm_head",), MODEL),
        device_map={"": "cpu"},
    )
    found = find_shape(str(tmp_path)).shape
    whole = 0
    for parameter in quantised.parameters():
        whole += parameter.numel() * parameter.element_size()
        if is_packed(parameter):
            state = parameter.quant_state
            whole += bytes_of([state.absmax, state.state2.absmax])
    assert weight_bytes(found, 4, found.parameters, four_bit=True) == whole
    assert four_bit_bytes(64 * 256) == 64 * 128 + 256 + 4


def test_the_cache_is_that_of_the_engine():
    small = Small("qwen2")
    cfg = load([f"{MODEL}.path=m", f"{ROLLOUT}.dtype=bf16"], check=False).cfg
    plan = engine_plan(cfg.actor_rollout_ref.rollout, small.shape, 1, on_cpu=True)
    real = CacheShape(small.shape.layers, small.shape.kv_heads, small.shape.head_dim, torch.bfloat16)
    assert CACHE_BLOCK == BLOCK_SIZE
    assert plan.token * BLOCK_SIZE == real.block_bytes
    assert plan.sequence == 4 * real.block_bytes  # 512 + 512 tokens
    assert CPU_TOKENS == packing.CPU_TOKENS


def test_the_cache_and_the_rows_of_windows_are_those_of_the_engine(tmp_path):
    """The engine with a GPU's loop, on a CPU, where it takes the same memory."""
    small = Small("qwen2")
    small.model.save_pretrained(tmp_path)
    cfg = load([f"{MODEL}.path=m", f"{ROLLOUT}.dtype=fp32", f"{ROLLOUT}.max_num_seqs=5"], check=False).cfg
    found = engine_plan(cfg.actor_rollout_ref.rollout, small.shape, 1, on_cpu=False)
    options = EngineOptions(
        *(ModelSource(str(tmp_path)), torch.float32, torch.device("cpu"), (0,)), max_model_len=1024, max_num_seqs=5
    )
    decoder = GraphDecoder(options)
    decoder.open_cache()
    assert found.cache(1 << 40, 1 << 40)[0] == decoder.blocks.pool.num_blocks * decoder.runner.shape.block_bytes
    batch = decoder.batch
    mirrors = [batch.ints, batch.floats, batch.tables, batch.tokens, batch.log_probs, batch.end_ids]
    assert found.room == bytes_of([decoder.memory.logits]) == 5 * small.shape.vocab * 4
    pool = forward_space(small.shape, small.width, Pass.of([1] * 5, 0))
    assert found.lasting == bytes_of(mirror.device for mirror in mirrors) + pool
    decoder.close_cache()
    assert (DecodePlan.block_size, DecodePlan.sync_interval) == (engine.LOOP_BLOCK, engine.LOOK_IN)
    assert engine.GRAPH_SAFE == decode_plan.GRAPH_SAFE and engine.WIDE_FAMILIES == wide.WIDE_FAMILIES
    assert engine.FIRST_AT_ONCE == graph_decode.FIRST_AT_ONCE


def test_digests_of_weights_are_planned():
    small = Small("qwen2")
    sums = [sums_of(parameter) for _, parameter in small.model.named_parameters(remove_duplicate=False)]
    real = sum(len(part) for parts in sums for part in parts)
    assert engine.digest_entries(small.shape, 4) == pytest.approx(real, rel=0.15)
    off = phases(plan(*GRPO, f"{ROLLOUT}.verify_weights=false"))["weight sync"]
    assert (
        part(off, "engine", "sums of weights")
        == 0
        < part(phases(plan(*GRPO))["weight sync"], "engine", "sums of weights")
    )


def test_graphs_stay_while_the_policy_is_taught():
    found = phases(plan(*GRPO))
    assert part(found["update actor"], "engine", "CUDA graphs") > 1024 * 4864 * 2  # what the largest batch is inside
    eager = phases(plan(*GRPO, f"{ROLLOUT}.enforce_eager=true"))
    assert part(eager["update actor"], "engine", "CUDA graphs") < GIB // 1024
    awake = phases(plan(*GRPO, f"{ROLLOUT}.free_cache_engine=false"))
    for name in ("KV cache", "room for logits"):
        assert part(found["update actor"], "engine", name) == 0
        assert part(awake["update actor"], "engine", name) == part(awake["rollout"], "engine", name) > 0


def test_room_for_logits_has_a_limit():
    def room(rows: int) -> int:
        return part(phases(plan(*GRPO, f"{ROLLOUT}.max_num_seqs={rows}"))["rollout"], "engine", "room for logits")

    vocabulary = find_shape("qwen2.5-7b").shape.vocab
    assert room(1024) == 1024 * vocabulary * 2
    assert room(16384) == chunk_rows(vocabulary, 2, "cuda") * vocabulary * 2 <= BUDGET["cuda"]


def test_compiled_layers_follow_the_keys():
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
    """Also what is alive for a moment: counted over a whole forward and backward pass."""
    small = Small("qwen2", form, (150, 150), vocab_size=vocab, hidden_size=64, head_dim=16, intermediate_size=256)
    if recompute:
        enable_recompute(small.model, None, None, "model")
    kept = {"fp32": "fp32", "mixed": "fp32", "bf16": "bf16"}[form]
    computed = {"fp32": "fp32", "mixed": "bf16", "bf16": "bf16"}[form]
    fsdp = f"{ACTOR}.fsdp_config"
    role = role_of(
        small,
        f"{fsdp}.model_dtype={kept}",
        f"{fsdp}.mixed_precision.param_dtype={computed}",
        f"{MODEL}.enable_gradient_checkpointing={recompute}",
    )
    assert role.width == small.width
    assert sum(worst_moment(role, small.passed).values()) == pytest.approx(small.peak_of_update(), rel=0.12)


def plan(*overrides: str, model: str = "qwen2.5-7b", capacity: int = 80, **shapes) -> Plan:
    cfg = load([f"{MODEL}.path={model}", *overrides], check=False).cfg
    return train_plan(cfg, Shapes(find_shape(model).shape, **shapes), capacity * GIB)


def part(phase: Phase, role: str, name: str) -> int:
    return sum(part.bytes for part in phase.parts if (part.role, part.name) == (role, name))


def phases(plan: Plan) -> dict[str, Phase]:
    return {phase.name: phase for phase in plan.phases}


def test_phases_follow_the_roles():
    assert list(phases(plan(*GRPO))) == ["rollout", "old log-probs", "update actor", "weight sync"]
    judge = find_shape("llama-3-8b").shape
    whole = plan(f"{ACTOR}.use_kl_loss=true", "reward_model.enable=true", reward_model=judge)
    assert list(phases(whole)) == [
        *("rollout", "reward model", "old log-probs", "reference", "values", "update critic", "update actor"),
        "weight sync",
    ]
    assert part(phases(whole)["reward model"], "reward model", "weights") == 2 * (judge.backbone + judge.hidden + 1)


def test_offloading_empties_the_other_phases():
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
    for more, share in (([], 4), (["trainer.n_gpus_per_node=8"], 1)):  # among ranks every device has a whole engine
        found = phases(plan(*GRPO, *spread, *more))
        assert part(found["rollout"], "engine", "weights") == part(one["rollout"], "engine", "weights") // share


def test_tensor_ranks_divide_the_layers_and_hold_the_ends_whole():
    eight = "trainer.n_gpus_per_node=8"
    sizes = [f"{ACTOR}.strategy=megatron", f"{ACTOR}.megatron.tensor_model_parallel_size=2"]
    found = phases(plan(*GRPO, *sizes, eight))["update actor"]
    plain = phases(plan(*GRPO, eight))["update actor"]
    shape = find_shape("qwen2.5-7b").shape
    inside = shape.layers * shape.layer
    ends = shape.parameters - inside
    assert part(found, "policy", "weights") == pytest.approx(4 * (inside / 8 + ends / 4), rel=1e-6)
    assert part(found, "policy", "optimizer") == pytest.approx(8 * (inside / 8 + ends / 4), rel=1e-3)
    saved = part(plain, "policy", "gathered weights") - part(found, "policy", "gathered weights")
    assert saved == pytest.approx(2 * shape.layer, rel=1e-6)


def test_checkpointing_and_micro_batches_change_the_activations():
    def activations(*overrides: str) -> int:
        found = phases(plan(*GRPO, *overrides))["update actor"]
        return sum(part.bytes for part in found.parts if part.name in ("activations", "weight copies"))

    rows = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    assert activations(f"{rows}=8") < activations(f"{rows}=32")
    assert activations(f"{rows}=32") < activations(f"{rows}=32", f"{MODEL}.enable_gradient_checkpointing=false") / 3


def test_gradients_of_a_single_micro_batch_come_while_activations_go():
    def update(micro: int, *overrides: str) -> Phase:
        batch = ("data.train_batch_size=4", f"{ACTOR}.ppo_mini_batch_size=4")
        given = (*GRPO, *batch, f"{ACTOR}.ppo_micro_batch_size_per_gpu={micro}", *overrides)
        return phases(plan(*given, model="qwen2.5-0.5b"))["update actor"]

    def gradients(phase: Phase) -> int:
        return part(phase, "policy", "gradients")

    assert gradients(update(16)) > 0 == gradients(update(32))
    short = ("data.max_prompt_length=8", "data.max_response_length=8")
    # Few activations: the end of the pass is the worst, where all gradients are.
    assert gradients(update(32, *short)) == gradients(update(16, *short)) > 0
    assert update(32, *short).bytes < update(32).bytes


def test_engines_reserve_by_their_own_rule():
    ours, foreign = (
        phases(plan(*GRPO, f"{ROLLOUT}.name={name}", model="qwen2.5-0.5b")) for name in ("builtin", "vllm")
    )
    reserved = sum(part.bytes for part in foreign["rollout"].parts if part.role == "engine")
    assert reserved == pytest.approx(0.5 * 80 * GIB, rel=1e-6)
    assert part(foreign["update actor"], "engine", "weights") == 0
    assert part(ours["update actor"], "engine", "weights") > 0
    assert "1024 sequences" in ours["rollout"].note


def test_what_does_not_fit_is_named():
    assert [phase.name for phase in plan(*GRPO, model="qwen2.5-0.5b").too_big] == []
    too_big = plan(*GRPO).too_big
    assert "update actor" in {phase.name for phase in too_big}
    assert plan(*GRPO).plain()["fits"] is False


def test_other_jobs_have_plans():
    shape = find_shape("qwen2.5-0.5b").shape
    sft = sft_plan(load(["model.partial_pretrain=m"], job="sft", check=False).cfg, shape, 80 * GIB)
    assert [phase.name for phase in sft.phases] == ["update"]
    assert part(sft.phases[0], "model", "gradients") == 4 * shape.parameters
    made = generate_plan(load(["model.path=m"], job="generate", check=False).cfg, shape, 80 * GIB)
    assert [phase.name for phase in made.phases] == ["rollout"]
