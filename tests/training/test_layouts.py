"""The law of layouts: on a recorded batch, every layout gives the loss, gradient and weights of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from burnish.batch import Batch
from burnish.errors import UserError
from burnish.training.packing import row_lengths
from burnish.training.pipeline_schedule import Shape, num_messages, training_plan
from tests.ranks import run_ranks
from tests.training import layouts
from tests.training.layouts import (
    Case,
    Layout,
    alone,
    policy_of,
    same,
    same_weights,
    study,
    study_exact_kl,
    study_heads,
    study_replay,
)

CLOSE = {torch.float64: 1e-9, torch.float32: 1e-5}
FLOAT32 = torch.float32
BY_ROWS = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 2}
# The routers' balance is one of a micro-batch: layouts are compared that cut the rows alike.
BALANCED = {**BY_ROWS, "aux_loss_coef": 0.5}
BY_LAYER, BY_SEQUENCE = ({**BALANCED, "aux_loss_scope": scope} for scope in ("layer", "sequence"))
EXACT = {"kl_loss_type": "full"}
REPLAYED = {"router_replay.mode": "R2"}
EXPERTS, TENSOR = {"expert_size": 2}, {"tensor_size": 2}

TWO_RANKS: dict[str, tuple[Any, Case, Layout]] = {
    "1F1B, tied embeddings": (study, Case("tied qwen2"), Layout(2)),
    "interleaved": (study, Case("qwen3"), Layout(2, virtual=2)),
    "GPipe, uneven stages": (study, Case("qwen3"), Layout(2, schedule="gpipe", counts={"num_first": 1})),
    "recomputed": (study, Case("llama", FLOAT32, recompute=(None, None)), Layout(2, virtual=2)),
    "recomputed in part": (study, Case("qwen3", recompute=("block", 1)), Layout(2)),
    "critic and reward model": (study_heads, Case("qwen3", FLOAT32), Layout(2, virtual=2)),
    "coupled rows": (study, Case("qwen3", changes={"policy_loss.loss_mode": "clip_cov"}), Layout(2)),
    "moving average": (study, Case("tied qwen2", changes={"ema_beta": 0.5}), Layout(2)),
    "stages of a mixture": (study, Case("qwen3 mixture", FLOAT32, BALANCED), Layout(2, virtual=2)),
    "stages, balanced by sequence": (study, Case("mixtral", FLOAT32, BY_SEQUENCE), Layout(2)),
    "stages that repeat choices": (study_replay, Case("qwen3 mixture", changes=REPLAYED), Layout(2, virtual=2)),
    "sequence ranks that repeat choices": (
        study_replay,
        Case("mixtral", FLOAT32, REPLAYED, recompute=(None, None)),
        Layout(mesh={"sequence_size": 2}),
    ),
    "experts that repeat choices": (study_replay, Case("mixtral", changes=REPLAYED), Layout(mesh=EXPERTS)),
    "experts": (study, Case("mixtral"), Layout(mesh=EXPERTS)),
    "experts and a critic": (study_heads, Case("qwen3 mixture", FLOAT32), Layout(mesh=EXPERTS)),
    "experts, recomputed": (study, Case("qwen3 mixture", FLOAT32, recompute=(None, None)), Layout(mesh=EXPERTS)),
    "tensor ranks and a mixture": (study, Case("qwen3 mixture", recompute=(None, None)), Layout(mesh=TENSOR)),
    "tensor ranks that repeat choices": (study_replay, Case("mixtral", FLOAT32, REPLAYED), Layout(mesh=TENSOR)),
    "stages of latent attention": (study, Case("deepseek", FLOAT32), Layout(2, counts={"num_first": 1})),
    "experts of latent attention": (study, Case("deepseek, whole queries", FLOAT32), Layout(mesh=EXPERTS)),
    "tensor ranks of latent attention": (study, Case("deepseek", FLOAT32), Layout(mesh=TENSOR)),
    "exact KL over stages": (study_exact_kl, Case("tied qwen2", changes=EXACT), Layout(2, virtual=2)),
    "balanced experts": (study, Case("mixtral", FLOAT32, BALANCED), Layout(mesh={**EXPERTS, "sequence_size": 2})),
}
FOUR_RANKS: dict[str, tuple[Any, Case, Layout]] = {
    "stages": (study, Case("qwen3"), Layout(4)),
    "stages, interleaved, sharded": (study, Case("tied qwen2"), Layout(2, virtual=2)),
    "stages, replicated": (study, Case("tied qwen2"), Layout(2, mesh={"fsdp_size": 1})),
    "stages, tensor": (study, Case("tied qwen2"), Layout(2, mesh={"tensor_size": 2})),
    "stages, sequence": (study, Case("qwen3"), Layout(2, mesh={"sequence_size": 2})),
    "stages, sequence, balance": (
        study,
        Case("qwen3 mixture", FLOAT32, BALANCED),
        Layout(2, virtual=2, mesh={"sequence_size": 2}),
    ),
    "heads": (study_heads, Case("llama", FLOAT32), Layout(2, virtual=2, mesh={"tensor_size": 2})),
    "numbers of layers": (study, Case("qwen3"), Layout(2, counts={"num_each": (3, 1)})),
    "experts, sharded": (study, Case("qwen3 mixture"), Layout(mesh=EXPERTS)),
    "experts, one each": (study, Case("mixtral"), Layout(mesh={"expert_size": 4})),
    "experts, replicated": (study, Case("mixtral"), Layout(mesh={**EXPERTS, "fsdp_size": 2})),
    "experts, sequence": (study, Case("mixtral"), Layout(mesh={**EXPERTS, "sequence_size": 2})),
    "stages, sequence, balance by layer": (
        study,
        Case("qwen3 mixture", FLOAT32, BY_LAYER),
        Layout(2, virtual=2, mesh={"sequence_size": 2}),
    ),
    "stages and experts that repeat choices": (
        study_replay,
        Case("qwen3 mixture", changes=REPLAYED, recompute=("uniform", 1)),
        Layout(2, virtual=2, mesh=EXPERTS),
    ),
    "experts, tensor": (study, Case("qwen3 mixture"), Layout(mesh={**EXPERTS, **TENSOR})),
    "tensor, sharded": (study_heads, Case("qwen3 mixture", FLOAT32), Layout(mesh=TENSOR)),
    "stages, tensor, mixture": (study, Case("mixtral"), Layout(2, virtual=2, mesh=TENSOR)),
    "latent attention, stages, tensor": (study, Case("deepseek, whole queries", FLOAT32), Layout(2, mesh=TENSOR)),
    "latent attention, experts, tensor": (
        study_replay,
        Case("deepseek", FLOAT32, REPLAYED),
        Layout(mesh={**EXPERTS, **TENSOR}),
    ),
    "latent attention, sequence": (study, Case("deepseek", FLOAT32), Layout(mesh={"sequence_size": 4})),
    "Ulysses in a ring": (study, Case("six heads", FLOAT32), Layout(mesh={"sequence_size": 4})),
    "exact KL over stages, tensor": (study_exact_kl, Case("qwen3", FLOAT32, EXACT), Layout(2, mesh=TENSOR)),
    "stages, experts": (study, Case("qwen3 mixture"), Layout(2, virtual=2, mesh=EXPERTS)),
}
EIGHT_RANKS: dict[str, tuple[Any, Case, Layout]] = {
    "stages, tensor, data": (study, Case("tied qwen2"), Layout(2, mesh={"tensor_size": 2})),
    "stages, tensor, sequence": (study, Case("qwen3"), Layout(2, mesh={"tensor_size": 2, "sequence_size": 2})),
    "four stages, data": (study, Case("llama", FLOAT32), Layout(4, mesh={"fsdp_size": 1})),
    "stages, experts, data": (study, Case("qwen3 mixture"), Layout(2, virtual=2, mesh=EXPERTS)),
    "stages, experts, tensor": (study, Case("qwen3 mixture"), Layout(2, virtual=2, mesh={**EXPERTS, **TENSOR})),
    "experts, tensor, data": (study, Case("qwen3 mixture"), Layout(mesh={**EXPERTS, **TENSOR})),
    "experts, tensor, sequence": (study, Case("mixtral"), Layout(mesh={**EXPERTS, **TENSOR, "sequence_size": 2})),
    "experts, tensor, replicated": (study, Case("mixtral"), Layout(mesh={**EXPERTS, **TENSOR, "fsdp_size": 2})),
    "stages, experts, sequence": (study, Case("mixtral"), Layout(2, mesh={**EXPERTS, "sequence_size": 2})),
    "stages, experts, replicated": (study, Case("mixtral", FLOAT32), Layout(2, mesh={**EXPERTS, "fsdp_size": 2})),
    "experts, data": (study_heads, Case("qwen3 mixture", FLOAT32), Layout(mesh={"expert_size": 4})),
}


def study_all(rank: int, batch: Batch, cases: dict[str, tuple[Any, Case, Layout]]) -> dict[str, Any]:
    return {name: what(layout.context(), batch, case) for name, (what, case, layout) in cases.items()}


def hold(batch: Batch, size: int, cases: dict[str, tuple[Any, Case, Layout]]) -> None:
    """All ranks of all layouts agree with one process."""
    ranks = run_ranks(size, study_all, batch, cases, limit=400.0)
    for name, (what, case, _) in cases.items():
        expected = alone(batch, case, what)
        for rank, found in enumerate(ranks):
            try:
                same(found[name], expected, CLOSE[case.dtype])
            except AssertionError as error:
                raise AssertionError(f"{name}, rank {rank} of {size}: {error}") from error


def test_two_ranks_compute_what_one_does(batch):
    hold(batch, 2, TWO_RANKS)


@pytest.mark.long
def test_four_ranks_compute_what_one_does(batch):
    hold(batch, 4, FOUR_RANKS)


@pytest.mark.long
def test_eight_ranks_compute_what_one_does(batch):
    hold(batch, 8, EIGHT_RANKS)


# messages


def traffic(rank: int, batch: Batch, layout: Layout) -> dict[str, Any]:
    """What one update sends, and what the schedule says."""
    parallel = layout.context()
    policy = policy_of(Case("qwen3", changes={"ppo_epochs": 1}), parallel)
    policy.update(batch, 1)
    micro_batches = parallel.shard_batch(batch, policy.plan.micro_batch)
    shape = Shape(layout.pipeline, layout.virtual, len(micro_batches))
    plan = training_plan(layout.schedule, shape)[parallel.pipeline_rank]
    links = policy.backend.links
    return {
        "sent": (links.num_sent, links.bytes_sent),
        "planned": num_messages(plan, shape, parallel.pipeline_rank),
        "micro-batches": len(micro_batches),
        "layers": sum(parameter.numel() for parameter in policy.backend.stages.layers.parameters()),
    }


def test_messages_are_those_of_the_schedule(batch):
    tokens = int(row_lengths(batch).sum())
    layout = Layout(2, virtual=2)
    ranks = run_ranks(2, traffic, batch, layout)
    for rank in ranks:
        assert rank["sent"][0] == rank["planned"]
    # Three links, in both directions: float64 hidden states of every token.
    assert sum(rank["sent"][1] for rank in ranks) == 2 * 3 * tokens * layouts.FOUR["hidden_size"] * 8
    assert sum(rank["planned"] for rank in ranks) == 2 * 3 * ranks[0]["micro-batches"]
    assert ranks[0]["layers"] == ranks[1]["layers"] > 0
    whole = policy_of(Case("qwen3"), layouts.SINGLE_PROCESS).backend.model.model.layers
    assert 2 * ranks[0]["layers"] == sum(parameter.numel() for parameter in whole.parameters())


# checkpoints

DENSE, MIXED = Case("tied qwen2", changes={"ema_beta": 0.5}), Case("qwen3 mixture")
MOVES = {
    "from one process": (DENSE, None, Layout(2, virtual=2)),
    "between numbers of stages": (DENSE, Layout(2), Layout(2, virtual=2)),
    "to sharded ranks": (DENSE, Layout(2, virtual=2), Layout()),
    "from sharded ranks": (DENSE, Layout(), Layout(2)),
    "from stages to experts": (MIXED, Layout(2), Layout(mesh=EXPERTS)),
    "from experts to one process": (MIXED, Layout(mesh=EXPERTS), None),
    "from stages to one process": (DENSE, Layout(2, virtual=2), None),
}


def move_all(rank: int, batch: Batch, folder: Path) -> dict[str, Any]:
    """Save in all layouts, then load in others."""
    for name, (case, source, _) in MOVES.items():
        if source is not None:
            layouts.first_step(source.context(), batch, case, folder / name)
    return {
        name: layouts.second_step(target.context(), batch, case, folder / name)
        for name, (case, _, target) in MOVES.items()
        if target is not None
    } | {"hub": layouts.second_step(Layout(2).context(), batch, DENSE, folder / "to sharded ranks", "hf_model")}


def test_checkpoints_move_between_layouts(batch, tmp_path):
    for name, (case, source, _) in MOVES.items():
        if source is None:
            layouts.first_step(layouts.SINGLE_PROCESS, batch, case, tmp_path / name)
    ranks = run_ranks(2, move_all, batch, tmp_path)
    expected = {}
    for case in (DENSE, MIXED):
        policy = policy_of(case, layouts.SINGLE_PROCESS)
        for step in (1, 2):
            policy.update(batch, step)
        expected[id(case)] = dict(policy.weights())
    for name, (case, _, target) in MOVES.items():
        if target is None:
            alone = layouts.second_step(layouts.SINGLE_PROCESS, batch, case, tmp_path / name)
            same_weights(alone, expected[id(case)], 1e-9)
        else:
            for rank in ranks:
                same_weights(rank[name], expected[id(case)], 1e-9)
    restarted = layouts.second_step(layouts.SINGLE_PROCESS, batch, DENSE, tmp_path / "from one process", "hf_model")
    for rank in ranks:
        same_weights(rank["hub"], restarted, 1e-9)


# adapters


ADAPTED = Case("qwen3")
ADAPTED_LAYOUTS = {"stages": Layout(2, virtual=2), "tensor": Layout(mesh=TENSOR)}
ADAPTED_ON_FOUR = {
    "stages, tensor": Layout(2, mesh=TENSOR),
    "tensor, data": Layout(mesh=TENSOR),
    "tensor, sequence": Layout(mesh={**TENSOR, "sequence_size": 2}),
}


def refusals(rank: int, case: Case) -> list[str]:
    messages = []
    for mesh in (EXPERTS, TENSOR):
        with pytest.raises(UserError) as caught:
            layouts.adapted_policy(case, Layout(mesh=mesh).context())
        messages.append(str(caught.value))
    return messages


def test_adapters_of_divided_experts_are_refused():
    for messages in run_ranks(2, refusals, Case("qwen3 mixture")):
        for message in messages:
            assert "adapters on a mixture's experts" in message and "target_modules=[q_proj," in message


def adapted(rank: int, batch: Batch, folder: Path, names: dict[str, Layout]) -> dict[str, Any]:
    """A step with LoRA, its checkpoint loaded again, and one more step."""
    found = {}
    for name, layout in names.items():
        parallel = layout.context()
        found[name] = layouts.train(layouts.adapted_policy(ADAPTED, parallel), batch)
        layouts.first_step(parallel, batch, ADAPTED, folder / name, layouts.adapted_policy)
        resumed = layouts.second_step(parallel, batch, ADAPTED, folder / name, make=layouts.adapted_policy)
        found[name]["resumed"] = resumed
    return found


@pytest.mark.parametrize(
    ("size", "names"), [(2, ADAPTED_LAYOUTS), pytest.param(4, ADAPTED_ON_FOUR, marks=pytest.mark.long)]
)
def test_adapters_over_ranks(batch, tmp_path, size, names):
    ranks = run_ranks(size, adapted, batch, tmp_path, names, limit=300.0)
    expected = layouts.train(layouts.adapted_policy(ADAPTED, layouts.SINGLE_PROCESS), batch)
    alone = layouts.adapted_policy(ADAPTED, layouts.SINGLE_PROCESS)
    for step in (1, 2):
        alone.update(batch, step)
    two_steps = dict(alone.weights())
    for name in names:
        again = layouts.second_step(
            layouts.SINGLE_PROCESS, batch, ADAPTED, tmp_path / name, make=layouts.adapted_policy
        )
        same_weights(again, two_steps, 1e-6)
        for rank in ranks:
            # Merged weights are float32.
            same({**rank[name], "columns": {}}, {**expected, "columns": {}}, 1e-6)
            same_weights(rank[name]["resumed"], two_steps, 1e-6)
