"""The optimizer of one role: AdamW or SGD on sharded weights, gradient clipping, skipped updates, offloaded state."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm
from torch.optim.sgd import sgd

from burnish.config.optim import OptimConfig, optimizer_arguments
from burnish.training.dtensor import local_part
from burnish.training.ema import MovingAverage
from burnish.training.learning_rate import LearningRate
from burnish.training.loss_scale import LossScale
from burnish.training.offload import CPU, TensorOffload, updated_on_cpu


@dataclass(frozen=True)
class OptimizerOptions:
    """Where the optimizer's state lives, and whether the loss is scaled."""

    device: torch.device | None = None  # of the updates; None is where the weights are
    offload: bool = False  # the state waits in CPU memory between phases
    on_cpu: bool = False  # the state never leaves CPU memory, and updates run there
    scale_loss: bool = False  # for float16 gradients


DEFAULT_OPTIONS = OptimizerOptions()


class AdamW(torch.optim.AdamW):
    """torch's AdamW on this rank's parts of sharded weights.

    AdamW works element by element, so ranks need not communicate. As DTensors, weights on different meshes could not
    go into one fused update.
    """

    found_inf: Tensor  # nonzero skips the update

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        """Fills the lists with weights, gradients and state of the group; here with this rank's parts of them."""
        is_complex = super()._init_group(group, *lists)
        for tensors in lists:
            tensors[:] = [local_part(tensor) for tensor in tensors]
        return is_complex


class SGD(torch.optim.SGD):
    """torch's SGD on this rank's parts of sharded weights, as one fused update."""

    found_inf: Tensor | None = None  # nonzero skips the update

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            momenta = [self.state[parameter].get("momentum_buffer") for parameter in parameters]
            names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
            sgd(
                [local_part(parameter) for parameter in parameters],
                [local_part(parameter.grad) for parameter in parameters],
                [None if momentum is None else local_part(momentum) for momentum in momenta],
                fused=True,
                found_inf=self.found_inf,
                **{name: group[name] for name in names},
            )


def make_adamw(groups: list[dict[str, Any]], config: OptimConfig) -> AdamW:
    # `fused` is one kernel for the whole update, also on the CPU.
    betas = (config.betas[0], config.betas[1])
    return AdamW(groups, lr=config.lr, betas=betas, fused=True, **optimizer_arguments(config))


def make_sgd(groups: list[dict[str, Any]], config: OptimConfig) -> SGD:
    return SGD(groups, lr=config.lr, **optimizer_arguments(config))


# The state is made with the optimizer: else DCP makes it at the first save by an update, which AdamW would count.


def adamw_state(parameter: nn.Parameter, device: torch.device, optimizer: Any) -> dict[str, Tensor]:
    return {
        "step": torch.zeros((), dtype=torch.float32, device=device),
        "exp_avg": torch.zeros_like(parameter, device=device),
        "exp_avg_sq": torch.zeros_like(parameter, device=device),
    }


def sgd_state(parameter: nn.Parameter, device: torch.device, optimizer: Any) -> dict[str, Tensor]:
    has_momentum = optimizer.defaults["momentum"] > 0
    return {"momentum_buffer": torch.zeros_like(parameter, device=device)} if has_momentum else {}


# optim.optimizer -> torch's optimizer of parameter groups, and the initial state of one parameter
OPTIMIZERS = {"adam": (make_adamw, adamw_state), "sgd": (make_sgd, sgd_state)}


class Optimizer:
    """torch's optimizer with a learning rate that depends only on the number of steps or updates so far."""

    def __init__(
        self,
        module: nn.Module,
        config: OptimConfig,
        total_steps: int,
        updates_per_step: int,
        options: OptimizerOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.config = config
        self.on_cpu = options.on_cpu
        self.scale = LossScale(options.scale_loss)
        self.offload = None
        if options.offload:
            assert options.device is not None
            self.offload = TensorOffload(self._state, options.device)
        self.state_device = state_device = CPU if options.offload or options.on_cpu else options.device
        make, new_state = OPTIMIZERS[config.optimizer]
        self.inner = make(self._groups(), config)  # `update` sets the learning rate
        for parameter in self.parameters:
            self.inner.state[parameter] = new_state(parameter, state_device or parameter.device, self.inner)
        self.updates_per_step = updates_per_step
        self.schedule_steps = config.total_training_steps if config.total_training_steps > 0 else total_steps
        self.steps = 0  # loop steps in which this role was updated
        self.updates = 0
        self._skipped = 0
        self._pending_norms: list[Tensor] = []  # of updates whose norm the host has not fetched
        self.average: MovingAverage | None = None  # of the weights (ema_beta)
        self.stages: ProcessGroup | None = None  # a pipeline's ranks, each with other layers
        self.counted_elsewhere: frozenset[int] = frozenset()  # ids of weights of which another stage has a copy

    def _groups(self) -> list[dict[str, Any]]:
        """Parameter groups by weight decay."""
        min_ndim = 2 if self.config.decay_matrices_only else 0
        decaying = [parameter for parameter in self.parameters if parameter.ndim >= min_ndim]
        others = [parameter for parameter in self.parameters if parameter.ndim < min_ndim]
        groups = ((decaying, self.config.weight_decay), (others, 0.0))
        return [{"params": members, "weight_decay": decay} for members, decay in groups if members]

    @property
    def schedule_steps(self) -> int:
        """Length of the learning-rate schedule in steps."""
        return self._schedule_steps

    @schedule_steps.setter
    def schedule_steps(self, number: int) -> None:
        self._schedule_steps = number
        self.rate = LearningRate(self.config, number, self.updates_per_step)

    @property
    def lr(self) -> float:
        return self.rate.after(self.steps, self.updates)

    def on_device(self) -> AbstractContextManager[None]:
        """Keep an offloaded state beside the weights inside."""
        return contextlib.nullcontext() if self.offload is None else self.offload.on_device()

    def restore_placement(self) -> None:
        """After a load, which puts the state beside the weights: move it back to where it lives."""
        if self.offload is not None:
            self.offload.unload()
        elif self.state_device is not None:
            for tensor in self._state():
                tensor.data = tensor.data.to(self.state_device)

    def _state(self) -> Iterator[Tensor]:
        for values in self.inner.state.values():
            yield from (value for value in values.values() if isinstance(value, Tensor))

    @property
    def loss_scale(self) -> list[float]:
        """The scale's state, as a checkpoint stores it."""
        return [float(self.scale.factor), int(self.scale.num_finite)]

    @loss_scale.setter
    def loss_scale(self, state: list[float]) -> None:
        self.scale.factor, self.scale.num_finite = state[0], int(state[1])

    def backward(self, loss: Tensor) -> None:
        self.scale.scaled(loss).backward()

    def update(self, grad_clip: float) -> Tensor:
        """Clip and apply the gradients; skip the update if they are not finite. Returns their norm, on the device.

        The host decides nothing here, so it need not wait: torch's optimizer itself reads `found_inf`.
        """
        self.scale.unscale(self.parameters)
        max_norm = grad_clip if grad_clip > 0 else float("inf")
        norm = clip_gradients(self.parameters, max_norm, self.stages, self.counted_elsewhere)
        finite = norm.isfinite()
        self.scale.update(finite)
        self.inner.found_inf = (~finite).float()
        for group in self.inner.param_groups:
            group["lr"] = self.lr
        with updated_on_cpu(self.parameters) if self.on_cpu else contextlib.nullcontext():
            self.inner.step()
        if self.average is not None:
            self.average.update(finite)
        self.inner.zero_grad(set_to_none=True)
        self.updates += 1
        self._pending_norms.append(norm)
        return norm

    def count_skipped(self, norms: Sequence[float]) -> None:
        """Take note of the latest updates' norms: updates whose norm is not finite were skipped."""
        self._pending_norms.clear()
        self._skipped += sum(not math.isfinite(norm) for norm in norms)

    @property
    def skipped(self) -> int:
        """Number of skipped updates. Waits for the device where `count_skipped` has not seen the latest."""
        if self._pending_norms:
            self.count_skipped([float(norm) for norm in self._pending_norms])
        return self._skipped

    @skipped.setter
    def skipped(self, number: int) -> None:
        self._pending_norms.clear()
        self._skipped = number


@torch.no_grad()
def clip_gradients(
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    stages: ProcessGroup | None = None,
    counted_elsewhere: frozenset[int] = frozenset(),
) -> Tensor:
    """Scale gradients down to max_norm; returns the norm before, the same on every rank.

    Weights may be on different meshes (those replicated over tensor ranks are sharded over data ranks only), which no
    torch operation accepts together. So each rank measures its parts, and parts sharded alike are reduced together; a
    weight that several ranks hold counts once. `stages` are ranks that hold other weights.
    """
    by_groups: dict[tuple[ProcessGroup, ...], list[Tensor]] = {}
    copies: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None:
            is_copy = id(parameter) in counted_elsewhere
            parts = copies if is_copy else by_groups.setdefault(shard_groups(parameter.grad), [])
            parts.append(local_part(parameter.grad))
    norms = [_global_norm(parts, groups) for groups, parts in by_groups.items()]
    if not norms and stages is None:
        return torch.zeros(())
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms or [torch.zeros(())]))
    if stages is not None:
        total = _over_groups(total, (stages,))
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)  # the epsilon of torch's clip_grad_norm_
    for parts in [*by_groups.values(), copies]:
        if parts:
            torch._foreach_mul_(parts, factor)
    return total


def shard_groups(tensor: Tensor) -> tuple[ProcessGroup, ...]:
    """The process groups over which a tensor is sharded, one per mesh dimension that shards it."""
    if not isinstance(tensor, DTensor):
        return ()
    dimensions = [number for number, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    return tuple(tensor.device_mesh.get_group(number) for number in dimensions)


def _global_norm(parts: list[Tensor], groups: tuple[ProcessGroup, ...]) -> Tensor:
    """Norm over the parts of this rank and of the groups' other ranks."""
    return _over_groups(get_total_norm(parts), groups)


def _over_groups(norm: Tensor, groups: tuple[ProcessGroup, ...]) -> Tensor:
    """The norm of all ranks' parts from those of each rank."""
    if not groups:
        return norm
    square = norm.to(torch.promote_types(norm.dtype, torch.float32)) ** 2
    for group in groups:
        distributed.all_reduce(square, group=group)
    return square.sqrt()
