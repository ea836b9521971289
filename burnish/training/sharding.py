"""FSDP2: the weights of one role spread over ranks, gathered layer by layer where they are needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel

from burnish.errors import UserError, nearest
from burnish.training.offload import Parked
from burnish.training.parallel import ParallelContext
from burnish.training.tensor_parallel import parallelize


@dataclass(frozen=True)
class Sharding:
    """fsdp_config's keys about sharding. `key` is where they stand."""

    reshard_after_forward: bool | int = True
    offload: bool = False  # weights, gradients and optimizer state live in CPU memory
    prefetch: bool = False  # gather the next layer while this one computes
    reduce_dtype: torch.dtype = torch.float32
    min_num_params: int = 0
    layer_classes: tuple[str, ...] = ()
    key: str = "actor_rollout_ref.actor.fsdp_config"
    tensor_key: str = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size"


PLAIN = OffloadPolicy()


class FSDPRoot(nn.Module):
    """A model's outermost unit. Its forward does any piece of work; inside, embedding and head are whole.

    The fused head multiplies by the head's weight outside every module of the model: FSDP, which gathers weights where
    a module is called, would not know.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


class ShardOffload(Parked):
    """The shards wait in CPU memory between phases."""

    def __init__(self, shell: FSDPRoot, device: torch.device) -> None:
        self.fsdp_root = shell
        self.device = device

    def fetch(self) -> None:
        self.fsdp_root.to(self.device)

    def park(self) -> None:
        """What was gathered is given up first."""
        self.fsdp_root.reshard()
        self.fsdp_root.to("cpu")


def shard(
    model: PreTrainedModel, parallel: ParallelContext, compute_dtype: torch.dtype, sharding: Sharding
) -> FSDPRoot:
    """Spread the weights over the place's mesh; each unit is gathered and freed as one.

    Tensor ranks take their parts of the layers first: what is sharded is what a rank has left.
    """
    if parallel.tensor is not None:
        parallelize(model, parallel.tensor, sharding.tensor_key)
    kept = next(model.parameters()).dtype
    policy = MixedPrecisionPolicy(
        param_dtype=None if compute_dtype == kept else compute_dtype, reduce_dtype=sharding.reduce_dtype
    )
    how: dict[str, Any] = {
        "mesh": parallel.mesh,
        "mp_policy": policy,
        "offload_policy": CPUOffloadPolicy(pin_memory=parallel.mesh.device_type == "cuda")
        if sharding.offload
        else PLAIN,
    }
    shell = FSDPRoot(model)
    units = unit_modules(model, sharding)
    for unit in units:
        fully_shard(unit, reshard_after_forward=sharding.reshard_after_forward, **how)
    fully_shard(shell, reshard_after_forward=False, **how)
    if sharding.prefetch:
        for unit, following in itertools.pairwise(units):
            unit.set_modules_to_forward_prefetch([following])
    return shell


def unit_modules(model: PreTrainedModel, sharding: Sharding) -> list[FSDPModule]:
    """The modules that become units, in the order of the model: by class, by size, or the model's own layers."""
    if sharding.min_num_params > 0:
        return _by_size(model, sharding.min_num_params)
    asked = sharding.layer_classes or tuple(sorted(model._no_split_modules or ()))
    units = [module for module in model.modules() if type(module).__name__ in asked]
    if sharding.layer_classes:
        _check_classes(model, sharding)
    return units


def _check_classes(model: PreTrainedModel, sharding: Sharding) -> None:
    there = {type(module).__name__ for module in model.modules()}
    for name in sharding.layer_classes:
        if name not in there:
            meant = nearest(name, there) or next(iter(sorted(model._no_split_modules or ())), None)
            raise UserError(
                f"{type(model).__name__} has no layer of the class {name}",
                key=f"{sharding.key}.wrap_policy.transformer_layer_cls_to_wrap",
                value=list(sharding.layer_classes),
                hint=f"{sharding.key}.wrap_policy.transformer_layer_cls_to_wrap=[{meant}]" if meant else None,
            )


def _by_size(model: nn.Module, least: int) -> list[Any]:
    """The smallest modules with so many parameters: none of them holds another. Lists of modules are never called."""
    found: list[Any] = []

    def visit(module: nn.Module) -> bool:
        inside = [visit(child) for child in module.children()]
        if any(inside):
            return True
        if isinstance(module, nn.ModuleList) or sum(p.numel() for p in module.parameters()) < least:
            return False
        found.append(module)
        return True

    visit(model)
    # The embedding may be tied to the head, which the outermost unit needs: both stay with that.
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    return [module for module in found if id(module) not in ends and module is not model]
