"""The planner's communication model: messages and bytes of every phase are those that ranks really send."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from burnish.batch import Batch
from burnish.doctor.planner import traffic
from burnish.doctor.planner.layout import Layout
from burnish.doctor.planner.traffic import Passes
from burnish.doctor.shapes import shape_of
from burnish.training.packing import row_lengths
from burnish.training.pipeline_schedule import Shape as Schedule
from burnish.training.pipeline_schedule import num_messages, training_plan
from tests.doctor.collectives import ALL_TO_ALL, Collectives
from tests.ranks import run_ranks
from tests.training import layouts
from tests.training.conftest import make_batch, tokenizer  # noqa: F401
from tests.training.layouts import MODELS, Case, policy_of

ITEMSIZE = {torch.float64: 8, torch.float32: 4}
ONCE = {"ppo_epochs": 1, "ppo_mini_batch_size": 6}
ALL = (None, None)  # every layer is recomputed

# name -> (case, the planner's layout); `ranks` of it are those of the test
TWO_RANKS: dict[str, tuple[Case, Layout]] = {
    "sharded": (Case("llama", changes=ONCE), Layout(1, 2)),
    "sharded, tied, with biases": (Case("tied qwen2", torch.float32, ONCE), Layout(1, 2)),
    "sharded, recomputed": (Case("qwen3", changes=ONCE, recompute=ALL), Layout(1, 2, recompute=True)),
    "two copies": (Case("llama", changes=ONCE), Layout(1, 2, fsdp_size=1)),
    "context": (Case("qwen3", changes=ONCE), Layout(1, 2, context=2)),
    "context, recomputed": (Case("llama", changes=ONCE, recompute=ALL), Layout(1, 2, context=2)),
    "tensor": (Case("llama", changes=ONCE), Layout(1, 2, tensor=2)),
    "tensor, recomputed": (Case("llama", torch.float32, ONCE, recompute=ALL), Layout(1, 2, tensor=2)),
    "stages": (Case("llama", changes=ONCE), Layout(1, 2, pipeline=2)),
    "chunks, tied": (Case("tied qwen2", changes=ONCE, recompute=ALL), Layout(1, 2, pipeline=2, virtual=2)),
    "experts": (Case("mixtral", changes=ONCE), Layout(1, 2, expert=2)),
    "experts, recomputed": (Case("mixtral", torch.float32, ONCE, recompute=ALL), Layout(1, 2, expert=2)),
    "sharded experts": (Case("mixtral", changes=ONCE), Layout(1, 2)),
}
FOUR_RANKS: dict[str, tuple[Case, Layout]] = {
    "sharded": (Case("llama", changes=ONCE), Layout(1, 4)),
    "copies of shards": (Case("tied qwen2", changes=ONCE), Layout(1, 4, fsdp_size=2)),
    "context, sharded": (Case("qwen3", changes=ONCE), Layout(1, 4, context=2)),
    "tensor, sharded": (Case("llama", changes=ONCE), Layout(1, 4, tensor=2)),
    "stages, sharded": (Case("llama", changes=ONCE), Layout(1, 4, pipeline=2)),
    "chunks, sharded": (Case("llama", changes=ONCE, recompute=ALL), Layout(1, 4, pipeline=2, virtual=2)),
    "experts, sharded": (Case("mixtral", changes=ONCE), Layout(1, 4, expert=2)),
    "experts, sharded, recomputed": (Case("mixtral", changes=ONCE, recompute=ALL), Layout(1, 4, expert=2)),
}


def built(layout: Layout) -> layouts.Layout:
    """The layout as the tests of training build it."""
    mesh = {"sequence_size": layout.context, "tensor_size": layout.tensor, "expert_size": layout.expert}
    return layouts.Layout(layout.pipeline, layout.virtual, mesh={**mesh, "fsdp_size": layout.fsdp_size})


def count(rank: int, batch: Batch, cases: dict[str, tuple[Case, Layout]]) -> dict[str, Any]:
    """Per case and phase: the micro-batches' tokens, and what was sent."""
    found: dict[str, Any] = {}
    for name, (case, layout) in cases.items():
        parallel = built(layout).context()
        policy, lengths = policy_of(case, parallel), row_lengths(batch)
        with Collectives() as inference:
            policy.compute_log_probs(batch)
        with Collectives() as update:
            policy.update(batch, 1)
        found[name] = {}
        sizes = {"inference": policy.inference_micro_batch, "update": policy.plan.micro_batch}
        for phase, sent in (("inference", inference), ("update", update)):
            batches = parallel.shard_batch(batch, sizes[phase])
            tokens = [int(lengths[rows].sum()) for rows in batches]
            responses = int(batch["responses"].lengths[[row for rows in batches for row in rows]].sum())
            found[name][phase] = (tokens, responses, dict(sent.messages), dict(sent.bytes))
    return found


def planned(case: Case, layout: Layout, rank: int, tokens: list[int], responses: int, training: bool) -> dict:
    itemsize = ITEMSIZE[case.dtype]
    recompute = case.recompute is not None
    passes = Passes(tokens, responses, training, *[itemsize] * 3, recompute, outputs=2)
    stage = rank // layout.stage_ranks // layout.tensor
    return traffic.traffic(shape_of(MODELS[case.model].to_dict()), layout, passes, stage)


def check(batch: Batch, size: int, cases: dict[str, tuple[Case, Layout]]) -> None:
    ranks = run_ranks(size, count, batch, cases, limit=200.0)
    for name, (case, layout) in cases.items():
        assert layout.ranks == size
        for phase in ("inference", "update"):
            exchanged: Counter[str] = Counter()
            for rank, found in enumerate(ranks):
                tokens, responses, messages, num_bytes = found[name][phase]
                flows = planned(case, layout, rank, tokens, responses, phase == "update")
                where = f"{name}, {phase}, rank {rank} of {size}"
                own = {kind: flows.pop(kind) for kind in (traffic.CONTEXT, traffic.EXPERT) if kind in flows}
                sums = {kind: flows.pop(kind) for kind in (traffic.COPIES, traffic.RESULTS) if kind in flows}
                for kind, flow in flows.items():
                    if layout.virtual > 1 and kind == traffic.GATHER:  # FSDP prefetches some layers once too often
                        assert flow.messages <= messages.pop(kind) <= 1.25 * flow.messages, f"{where}: {kind}"
                        continue
                    assert (messages.pop(kind, 0), num_bytes.pop(kind, 0)) == flow[:2], f"{where}: {kind}"
                assert messages.pop(ALL_TO_ALL, 0) == sum(flow.messages for flow in own.values()), where
                exchanged["counted"] += num_bytes.pop(ALL_TO_ALL, 0)
                exchanged["planned"] += sum(flow.bytes for flow in own.values())
                assert messages.pop("sum", 0) == sum(flow.messages for flow in sums.values()), where
                assert num_bytes.pop("sum", 0) == sum(flow.bytes for flow in sums.values()), where
                assert messages == {}, f"{where}: not planned"
            # Which rank an expert's tokens go to depends on the routing, but not how many there are.
            assert exchanged["counted"] == exchanged["planned"], f"{name}, {phase}"


def test_two_ranks_send_what_is_planned(batch):
    check(batch, 2, TWO_RANKS)


@pytest.mark.long
def test_four_ranks_send_what_is_planned(batch):
    check(batch, 4, FOUR_RANKS)


@pytest.fixture
def batch(tokenizer):  # noqa: F811
    return make_batch(tokenizer)


@pytest.mark.parametrize(("pipeline", "virtual", "micro_batches"), [(2, 1, 5), (4, 1, 3), (2, 3, 4), (4, 2, 8)])
def test_messages_of_a_pipeline_are_those_of_its_schedule(pipeline, virtual, micro_batches):
    config = {**MODELS["llama"].to_dict(), "num_hidden_layers": 24}
    schedule = Schedule(pipeline, virtual, micro_batches)
    plan = training_plan("1f1b", schedule)
    layout = Layout(1, pipeline, pipeline=pipeline, virtual=virtual)
    for stage in range(pipeline):
        flows = traffic.traffic(shape_of(config), layout, Passes([8] * micro_batches, 8, True, 2), stage)
        flow = flows[traffic.PIPELINE]
        assert flow.messages == num_messages(plan[stage], schedule, stage)
        # The residual stream is float32, also where products have 16 bits.
        assert flow.bytes == flow.messages * 8 * config["hidden_size"] * 4
