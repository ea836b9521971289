"""use_prefix_grouper: prompts that are computed once give what prompts computed for every response give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from burnish.batch import Batch, Ragged
from burnish.models import attention, varlen
from burnish.models.attention import PACKED, PACKED_EAGER
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.varlen import AttentionShape, Segments
from burnish.training.backend import BackendOptions, create_backend
from burnish.training.inference import compute_log_probs
from burnish.training.packing import MicroBatchSize, PackedRows, RowSizes
from burnish.training.parallel import SINGLE_PROCESS
from burnish.training.row_sharding import RowSharding
from tests.conftest import SIZES, sharpen
from tests.ranks import run_ranks
from tests.training.conftest import CPU, make_batch
from tests.training.layouts import (
    MODELS,
    Case,
    Layout,
    adapted_policy,
    alone,
    same,
    study,
    study_exact_kl,
    study_heads,
)
from tests.vlm import Vlm, picture, rows_of

SHARED = {"use_prefix_grouper": True}
EXACT = {"kl_loss_type": "full"}
CLOSE = {torch.float64: 1e-9, torch.float32: 2e-5}


@pytest.fixture
def groups(tokenizer) -> Batch:
    """Rows 0, 2 and 5 have one prompt, 1 and 3 another; the response of row 2 is empty."""
    batch = make_batch(tokenizer)
    prompts = batch["prompt_ids"].rows()
    shared = Ragged.of([prompts[number] for number in (3, 0, 3, 0, 4, 3)], torch.int64)
    return Batch(prompt_ids=shared, **{name: batch[name] for name in batch if name != "prompt_ids"})


# streams


def test_a_prompt_is_in_the_stream_once():
    rows = Batch(
        prompt_ids=Ragged.of([[1, 2], [1, 2], [1, 3], [1, 2]], torch.int64),
        responses=Ragged.of([[4, 5], [6, 7, 8], [9], []], torch.int64),
    )
    packed = PackedRows.of(rows, CPU, share_prompts=True)
    assert packed.ids.tolist() == [1, 3, 9, 1, 2, 4, 5, 6, 7, 8]
    assert packed.positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 2, 3, 4]
    assert packed.ids[packed.predicts].tolist() == [2, 4, 2, 6, 7, 3]
    assert packed.targets.tolist() == [4, 5, 6, 7, 8, 9]
    assert packed.ids[packed.ends].tolist() == [5, 8, 9, 2]
    assert packed.segments.lengths == [3, 4, 3] and packed.segments.key_lengths == [3, 4, 5]
    assert packed.segments.keys is not None
    assert packed.ids[packed.segments.keys].tolist() == [1, 3, 9, 1, 2, 4, 5, 1, 2, 6, 7, 8]


def test_different_prompts_are_packed_as_without_sharing(tokenizer):
    batch = make_batch(tokenizer)
    plain, shared = (PackedRows.of(batch, CPU, share_prompts=share) for share in (False, True))
    assert shared.segments.keys is None and shared.segments.lengths == plain.segments.lengths
    assert torch.equal(plain.ids, shared.ids) and torch.equal(plain.predicts, shared.predicts)


# micro-batches


def sizes_of(prompts: list[int], lengths: list[int], prompt_length: int = 10) -> RowSizes:
    return RowSizes(torch.tensor(lengths), torch.full((len(lengths),), prompt_length), prompts)


def test_rows_of_a_prompt_stay_together_within_the_budget():
    sizes = sizes_of([0, 0, 0, 1, 1, 1], [14, 15, 16, 11, 12, 13])
    (micro_batches,) = RowSharding().micro_batches(sizes, MicroBatchSize(tokens=25, share_prompts=True))
    assert sorted(micro_batches) == [[0, 1, 2], [3, 4, 5]]  # 10 + 4 + 5 + 6 and 10 + 1 + 2 + 3 tokens
    (micro_batches,) = RowSharding().micro_batches(sizes, MicroBatchSize(tokens=20, share_prompts=True))
    assert sorted(micro_batches) == [[0, 1], [2], [3, 4, 5]]  # the first prompt comes twice


def test_copies_of_keys_are_bounded():
    """A long prompt with many short responses would need a copy of its keys for each of them."""
    sizes = sizes_of([0] * 32, [1001] * 32, prompt_length=1000)
    units = sizes.units(100_000)
    assert [len(unit.rows) for unit in units] == [8] * 4
    for unit in units:
        assert unit.num_keys <= 8 * unit.tokens == 8 * (1000 + len(unit.rows))


def test_groups_are_divided_where_ranks_would_have_unequal_work():
    sizes = sizes_of([number // 8 for number in range(24)], [20] * 24)
    shards = RowSharding(2).micro_batches(sizes, MicroBatchSize(tokens=1000, share_prompts=True))
    counts = [sum(map(len, shard)) for shard in shards]
    assert sorted(row for shard in shards for rows in shard for row in rows) == list(range(24))
    assert counts == [12, 12]


# results


@pytest.mark.parametrize("name", MODELS)
def test_one_process(groups, name):
    """Log-probs, loss, gradients and updated weights."""
    same(alone(groups, Case(name, changes=SHARED)), alone(groups, Case(name)), CLOSE[torch.float64])


@pytest.mark.parametrize("what", [study, study_heads])
def test_kernels_for_a_cpu(groups, what):
    """In float32, attention is the C kernel where heads fit."""
    case = {name: Case("qwen3", torch.float32, changes) for name, changes in (("shared", SHARED), ("plain", {}))}
    same(alone(groups, case["shared"], what), alone(groups, case["plain"], what), CLOSE[torch.float32])


def test_recomputation(groups):
    recomputed = Case("tied qwen2", changes=SHARED, recompute=(None, None))
    same(alone(groups, recomputed), alone(groups, Case("tied qwen2")), CLOSE[torch.float64])


def test_the_exact_kl(groups):
    shared, plain = (Case("llama", changes=changes) for changes in (EXACT | SHARED, EXACT))
    same(alone(groups, shared, study_exact_kl), alone(groups, plain, study_exact_kl), CLOSE[torch.float64])


def test_adapters(groups):
    found, expected = (
        adapted_policy(Case("llama", changes=changes), SINGLE_PROCESS).update(groups, 1).metrics
        for changes in (SHARED, {})
    )
    for name in ("actor/pg_loss", "actor/grad_norm"):
        assert found[name] == pytest.approx(expected[name], rel=1e-9)


@pytest.mark.parametrize("how", ["torch's kernel", "eager", "C"])
def test_implementations_of_attention(groups, monkeypatch, how):
    """Gradients of the log-probs' sum; torch's kernel by its definition on a CPU."""
    implementation, config = (PACKED_EAGER if how == "eager" else PACKED), Qwen2Config(**SIZES | {"hidden_size": 64})
    if how == "torch's kernel":
        monkeypatch.setattr(varlen, "torch_kernel_applies", lambda *_: True)
        monkeypatch.setattr(attention, "torch_kernel_applies", lambda *_: True)
    gradients = []
    for shared in (False, True):
        attention.register()
        model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
        sharpen(model, 1)
        backend = create_backend(model, CPU, torch.float32, options=BackendOptions(share_prompts=shared))
        packed = PackedRows.of(groups, CPU, share_prompts=shared)
        sees_c = attention.c_kernel_applies(torch.empty(1, 4, 3, 16), packed.segments, AttentionShape(1.0), 0.0)
        assert sees_c or how != "C"
        log_probs, _ = backend.log_probs(packed, 0.7, False)
        (log_probs * groups["advantages"].flat).sum().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    scale = max(float(gradient.abs().max()) for gradient in gradients[0].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=2e-5 * scale, msg=name)


def test_gradients_of_a_prompt_are_added_up_in_float32(groups):
    """Thousands of equal gradients of 16 bits would stop growing."""
    value = torch.ones(1, 1, 1, 4, dtype=torch.bfloat16, requires_grad=True)
    segments = Segments([1] * 1000, keys=torch.zeros(1000, dtype=torch.int64), key_lengths=[1] * 1000)
    (copies,) = segments.shared(value)
    copies.sum().backward()
    assert copies.dtype == torch.bfloat16 and torch.equal(value.grad, torch.full_like(value, 1000))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm"])
def test_pictures_of_a_prompt_are_seen_once(tmp_path, monkeypatch, family):
    vlm = Vlm.make(tmp_path / family, family)
    one, other = vlm.prompt([picture()], text="one"), vlm.prompt([picture(seed=1)], text="one")
    assert one.ids == other.ids  # only the pictures differ
    batch = rows_of([one, other, one, one, other])
    results, seen = [], []
    for shared in (False, True):
        model = load_causal_lm(ModelSource(str(vlm.folder)), PACKED, torch.float32)
        backend = create_backend(model, CPU, torch.float32, options=BackendOptions(share_prompts=shared))
        embed = type(backend.family).embed
        monkeypatch.setattr(
            type(backend.family), "embed", lambda self, *x, _e=embed, **y: seen.append(len(x[2])) or _e(self, *x, **y)
        )
        results.append(compute_log_probs(backend, batch, 0.7, MicroBatchSize(rows=5)).flat)
        monkeypatch.undo()
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=2e-5)
    assert seen == [5, 2]


# ranks

Cases = dict[str, tuple[Any, Case, Layout]]
TWO_RANKS: Cases = {
    "sharded": (study, Case("qwen3", changes=SHARED), Layout()),
    "stages": (study, Case("tied qwen2", changes=SHARED), Layout(2, virtual=2)),
}
MORE: Cases = {
    "tensor": (study, Case("llama", torch.float32, SHARED), Layout(mesh={"tensor_size": 2})),
    "experts": (study, Case("mixtral", changes=SHARED), Layout(mesh={"expert_size": 2})),
    "critic": (study_heads, Case("qwen3", torch.float32, SHARED), Layout()),
    "exact KL over stages": (study_exact_kl, Case("tied qwen2", changes=EXACT | SHARED), Layout(2)),
}


def study_all(rank: int, batch: Batch, cases: Cases) -> dict[str, Any]:
    return {name: what(layout.context(), batch, case) for name, (what, case, layout) in cases.items()}


@pytest.mark.parametrize("cases", [TWO_RANKS, pytest.param(MORE, marks=pytest.mark.long)], ids=["some", "more"])
def test_two_ranks(groups, cases):
    """Against one process without sharing."""
    ranks = run_ranks(2, study_all, groups, cases, limit=240.0)
    for name, (what, case, _) in cases.items():
        changes = {key: value for key, value in case.changes.items() if key not in SHARED}
        expected = alone(groups, Case(case.model, case.dtype, changes), what)
        for found in ranks:
            same(found[name], expected, CLOSE[case.dtype])
