"""One engine on several ranks generates what it generates on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import distributed
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    LlamaConfig,
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2MoeConfig,
)

from burnish.demo.tiny_vision import TINY_FAMILIES
from burnish.errors import UserError
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.model_input import ModelInput
from burnish.models.parts import all_weights, saved_buffers
from burnish.models.tensor_group import TensorGroup
from burnish.models.tensor_slices import check_sizes
from burnish.rollout.engine import Completion, Engine, EngineOptions, Request, Sampling, engine_row
from burnish.rollout.engines.digests import sync_weights
from tests.conftest import FAMILIES, SIZES, sharpen
from tests.ranks import run_ranks
from tests.vlm import Vlm, picture

CPU = torch.device("cpu")
PATIENCE = 60.0
GREEDY = Sampling(12, temperature=0, ignore_eos=True)
SAMPLED = Sampling(12, ignore_eos=True)
LATENT = {
    **{**SIZES, "num_key_value_heads": SIZES["num_attention_heads"]},
    **{"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6, "q_lora_rank": 12},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1},
    **{"n_group": 2, "topk_group": 1, "n_shared_experts": 2},
}
SHARED_GATE = {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}
MIXTURE = {**SIZES, "num_experts_per_tok": 2}
MODELS: dict[str, Callable[[], PretrainedConfig]] = {
    **{name: FAMILIES[name] for name in ("llama", "qwen3", "gemma2")},
    "tied head, biases": lambda: Qwen2Config(**{**SIZES, "tie_word_embeddings": True}),
    "mixture of experts": lambda: MixtralConfig(**MIXTURE, num_local_experts=4),
    "shared expert with a gate": lambda: Qwen2MoeConfig(**MIXTURE, **SHARED_GATE),
    "latent attention": lambda: DeepseekV3Config(**LATENT),
    "biases everywhere": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
}


def make_folder(folder: Any, config: PretrainedConfig) -> str:
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config)
    sharpen(model, seed=1)
    model.save_pretrained(folder)
    return str(folder)


def prompts() -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(5)
    rows = [tuple(torch.randint(3, 21, (length,), generator=generator).tolist()) for length in (9, 30, 280)]
    return [rows[0], rows[0], *rows]


def weights_of(folder: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def sent(model: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """The stream of a policy, which has a tied head under both names."""
    return [*model.named_parameters(remove_duplicate=False), *saved_buffers(model)]


def make_engine(folder: str, group: TensorGroup | None = None, **options: Any) -> Engine:
    settings = {"eos_ids": (2,), "max_model_len": 320, **options}
    source = ModelSource(folder)
    follows = group is not None and not group.leads
    entry = engine_row("builtin", "sync", follows)
    return entry.load()(EngineOptions(source, torch.float32, CPU, tensor_group=group, **settings))


def ask(engine: Engine, sampling: Sampling, session: str | None = None) -> list[Completion]:
    requests = [Request(ModelInput(ids), sampling, seed, session=session) for seed, ids in enumerate(prompts())]
    return [future.result(PATIENCE) for future in engine.generate(requests)]


def generate(engine: Engine) -> list[Any]:
    """What an engine answers."""
    return [*ask(engine, GREEDY), *ask(engine, SAMPLED), engine.score([ids for ids in prompts()], 0.7)]


def whole_group() -> TensorGroup:
    return TensorGroup(cast(distributed.ProcessGroup, distributed.group.WORLD))


def on_ranks(rank: int, folder: str, work: Callable[..., Any], options: dict[str, Any]) -> Any:
    group = whole_group()
    engine = make_engine(folder, group, **options)
    sync_weights(engine, sent(weights_of(folder)), 1, torch.float32)  # compares every rank's part
    try:
        return work(engine) if group.leads else None
    finally:
        engine.close()


def alone(folder: str, work: Callable[..., Any], **options: Any) -> Any:
    engine = make_engine(folder, **options)
    engine.load_weights(all_weights(weights_of(folder)), 1)
    try:
        return work(engine)
    finally:
        engine.close()


def compare(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, Completion):
            assert (ours.ids, ours.versions, ours.finish_reason) == (theirs.ids, theirs.versions, theirs.finish_reason)
            assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-5)
        else:
            assert [pytest.approx(row, abs=2e-5) for row in theirs] == ours


ALWAYS = ("llama", "qwen3", "tied head, biases")
MORE = [name for name in MODELS if name not in ALWAYS]


@pytest.mark.parametrize("name", [*ALWAYS, *(pytest.param(name, marks=pytest.mark.long) for name in MORE)])
def test_two_ranks_generate_what_one_does(name, tmp_path):
    folder = make_folder(tmp_path, MODELS[name]())
    found = run_ranks(2, on_ranks, folder, generate, {})[0]
    compare(found, alone(folder, generate))


@pytest.mark.parametrize("how", ["block", pytest.param("tensor", marks=pytest.mark.long)])
def test_every_rank_rounds_its_own_part(how, tmp_path):
    """Powers of two stay what they are in 8 bits, whatever the largest of their block is."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(MODELS["biases everywhere"]())
    sharpen(model, seed=1)
    for parameter in model.parameters():
        parameter.data = parameter.data.sign() * 2.0 ** parameter.data.abs().log2().round().clamp(-7, 1)
    model.save_pretrained(tmp_path)
    found = run_ranks(2, on_ranks, str(tmp_path), generate, {"quantization": how})[0]
    compare(found, alone(str(tmp_path), generate))


def under_pressure(engine: Engine) -> list[Any]:
    """Few blocks: sequences that outgrow theirs are preempted, and the partial block of a common prompt is copied."""
    ids = prompts()[-1]
    inputs = [ids[:250], ids[:250], ids[1:251], ids[:20], ids[:257]]
    requests = [Request(ModelInput(ids), GREEDY, seed) for seed, ids in enumerate(inputs)]
    found = [future.result(PATIENCE) for future in engine.generate(requests)]
    assert engine.stats()["preemptions"] > 0
    return found


def conversations(engine: Engine) -> list[Any]:
    """A second turn reuses the KV of the first one."""
    found = []
    for number, ids in enumerate(prompts()[2:]):
        session = f"s{number}"
        first, *_ = engine.generate([Request(ModelInput(ids), GREEDY, seed=number, session=session)])
        again = (*ids, *first.result(PATIENCE).ids, 7, 8)
        second, *_ = engine.generate([Request(ModelInput(again), GREEDY, seed=number, session=session)])
        found += [first.result(), second.result(PATIENCE)]
        engine.end_session(session)
    return found


FEW_BLOCKS = {"memory_share": 0.0}


@pytest.mark.parametrize(
    ("work", "options"),
    [(under_pressure, FEW_BLOCKS), pytest.param(conversations, {"invariant": False}, marks=pytest.mark.long)],
)
def test_the_leaders_blocks_are_those_of_all_ranks(work, options, tmp_path):
    folder = make_folder(tmp_path, MODELS["llama"]())
    found = run_ranks(2, on_ranks, folder, work, options)[0]
    compare(found, alone(folder, work, **options))


@pytest.mark.long
@pytest.mark.parametrize("name", ["llama", "mixture of experts"])
def test_four_ranks_hold_the_two_key_value_heads_twice(name, tmp_path):
    folder = make_folder(tmp_path, MODELS[name]())
    found = run_ranks(4, on_ranks, folder, generate, {})[0]
    compare(found, alone(folder, generate))


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 4])
def test_an_invariant_engine_stays_invariant(size, tmp_path):
    """Equal to the last bit, alone and in a batch: on four ranks only because their parts are added in order."""
    folder = make_folder(tmp_path, MODELS["llama"]())
    together, apart = run_ranks(size, on_ranks, folder, in_batches, {})[0]
    assert together == apart


def in_batches(engine: Engine) -> tuple[list[Completion], list[Completion]]:
    requests = [Request(ModelInput(ids), SAMPLED, seed) for seed, ids in enumerate(prompts())]
    together = [future.result(PATIENCE) for future in engine.generate(requests)]
    return together, [engine.generate([request])[0].result(PATIENCE) for request in requests]


# what a run does between two steps


def sleep_and_wake(rank: int, folder: str, level: int) -> Any:
    group = whole_group()
    control = cast(distributed.ProcessGroup, distributed.new_group())  # of the callers
    engine: Any = make_engine(folder, group)
    weights = weights_of(folder)

    def load(version: int) -> None:
        sync_weights(engine, sent(weights), version, torch.float32)

    load(1)
    first = ask(engine, GREEDY) if group.leads else []
    engine.pause()
    engine.sleep(level)
    distributed.barrier(control)
    asleep = {name: sum(tensor.numel() for tensor in tensors) for name, tensors in engine.memory().items()}
    distributed.barrier(control)
    load(2)
    engine.wake()
    engine.resume()
    second = ask(engine, GREEDY) if group.leads else []
    distributed.barrier(control)
    engine.close()
    return asleep, first, second


@pytest.mark.parametrize("level", [2, pytest.param(1, marks=pytest.mark.long)])
def test_all_ranks_sleep_with_the_leader(level, tmp_path):
    folder = make_folder(tmp_path, MODELS["llama"]())
    (asleep, first, second), (asleep_too, _, _) = run_ranks(2, sleep_and_wake, folder, level)
    assert asleep == asleep_too and asleep["cache"] == 0 and (asleep["weights"] == 0) == (level == 2)
    assert [completion.ids for completion in first] == [completion.ids for completion in second]
    assert {version for completion in second for version in completion.versions} == {2}


def abort_and_score(engine: Engine) -> Any:
    """A paused engine scores; aborted requests end with what they have; the next ones are not disturbed."""
    engine.pause()
    long = Sampling(250, temperature=0, ignore_eos=True)
    futures = engine.generate([Request(ModelInput(prompts()[0]), long, seed) for seed in range(3)])
    scores = engine.score(prompts()[:2])
    engine.resume()
    engine.abort(futures)
    reasons = [future.result(PATIENCE).finish_reason for future in futures]
    return reasons, scores, ask(engine, GREEDY)


def test_abort_pause_and_score(tmp_path):
    folder = make_folder(tmp_path, MODELS["llama"]())
    reasons, scores, completions = run_ranks(2, on_ranks, folder, abort_and_score, {})[0]
    expected = alone(folder, abort_and_score)
    assert reasons == expected[0] == ["abort"] * 3
    compare([scores, *completions], [expected[1], *expected[2]])


def greedy(engine: Engine) -> list[Completion]:
    return ask(engine, GREEDY)


@pytest.mark.long
def test_the_leader_records_experts(tmp_path):
    """A rank holds columns of every expert, so the leader knows which were chosen."""
    folder = make_folder(tmp_path, MODELS["mixture of experts"]())
    options = {"record_experts": True}
    found = run_ranks(2, on_ranks, folder, greedy, options)[0]
    expected = alone(folder, greedy, **options)
    compare(found, expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.routed_experts is not None and torch.equal(ours.routed_experts, theirs.routed_experts)


def look(rank: int, folder: str, inputs: list[ModelInput], shared: bool) -> list[Completion] | None:
    group = whole_group() if shared else None
    engine = make_engine(folder, group, max_model_len=512)
    model = load_causal_lm(ModelSource(folder), None, torch.float32)
    sync_weights(engine, model.named_parameters(remove_duplicate=False), 1, torch.float32)
    answers = None
    if group is None or group.leads:
        requests = [Request(input, GREEDY, seed) for seed, input in enumerate(inputs)]
        answers = [future.result(PATIENCE) for future in engine.generate(requests)]
    engine.close()
    return answers


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen2_vl", "gemma3"])
def test_every_rank_sees_the_pictures(family, tmp_path):
    vlm = Vlm.make(tmp_path, family)
    text = f"what {TINY_FAMILIES[family].image} is it?"
    inputs = [vlm.encoder.encode(text, [picture(56, 56, seed)], []) for seed in range(3)]
    found = run_ranks(2, look, str(tmp_path), inputs, True)[0]
    compare(found, look(0, str(tmp_path), inputs, False))


def parts(rank: int, folder: str) -> dict[str, tuple[int, ...]]:
    engine: Any = make_engine(folder, whole_group())
    shapes = {name: tuple(weight.shape) for name, weight in engine.runner.model.named_parameters()}
    shapes["cache"] = (engine.runner.shape.kv_heads,)
    engine.close()
    return shapes


def test_a_rank_holds_its_part_of_weights_and_cache(tmp_path):
    for shapes in run_ranks(2, parts, make_folder(tmp_path, MODELS["llama"]())):
        layer = {name.removeprefix("model.layers.0."): shape for name, shape in shapes.items()}
        assert layer["self_attn.q_proj.weight"] == (16, 32) and layer["self_attn.k_proj.weight"] == (8, 32)
        assert layer["self_attn.o_proj.weight"] == (32, 16) and layer["mlp.down_proj.weight"] == (32, 24)
        assert layer["lm_head.weight"] == (53, 32) and layer["cache"] == (1,)


# refusals


def refusal(rank: int, folder: str) -> str:
    with pytest.raises(UserError) as caught:
        make_engine(folder, whole_group())
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (lambda: Phi3Config(**SIZES), "self_attn.o_proj of Phi3ForCausalLM is a matrix that cannot be divided"),
        pytest.param(lambda: Olmo2Config(**SIZES), "normalizes over all heads", marks=pytest.mark.long),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused(config, problem, tmp_path):
    for message in run_ranks(2, refusal, make_folder(tmp_path, config())):
        assert problem in message and "tensor_model_parallel_size=1" in message


def test_sizes_that_do_not_divide_are_refused_before_loading():
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    for size in (1, 2, 4):  # more ranks than key-value heads: some hold the same
        check_sizes(LlamaConfig(**SIZES), size, key)
    with pytest.raises(UserError, match="4 attention heads, 48 intermediate columns, 2 key-value heads") as caught:
        check_sizes(LlamaConfig(**{**SIZES, "intermediate_size": 48}), 3, key)
    assert caught.value.allowed == [1, 2, 4] and caught.value.hint == f"{key}=2"
