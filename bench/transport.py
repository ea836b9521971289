"""Bytes that one step of PPO sends between the controller and its ranks, counted; and what that is at larger sizes.

    python bench/transport.py            # 2 to 16 ranks, 8 per machine; about a minute, no GPU
    python bench/transport.py --smoke

The controller cuts, packs and counts as in a run; the ranks only unpack and check their rows, so none is started. A
step has five calls with a batch: old log-probs, reference, values, the critic's update and the policy's. Every row must
come back once and in order. B is the batch of the last call, with all its columns.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from typing import Any

import tables
import torch

from burnish.batch import Batch, Ragged
from burnish.distributed.channel import NO_RESULT
from burnish.distributed.traffic import Traffic
from burnish.distributed.worker_group import Shared
from burnish.loop.media_transfer import MediaStore
from burnish.loop.packed_batch import num_bytes
from burnish.loop.row_transfer import PackedResult, RoleLayout, RowTransfer
from burnish.training.batch_shard import UpdateShard
from burnish.training.packing import MicroBatchSize
from burnish.training.row_sharding import RowSharding
from burnish.training.update import UpdatePlan

MASKS = ("response_mask", "weight_version")  # int64, along the response
FLOATS = ("rollout_log_probs", "old_log_probs", "ref_log_prob", "values", "token_level_scores", "token_level_rewards",
          "advantages", "returns")  # fmt: skip
POLICY_READS = frozenset({"response_mask", "advantages", "old_log_probs", "ref_log_prob"})
CRITIC_READS = frozenset({"response_mask", "returns", "values"})
SAMPLED = ("prompt_ids", "responses", "response_mask", "weight_version", "rollout_log_probs", "token_level_scores")
PER_NODE = 8
COUNTED = (2, 4, 8, 16)
EXTRAPOLATED = (64, 256, 1024)
COLUMNS = {
    "ranks": "{ranks}",
    "machines": "{machines}",
    "whole batch to every rank, per machine": "{before_node_mb:,.0f} MB",
    "sent by the controller": "{put_mb:,.0f} MB",
    "largest machine": "{node_mb:,.1f} MB",
    "largest rank": "{rank_mb:,.1f} MB",
    "largest machine / B": "{node_share:.3f}",
    "": "{how}",
}


def batch_of(rows: int, prompt: int, response: int) -> Batch:
    """Lengths are uniform from a tenth of the longest."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(prompt // 10, prompt + 1, (rows,), generator=generator)
    lengths = torch.randint(response // 10, response + 1, (rows,), generator=generator)
    size = int(lengths.sum())
    tokens = Ragged(torch.randint(0, 151_936, (size,), generator=generator), lengths)
    masks = {name: Ragged.like(torch.ones(size, dtype=torch.int64), tokens) for name in MASKS}
    floats = {name: Ragged.like(torch.rand(size, generator=generator), tokens) for name in FLOATS}
    prompt_ids = Ragged(torch.randint(0, 151_936, (int(prompts.sum()),), generator=generator), prompts)
    return Batch(prompt_ids=prompt_ids, responses=tokens, **masks, **floats)


class CountedRanks:
    """Ranks that return their responses, in this process."""

    def __init__(self, size: int, mini_rows: int, reads: frozenset[str]) -> None:
        plan = UpdatePlan(1, mini_rows, MicroBatchSize(tokens=16_384), 1.0)
        self.size = size
        self.layouts = [
            RoleLayout(RowSharding(size), rank, MicroBatchSize(tokens=16_384), plan, reads) for rank in range(size)
        ]
        self.traffic = Traffic([str(rank // PER_NODE) for rank in range(size)], once_per_node=True)
        self.pickled = 0

    def call(self, method: str, role: str) -> list[RoleLayout]:
        return self.layouts

    def share(self, value: Any, size: int) -> Shared:
        data = pickle.dumps(value, protocol=5)
        self.pickled += len(data)
        self.traffic.put += size
        return Shared(id(value), data, size)

    def submit_shared(self, rank: int, shared: Shared, method: str, role: str, *args: Any) -> Any:
        self.traffic.sent(shared.id, shared.num_bytes, rank)
        shard = pickle.loads(shared.data).unpack(MediaStore())
        parts = shard.epochs[0] if isinstance(shard, UpdateShard) else [shard]
        rows = sorted(row for part in parts for micro_batch in part.micro_batches for row in micro_batch)
        return PackedResult.of({"read": shard.batch["responses"].select(torch.tensor(rows))} if rows else {})

    def gather(self, results: list[Any]) -> list[Any]:
        assert NO_RESULT not in results
        return results


def count(batch: Batch, size: int) -> dict[str, Any]:
    """One step at this number of ranks."""
    sampled = batch.keep(*SAMPLED)
    policy, critic = (CountedRanks(size, len(batch) // 4, reads) for reads in (POLICY_READS, CRITIC_READS))
    found = [
        RowTransfer(policy, "policy").forward("compute_log_probs", sampled)(),
        RowTransfer(policy, "reference").forward("compute_log_probs", sampled)(),
        RowTransfer(critic, "critic").forward("compute_values", sampled)(),
        RowTransfer(critic, "critic").update("update", batch, 1)().columns,
        RowTransfer(policy, "policy").update("update", batch, 1)().columns,
    ]
    for columns in found:
        if not torch.equal(columns["read"].flat, batch["responses"].flat):
            raise AssertionError("rows came back in another order")
    traffics = (policy.traffic, critic.traffic)
    put = sum(traffic.put for traffic in traffics)
    pickled = policy.pickled + critic.pickled
    if not put <= pickled <= 1.05 * put + 2**20:
        raise AssertionError(f"{pickled} bytes were pickled, but {put} counted")
    nodes = {node: sum(traffic.by_node[node] for traffic in traffics) for node in traffics[0].nodes}
    ranks = {rank: sum(traffic.by_rank[rank] for traffic in traffics) for rank in range(size)}
    return row(size, batch, put, max(nodes.values()), max(ranks.values()), "counted")


def row(size: int, batch: Batch, put: float, node: float, rank: float, how: str) -> dict[str, Any]:
    total, sampled = num_bytes(batch.columns), num_bytes(batch.keep(*SAMPLED).columns)
    machines = -(-size // PER_NODE)
    if node > 1.2 * total:
        raise AssertionError(f"{size} ranks: a machine fetched {node} bytes of a batch of {total}")
    return {
        "ranks": size,
        "machines": machines,
        "batch_mb": total / 1e6,
        "before_node_mb": (3 * sampled + 2 * total) * min(size, PER_NODE) / 1e6,
        "put_mb": put / 1e6,
        "node_mb": node / 1e6,
        "rank_mb": rank / 1e6,
        "node_share": node / total,
        "how": how,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a tiny batch, for tests")
    tables.add_option(parser)
    args = parser.parse_args()
    batch = batch_of(64, 40, 80) if args.smoke else batch_of(4096, 1024, 2048)
    total = num_bytes(batch.columns)
    rows = [count(batch, size) for size in COUNTED]
    last = rows[-1]
    # What is sent does not depend on the number of ranks; a rank's part is the last counted one's, divided further.
    for size in EXTRAPOLATED:
        put, rank = last["put_mb"] * 1e6, last["rank_mb"] * 1e6 * last["ranks"] / size
        rows.append(row(size, batch, put, rank * PER_NODE, rank, "extrapolated"))
    tokens = sum(int(batch[name].lengths.sum()) for name in ("prompt_ids", "responses"))
    sys.stdout.write(
        f"{len(batch)} rows, {tokens:,} tokens, B = {total / 1e6:,.0f} MB\n\n{tables.table(COLUMNS, rows)}\n"
    )
    tables.save(args, "transport", COLUMNS, rows, full=not args.smoke, tokens=tokens, batch_rows=len(batch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
