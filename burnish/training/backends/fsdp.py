"""FsdpBackend: weights sharded over ranks by FSDP2, with tensor and context parallelism inside."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel

from burnish.errors import UserError, nearest
from burnish.models.routing import num_experts
from burnish.models.wide import embed_in
from burnish.training.backend import FsdpOptions
from burnish.training.backends.module import ModuleBackend
from burnish.training.expert_parallel import apply_ep, fsdp_dimension, holders_of
from burnish.training.offload import Offloaded
from burnish.training.parallel import ParallelContext
from burnish.training.tensor_parallel import apply_tp


class FsdpBackend(ModuleBackend):
    """Every rank runs all layers on its own rows; FSDP2 gathers each layer's weights for it."""

    shards_tower = True
    fsdp_root: FSDPRoot
    _num_users = 0  # `on_device` contexts that are open

    def _prepare(self) -> Offloaded | None:
        if self.weight_dtype != self.compute_dtype:
            embed_in(self.model, self.weight_dtype)
        self.fsdp_root = apply_fsdp(self.model, self.parallel, self.compute_dtype, self.options.fsdp)
        return ShardOffload(self.fsdp_root, self.device) if self.options.offload else None

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        with super().on_device():
            self._num_users += 1
            try:
                yield
            finally:
                self._num_users -= 1
                if self._num_users == 0:
                    # A forward pass leaves the root unit gathered (and all units, without reshard_after_forward), and
                    # updates and checkpoints need the shards.
                    self.fsdp_root.reshard_units()

    def run_unsharded(self, work: Callable[[], Any]) -> Any:
        return self.fsdp_root(work)


class FSDPRoot(nn.Module):
    """The model's root FSDP unit. Its forward runs any function; inside, embedding and head are gathered.

    The fused head multiplies by the head's weight outside every module of the model, where FSDP, which gathers weights
    when a module is called, would leave them sharded.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()

    def reshard_units(self) -> None:
        """Free what is gathered of any unit."""
        for module in self.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


class ShardOffload(Offloaded):
    """Shards wait in CPU memory between phases."""

    def __init__(self, root: FSDPRoot, device: torch.device) -> None:
        self.root = root
        self.device = device

    def load(self) -> None:
        self.root.to(self.device)

    def unload(self) -> None:
        self.root.reshard_units()
        self.root.to("cpu")


def apply_fsdp(
    model: PreTrainedModel, parallel: ParallelContext, compute_dtype: torch.dtype, options: FsdpOptions
) -> FSDPRoot:
    """Shard the weights over the mesh, one FSDP unit per layer.

    Tensor parallelism comes first: FSDP shards what is left on a tensor rank.
    """
    mesh = parallel.mesh
    assert mesh is not None
    if parallel.tensor is not None:
        apply_tp(model, parallel.tensor, options.tensor_key)
    param_dtype = next(model.parameters()).dtype
    policy = MixedPrecisionPolicy(
        param_dtype=None if compute_dtype == param_dtype else compute_dtype,
        reduce_dtype=options.reduce_dtype,
        cast_forward_inputs=False,  # of layers: it would round the residual stream. Autocast casts those of products
    )
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if options.offload else OffloadPolicy()
    arguments: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "offload_policy": offload}
    root = FSDPRoot(model)
    if parallel.expert_holders is not None and (parallel.experts is not None or num_experts(model.config)):
        _shard_experts(model, parallel, options, arguments)
    units = fsdp_units(model, options)
    for unit in units:
        fully_shard(unit, reshard_after_forward=options.reshard_after_forward, **arguments)
    fully_shard(root, reshard_after_forward=False, **arguments)
    if options.prefetch:
        for unit, following in itertools.pairwise(units):
            unit.set_modules_to_forward_prefetch([following])
    return root


def _shard_experts(
    model: PreTrainedModel, parallel: ParallelContext, options: FsdpOptions, arguments: dict[str, Any]
) -> None:
    """Each mixture's experts are a unit over the ranks that hold the same ones."""
    holders, mesh = holders_of(parallel), parallel.expert_mesh or parallel.mesh
    assert holders is not None and mesh is not None
    num_shards = mesh.size(mesh.ndim - 1)
    for module in apply_ep(model, holders, options.expert_key):
        fully_shard(
            module,
            reshard_after_forward=options.reshard_after_forward,
            shard_placement_fn=lambda weight: fsdp_dimension(weight, num_shards),
            **{**arguments, "mesh": mesh},
        )


def fsdp_units(model: PreTrainedModel, options: FsdpOptions) -> list[Any]:
    """The modules to shard as one, in model order: by size, by class, or the model's own layers."""
    if options.min_num_params > 0:
        return _modules_by_size(model, options.min_num_params)
    classes = options.layer_classes or tuple(sorted(model._no_split_modules or ()))
    units = [module for module in model.modules() if type(module).__name__ in classes]
    if options.layer_classes:
        _check_layer_classes(model, options)
    return units


def _check_layer_classes(model: PreTrainedModel, options: FsdpOptions) -> None:
    classes = {type(module).__name__ for module in model.modules()}
    for name in options.layer_classes:
        if name not in classes:
            closest = nearest(name, classes) or next(iter(sorted(model._no_split_modules or ())), None)
            key = f"{options.key}.wrap_policy.transformer_layer_cls_to_wrap"
            raise UserError(
                f"{type(model).__name__} has no layer of class {name}",
                key=key,
                value=list(options.layer_classes),
                hint=f"{key}=[{closest}]" if closest else None,
            )


def _modules_by_size(model: PreTrainedModel, min_num_params: int) -> list[Any]:
    """The smallest modules with that many parameters, none inside another. A ModuleList is never called: no unit."""
    units: list[Any] = []

    def visit(module: nn.Module) -> bool:
        """Whether the module is a unit or contains one."""
        if any([visit(child) for child in module.children()]):
            return True
        if isinstance(module, nn.ModuleList) or sum(p.numel() for p in module.parameters()) < min_num_params:
            return False
        units.append(module)
        return True

    visit(model)
    # Embedding and head may be tied, and the root unit needs the head: both stay with the root.
    ends = {id(model.get_input_embeddings()), id(model.get_output_embeddings())}
    return [module for module in units if id(module) not in ends and module is not model]
