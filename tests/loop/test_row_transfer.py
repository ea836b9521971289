"""Rows on their way to ranks: every rank gets its own, and the bytes of a step are counted."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
import torch

from burnish.batch import Batch, Ragged
from burnish.distributed.channel import NO_RESULT
from burnish.distributed.traffic import Traffic, total_traffic
from burnish.distributed.worker_group import Shared
from burnish.loop.media_transfer import MediaStore
from burnish.loop.packed_batch import PackedBatch, num_bytes
from burnish.loop.row_transfer import PackedResult, RoleLayout, RowTransfer
from burnish.training.batch_shard import UpdateShard
from burnish.training.packing import MicroBatchSize
from burnish.training.policy import UpdateResult
from burnish.training.row_sharding import RowSharding
from burnish.training.update import UpdatePlan

READS = frozenset({"response_mask", "advantages", "old_log_probs", "ref_log_prob", "weight"})
CRITIC_READS = frozenset({"response_mask", "returns", "values", "weight"})
PER_NODE = 4


def batch_of(rows: int) -> Batch:
    """What a step of PPO has before its updates."""
    generator = torch.Generator().manual_seed(rows)
    lengths = torch.randint(20, 200, (2, rows), generator=generator)
    prompts = Ragged(torch.randint(0, 150_000, (int(lengths[0].sum()),), generator=generator), lengths[0])
    responses = Ragged(torch.randint(0, 150_000, (int(lengths[1].sum()),), generator=generator), lengths[1])
    batch = Batch(prompt_ids=prompts, responses=responses, weight=torch.arange(rows).float(), uid=["x"] * rows)
    mask = Ragged.like(torch.ones_like(responses.flat), responses)
    version = Ragged.like(torch.zeros_like(responses.flat), responses)
    names = ("rollout_log_probs", "old_log_probs", "ref_log_prob", "values", "token_level_scores", "advantages")
    floats = {
        name: Ragged.like(torch.rand(len(responses.flat), generator=generator), responses)
        for name in (*names, "token_level_rewards", "returns")
    }
    return batch.add(response_mask=mask, weight_version=version, **floats)


class Ranks:
    """A group whose ranks answer in this process: a column is twice the response's tokens. Nothing else is kept."""

    def __init__(self, layouts: list[RoleLayout], reporting: set[int], *, once_per_node: bool) -> None:
        self.layouts = layouts
        self.reporting = reporting
        self.size = len(layouts)
        nodes = [str(rank // PER_NODE) for rank in range(self.size)]
        self.traffic = Traffic(nodes, once_per_node)
        self.rows: Counter[int] = Counter()

    def call(self, method: str, role: str) -> list[RoleLayout]:
        assert method == "role_layout"
        return self.layouts

    def share(self, value, num_bytes: int) -> Shared:
        self.traffic.put += num_bytes
        data = pickle.dumps(value)
        assert len(data) < 1.2 * num_bytes + 5000, "what is counted is what is sent"
        return Shared(id(value), data, num_bytes)

    def submit_shared(self, rank: int, shared: Shared, method: str, role: str, *args):
        self.traffic.sent(shared.id, shared.num_bytes, rank)
        shard = pickle.loads(shared.data).unpack(MediaStore())
        self.rows[rank] += len(shard.batch)
        if rank not in self.reporting:
            return NO_RESULT
        responses = shard.batch["responses"]
        if isinstance(shard, UpdateShard):
            parts = [rows for mini in shard.epochs[0] for rows in mini.micro_batches]
        else:
            parts = shard.micro_batches
        rows = sorted(row for part in parts for row in part)
        columns = {}
        if rows:
            own = responses.select(torch.tensor(rows))
            columns = {"doubled": Ragged.like(own.flat.float() * 2, own)}
        if isinstance(shard, UpdateShard):
            return PackedResult.of(UpdateResult({"count": shard.epochs[0][0].count.tokens}, columns))
        return PackedResult.of(columns)

    def gather(self, futures):
        return futures


def ranks_of(size: int, tensor_size: int = 1, *, once_per_node: bool, reads=READS, **changes) -> Ranks:
    data_size = size // tensor_size
    plan = UpdatePlan(1, 16, MicroBatchSize(tokens=900), 1.0, **changes)
    layouts = [
        RoleLayout(RowSharding(data_size), rank // tensor_size, MicroBatchSize(tokens=900), plan, reads)
        for rank in range(size)
    ]
    reporting = {rank for rank in range(size) if rank % tensor_size == 0}
    return Ranks(layouts, reporting, once_per_node=once_per_node)


def step_of_ppo(batch: Batch, ranks: Ranks, critic: Ranks) -> None:
    """Every call of a step that sends a batch."""
    sampled = batch.keep("prompt_ids", "responses", "uid", "response_mask", "rollout_log_probs", "weight_version")
    for method in ("compute_log_probs", "compute_log_probs"):  # policy and reference
        RowTransfer(ranks, "policy").forward(method, sampled)()
    RowTransfer(critic, "critic").forward("compute_values", sampled)()
    RowTransfer(critic, "critic").update("update", batch, 1)()
    RowTransfer(ranks, "policy").update("update", batch, 1)()


def check_bound(size: int) -> None:
    """A step sends 1.2 B to a machine at most, if that, and a rank gets little more than its part."""
    batch = batch_of(64)
    total = num_bytes(batch.columns)
    for once_per_node in (True, False):
        ranks = ranks_of(size, once_per_node=once_per_node)
        critic = ranks_of(size, once_per_node=once_per_node, reads=CRITIC_READS)
        step_of_ppo(batch, ranks, critic)
        metrics = total_traffic([ranks.traffic, critic.traffic])
        num_nodes = -(-size // PER_NODE)
        assert metrics["perf/transport_put_bytes"] <= 1.2 * total
        assert metrics["perf/transport_node_bytes"] <= 1.2 * total / num_nodes * 1.1
        assert metrics["perf/transport_rank_bytes"] <= total / size
        assert total_traffic([ranks.traffic, critic.traffic])["perf/transport_put_bytes"] == 0


@pytest.mark.parametrize("size", [2, 4])
def test_a_step_sends_each_rank_its_rows(size):
    check_bound(size)


@pytest.mark.long
@pytest.mark.parametrize("size", [8, 16])
def test_a_step_of_many_ranks_sends_each_its_rows(size):
    check_bound(size)


def test_ranks_that_share_rows_share_what_is_sent_to_their_machine():
    batch = batch_of(16)
    ray, sockets = (ranks_of(4, tensor_size=4, once_per_node=once) for once in (True, False))
    for ranks in (ray, sockets):
        RowTransfer(ranks, "policy").update("update", batch, 1)()
        assert ranks.rows == {rank: 16 for rank in range(4)}
    assert ray.traffic.by_node["0"] == ray.traffic.put
    assert sockets.traffic.by_node["0"] == 4 * sockets.traffic.put == 4 * ray.traffic.put


@pytest.mark.parametrize("changes", [{}, {"couples_rows": True}, {"epochs": 2, "shuffle_seed": 3, "mini_rows": 3}])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_results_come_back_in_the_order_of_the_batch(size, changes):
    batch = batch_of(7)
    batch = batch.keep(*(name for name in batch if name != "weight"))
    # The last mini-batch has fewer rows than ranks.
    given = {"epochs": 1, "mini_rows": 3, "micro_batch": MicroBatchSize(rows=1), "grad_clip": 1.0}
    plan = UpdatePlan(**given | changes)
    ranks = ranks_of(size, once_per_node=True)
    ranks.layouts = [RoleLayout(RowSharding(size), rank, MicroBatchSize(rows=1), plan, READS) for rank in range(size)]
    expected = batch["responses"].flat.float() * 2
    transfer = RowTransfer(ranks, "policy")
    result = transfer.update("update", batch, 1)()
    columns, metrics = result.columns, result.metrics
    assert torch.equal(columns["doubled"].flat, expected)
    assert torch.equal(columns["doubled"].lengths, batch["responses"].lengths)
    assert torch.equal(transfer.forward("compute", batch)()["doubled"].flat, expected)
    first = plan.mini_batches(7, 1, 0)[0]
    assert metrics == {"count": float(batch["responses"].lengths[first].sum())}
    if changes.get("couples_rows"):
        assert ranks.traffic.by_node["0"] < 1.2 * num_bytes(batch.columns), "one object for all"


def test_a_packed_batch_is_the_same_batch():
    columns = {
        "ids": Ragged.of([[1, 2**40], [], [-5]], torch.int64),
        "mask": Ragged.of([[1, 0], [], [1]], torch.int64),
        "half": Ragged(torch.tensor([0.1, -2.5, 3e30], dtype=torch.bfloat16), torch.tensor([2, 0, 1])),
        "flags": torch.tensor([True, False, True]),
        "doubles": torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),
        "states": Ragged(torch.rand(3, 4, 2), torch.tensor([1, 1, 1])),
        "media": [(), ("picture",), ()],
    }
    packed = PackedBatch.of(Batch(**columns))
    found = pickle.loads(pickle.dumps(packed)).unpack()
    assert list(found) == list(columns) and len(found) == 3
    for name, column in columns.items():
        if isinstance(column, Ragged):
            assert torch.equal(found[name].lengths, column.lengths)
            assert found[name].flat.dtype == column.flat.dtype and torch.equal(found[name].flat, column.flat)
        elif isinstance(column, torch.Tensor):
            assert found[name].dtype == column.dtype and torch.equal(found[name], column)
        else:
            assert found[name] == column
    assert packed.columns["mask"].values.dtype == np.int8 and packed.columns["ids"].values.dtype == np.int64
    assert len(packed.lengths) == 2, "equal lengths are sent once"
