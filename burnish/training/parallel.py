"""ParallelContext: where this process stands among those that train one role together.

Ranks differ in three ways: by the rows they see (data), by the part of each row (sequence), and by the part of each
matrix (tensor). Weights are sharded over data and sequence ranks alike, because both see all of every weight.

    rank = (data rank x sequence size + sequence rank) x tensor size + tensor rank
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._pytree import tree_map_only

from burnish.algos.batches import balanced_partitions, token_budget_batches, workload

if TYPE_CHECKING:
    from burnish.training.packing import Cut

REPLICATE, SHARD, TENSOR = "replicate", "shard", "tensor"


@dataclass(frozen=True)
class ParallelContext:
    """One process is SINGLE_PROCESS: it has no mesh, and all rows are its own."""

    data_rank: int = 0
    data_size: int = 1
    mesh: DeviceMesh | None = None  # that shards the weights: (replicate, shard) or (shard,)
    sequence: dist.ProcessGroup | None = None  # those that see the same rows, each a part of them
    tensor: DeviceMesh | None = None  # those that hold parts of the same matrices
    saving: dist.ProcessGroup | None = None  # for checkpoints, which are written while others compute
    balance: bool = True  # rows are dealt out by what they cost, else as they come

    @property
    def alone(self) -> bool:
        return self.mesh is None

    @property
    def first(self) -> bool:
        """Does this process speak for all?"""
        return self.alone or dist.get_rank() == 0

    @property
    def averaged(self) -> int:
        """Over how many ranks FSDP averages a gradient."""
        return 1 if self.mesh is None else self.mesh.size()

    def shard_batch(self, lengths: Tensor, cut: Cut) -> list[list[int]]:
        """This rank's micro-batches. All ranks make equally many, some perhaps empty: they compute in step."""
        cut = cut.shared(1 if self.sequence is None else self.sequence.size())
        if self.data_size == 1:
            return cut.micro_batches(lengths)
        parts = self._parts(lengths.tolist())
        cuts = [_cut_part(part, lengths, cut) for part in parts]
        most = max(map(len, cuts))
        if cut.tokens is not None:  # rather smaller micro-batches than idle ranks
            cuts = [_cut_part(part, lengths, cut, at_least=most) for part in parts]
            most = max(map(len, cuts))
        own = cuts[self.data_rank]
        return own + [[]] * (most - len(own))

    def _parts(self, lengths: Sequence[int]) -> list[list[int]]:
        size = min(self.data_size, len(lengths))
        if self.balance:
            parts = balanced_partitions([workload(length) for length in lengths], size)
        else:
            each = -(-len(lengths) // size)
            parts = [list(range(start, min(start + each, len(lengths)))) for start in range(0, each * size, each)]
        return parts + [[]] * (self.data_size - len(parts))

    def sum(self, numbers: Tensor) -> Tensor:
        """Over all rows, of numbers that each data rank has of its own."""
        if self.alone:
            return numbers
        total = numbers.clone()
        dist.all_reduce(total)
        return total * (self.data_size / dist.get_world_size())

    def collect(self, own: list[Any]) -> list[Any]:
        """The lists of all data ranks as one, on every rank."""
        if self.data_size == 1:
            return own
        own = tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), own)
        everybody: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, own)
        # Ranks that share rows have equal lists: the first of each counts.
        return [entry for part in everybody[:: dist.get_world_size() // self.data_size] for entry in part]


SINGLE_PROCESS = ParallelContext()
IDLE = [0]  # a rank without rows of its own computes this one in step with the others, and forgets it


def build_mesh(
    device: torch.device, *, fsdp_size: int = -1, sequence_size: int = 1, tensor_size: int = 1, balance: bool = True
) -> ParallelContext:
    """Called by all ranks together, with the same sizes. `fsdp_size` ranks share one copy of the weights; -1 is all."""
    world, rank = dist.get_world_size(), dist.get_rank()
    sharding = world // tensor_size
    shard = sharding if fsdp_size <= 0 or fsdp_size >= sharding else fsdp_size
    mesh = init_device_mesh(
        device.type, (sharding // shard, shard, tensor_size), mesh_dim_names=(REPLICATE, SHARD, TENSOR)
    )
    group = None
    for start in range(0, world, sequence_size * tensor_size):
        for tensor_rank in range(tensor_size):
            members = [start + tensor_rank + tensor_size * number for number in range(sequence_size)]
            made = dist.new_group(members) if sequence_size > 1 else None
            group = made if rank in members else group
    return ParallelContext(
        data_rank=rank // (sequence_size * tensor_size),
        data_size=world // (sequence_size * tensor_size),
        mesh=mesh[SHARD] if shard == sharding else mesh[REPLICATE, SHARD],
        sequence=group,
        tensor=mesh[TENSOR] if tensor_size > 1 else None,
        saving=dist.new_group(backend="gloo"),
        balance=balance,
    )


def _cut_part(part: list[int], lengths: Tensor, cut: Cut, at_least: int = 1) -> list[list[int]]:
    if not part:
        return []
    own = lengths[part]
    if cut.tokens is not None:
        found = token_budget_batches(own.tolist(), cut.tokens, at_least=at_least)
    else:
        found = cut.micro_batches(own)
    return [[part[row] for row in rows] for rows in found]
