"""ParallelContext: this rank's position among the ranks that train one role, and the collectives over them.

Ranks differ in the rows they see (data), in the part of each row (sequence), and in the part of each matrix (tensor);
a pipeline backend adds the layers (pipeline). FSDP shards weights over data and sequence ranks alike, because both use
all of every weight.

    rank = ((stage x data size + data rank) x sequence size + sequence rank) x tensor size + tensor rank
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._pytree import tree_map_only

from burnish.training.row_sharding import RowSharding
from burnish.training.stages import ONE_STAGE, StageOptions

if TYPE_CHECKING:
    from burnish.batch import Batch
    from burnish.training.packing import MicroBatchSize

Item = TypeVar("Item")
REPLICATE, SHARD, TENSOR = "replicate", "shard", "tensor"
PIPELINE, EXPERT_SHARD, EXPERT = "pipeline", "expert shard", "expert"


@dataclass(frozen=True)
class ParallelContext:
    """This rank's position in the device mesh. SINGLE_PROCESS has no mesh and owns all rows."""

    data_rank: int = 0
    data_size: int = 1
    mesh: DeviceMesh | None = None  # over which FSDP shards weights: (replicate, shard) or (shard,)
    sequence: dist.ProcessGroup | None = None  # ranks that see the same rows, each a part of them
    tensor: DeviceMesh | None = None  # ranks that hold parts of the same matrices
    experts: DeviceMesh | None = None  # ranks that hold different experts
    expert_holders: DeviceMesh | None = None  # these, tensor ranks, or both: (expert, tensor)
    expert_mesh: DeviceMesh | None = None  # over which FSDP shards experts: (replicate, shard) or (shard,)
    pipeline_rank: int = 0
    pipeline_size: int = 1
    pipeline: dist.ProcessGroup | None = None  # the ranks at this position of every stage, in order
    links: tuple[dist.ProcessGroup, ...] = ()  # of a GPU's pipeline: one per pair of stages and direction
    stages: StageOptions = ONE_STAGE
    checkpoint_group: dist.ProcessGroup | None = None  # separate, so that async saves do not block training collectives
    balance: bool = True  # shard rows by estimated cost instead of by order
    backend: str = "single"  # the entry of BACKENDS that runs models on these ranks

    @property
    def is_distributed(self) -> bool:
        return self.mesh is not None

    @property
    def is_main(self) -> bool:
        """Whether this rank writes what exists once for all ranks."""
        return not self.is_distributed or dist.get_rank() == 0

    @property
    def has_results(self) -> bool:
        """Whether this rank runs the last stage, where the model's outputs are."""
        return self.pipeline_rank == self.pipeline_size - 1

    @property
    def reports_results(self) -> bool:
        """Whether this rank returns results to the controller: one of the ranks that have them."""
        return self.reports_shard and self.data_rank == 0

    @property
    def reports_shard(self) -> bool:
        """Whether this rank returns the results of its data rank's rows."""
        return self.has_results and self.sequence_rank == self.tensor_rank == 0

    @property
    def sequence_rank(self) -> int:
        return 0 if self.sequence is None else self.sequence.rank()

    @property
    def sequence_size(self) -> int:
        return 1 if self.sequence is None else self.sequence.size()

    @property
    def tensor_rank(self) -> int:
        return 0 if self.tensor is None else self.tensor.get_local_rank()

    @property
    def tensor_size(self) -> int:
        return 1 if self.tensor is None else self.tensor.size()

    @property
    def grad_average_size(self) -> int:
        """The number of ranks over which FSDP averages a gradient."""
        return 1 if self.mesh is None else self.mesh.size()

    @property
    def groups(self) -> list[dist.ProcessGroup]:
        """All process groups of this rank, in the order of their creation."""
        mesh = [] if self.mesh is None else self.mesh.get_all_groups()
        tensor = [] if self.tensor is None else self.tensor.get_all_groups()
        others = [self.sequence, self.checkpoint_group, self.pipeline, *self.links]
        experts = [] if self.expert_holders is None else self.expert_holders.get_all_groups()
        if self.expert_mesh is not None:
            experts += self.expert_mesh.get_all_groups()
        return [*mesh, *tensor, *experts, *(group for group in others if group is not None)]

    @property
    def sharding(self) -> RowSharding:
        return RowSharding(self.data_size, self.sequence_size, self.balance)

    def shard_batch(self, batch: Batch, size: MicroBatchSize) -> list[list[int]]:
        """Row numbers of each of this rank's micro-batches; some may be empty (RowSharding)."""
        return self.sharding.micro_batches(size.sizes(batch), size)[self.data_rank]

    def sum(self, numbers: Tensor) -> Tensor:
        """Sum over data ranks; ranks that see the same rows must pass the same numbers."""
        if not self.is_distributed:
            return numbers
        total = numbers.clone()
        dist.all_reduce(total)
        return total * (self.data_size / dist.get_world_size())

    def gather_lists(self, items: list[Item]) -> list[Item]:
        """Concatenate the lists of all data ranks, on every rank. Only ranks that have results contribute."""
        if self.data_size == self.pipeline_size == 1:
            return items
        items = tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), items)
        gathered: list[tuple[int, list[Item]] | None] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, (self.data_rank, items) if self.has_results else None)
        # Sequence and tensor ranks have equal lists: take one per data rank.
        by_data_rank = dict(entry for entry in reversed(gathered) if entry is not None)
        return [item for rank in range(self.data_size) for item in by_data_rank[rank]]


SINGLE_PROCESS = ParallelContext()


def build_mesh(
    device: torch.device,
    *,
    fsdp_size: int = -1,
    sequence_size: int = 1,
    tensor_size: int = 1,
    expert_size: int = 1,
    stages: StageOptions = ONE_STAGE,
    balance: bool = True,
) -> ParallelContext:
    """Called by all ranks together, with the same sizes. `fsdp_size` ranks share one copy of the weights; -1 is all."""
    rank = dist.get_rank()
    stage_size = dist.get_world_size() // stages.size
    num_fsdp_ranks = stage_size // tensor_size
    shard_size = num_fsdp_ranks if fsdp_size <= 0 or fsdp_size >= num_fsdp_ranks else fsdp_size
    num_replicas = num_fsdp_ranks // shard_size
    mesh = _mesh(device, stages, {REPLICATE: num_replicas, SHARD: shard_size, TENSOR: tensor_size})
    sequence = None
    for start in range(0, dist.get_world_size(), sequence_size * tensor_size):
        for tensor_rank in range(tensor_size):
            members = [start + tensor_rank + tensor_size * number for number in range(sequence_size)]
            group = _new_group(members) if sequence_size > 1 else None
            sequence = group if rank in members else sequence
    expert_mesh = None
    if expert_size > 1:
        # A mesh of its own: FSDP shards experts over fewer ranks, as other ranks hold other experts.
        sizes = {REPLICATE: num_replicas, EXPERT_SHARD: shard_size // expert_size, EXPERT: expert_size}
        expert_mesh = _mesh(device, stages, {**sizes, TENSOR: tensor_size})
    pipeline = mesh[PIPELINE].get_group() if stages.size > 1 else None
    holders = mesh[TENSOR] if tensor_size > 1 else None
    if expert_mesh is not None:
        holders = expert_mesh[EXPERT] if holders is None else expert_mesh[EXPERT, TENSOR]
    return ParallelContext(
        data_rank=rank % stage_size // (sequence_size * tensor_size),
        data_size=stage_size // (sequence_size * tensor_size),
        mesh=mesh[REPLICATE, SHARD] if num_replicas > 1 else mesh[SHARD],
        sequence=sequence,
        tensor=mesh[TENSOR] if tensor_size > 1 else None,
        experts=None if expert_mesh is None else expert_mesh[EXPERT],
        expert_holders=holders,
        expert_mesh=None if expert_mesh is None else _expert_shards(expert_mesh, num_replicas),
        pipeline_rank=rank // stage_size,
        pipeline_size=stages.size,
        pipeline=pipeline,
        links=_links(pipeline, stages, device),
        stages=stages,
        checkpoint_group=_new_group(backend="gloo"),
        balance=balance,
        backend="fsdp" if stages.size == 1 else "pipeline",
    )


def _mesh(device: torch.device, stages: StageOptions, sizes: dict[str, int]) -> DeviceMesh:
    """The mesh of all ranks, stages outermost."""
    sizes = sizes if stages.size == 1 else {PIPELINE: stages.size, **sizes}
    return init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _expert_shards(mesh: DeviceMesh, num_replicas: int) -> DeviceMesh:
    return mesh[REPLICATE, EXPERT_SHARD] if num_replicas > 1 else mesh[EXPERT_SHARD]


def _links(
    pipeline: dist.ProcessGroup | None, stages: StageOptions, device: torch.device
) -> tuple[dist.ProcessGroup, ...]:
    """On GPUs, a group for each pair of neighboring stages and each direction.

    NCCL runs the messages of a group in the order in which they are issued, and two ranks issue those of different
    links in different orders. Gloo tells them apart by their tags.
    """
    if pipeline is None or device.type == "cpu":
        return ()
    members = dist.get_process_group_ranks(pipeline)
    num_links = 2 * (stages.size * stages.virtual - 1)
    groups = [dist.new_group(members, use_local_synchronization=True) for _ in range(num_links)]
    return tuple(cast(dist.ProcessGroup, group) for group in groups)


def _new_group(ranks: list[int] | None = None, backend: str | None = None) -> dist.ProcessGroup:
    return cast(dist.ProcessGroup, dist.new_group(ranks, backend=backend))
