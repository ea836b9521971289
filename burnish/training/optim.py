"""The optimizer of one role, its schedule, and the guard in front of every update."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from burnish.training.adamw import AdamW
from burnish.training.ema import MovingAverage
from burnish.training.norms import clip
from burnish.training.offload import CPU, Offload, updated_on_cpu
from burnish.training.rate import LearningRate
from burnish.training.scale import LossScale

if TYPE_CHECKING:
    from burnish.config.optim import OptimConfig


@dataclass(frozen=True)
class OptimizerOptions:
    """Where the optimizer's state lives and what its gradients are computed in."""

    device: torch.device | None = None  # of the updates; None is where the weights are
    offload: bool = False  # the state waits in CPU memory between phases
    on_cpu: bool = False  # the state never leaves CPU memory, and updates are made there
    scale_loss: bool = False  # float16 gradients


PLAIN = OptimizerOptions()


class Optimizer:
    """AdamW with a learning rate that is a pure function of how many steps or updates were made."""

    def __init__(
        self,
        module: nn.Module,
        config: OptimConfig,
        total_steps: int,
        updates_per_step: int,
        options: OptimizerOptions = PLAIN,
    ) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.config = config
        self.on_cpu = options.on_cpu
        self.scale = LossScale(options.scale_loss)
        self.offload = Offload(self._state, options.device) if options.offload else None
        self.home = home = CPU if options.offload or options.on_cpu else options.device
        # `fused` does the whole update in one kernel, on the CPU too; the learning rate is set before each update.
        self.adamw = AdamW(self._groups(), lr=config.lr, betas=tuple(config.betas), fused=True)
        for parameter in self.parameters:
            # Made now: else the first save would make it, by an update that AdamW counts and the run does not.
            self.adamw.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=home or parameter.device),
                "exp_avg": torch.zeros_like(parameter, device=home or parameter.device),
                "exp_avg_sq": torch.zeros_like(parameter, device=home or parameter.device),
            }
        self.rate = LearningRate(config, total_steps, updates_per_step)
        self.steps = 0  # turns of the loop in which this role was taught
        self.updates = 0
        self._skipped = 0
        self._unseen: list[Tensor] = []  # norms of updates that the host has not looked at
        self.average: MovingAverage | None = None  # of the weights, where one is wanted

    def _groups(self) -> list[dict[str, Any]]:
        """The parameters with their weight decay."""
        fewest = 2 if self.config.decay_matrices_only else 0  # dimensions of a parameter that decays
        decaying = [parameter for parameter in self.parameters if parameter.ndim >= fewest]
        spared = [parameter for parameter in self.parameters if parameter.ndim < fewest]
        groups = ((decaying, self.config.weight_decay), (spared, 0.0))
        return [{"params": members, "weight_decay": decay} for members, decay in groups if members]

    @property
    def lr(self) -> float:
        return self.rate.after(self.steps, self.updates)

    def at_work(self) -> AbstractContextManager:
        """The state is beside the weights inside; where nothing is offloaded it always is."""
        return contextlib.nullcontext() if self.offload is None else self.offload.fetched()

    def settle(self) -> None:
        """After a load, which puts the state beside the weights wherever those are: back to where it belongs."""
        if self.offload is not None:
            self.offload.park()
        elif self.home is not None:
            for tensor in self._state():
                tensor.data = tensor.data.to(self.home)

    def _state(self) -> Iterator[Tensor]:
        for values in self.adamw.state.values():
            yield from (value for value in values.values() if isinstance(value, Tensor))

    @property
    def loss_scale(self) -> list[float]:
        """The scale's state, as a checkpoint has it."""
        return [float(self.scale.factor), int(self.scale.good)]

    @loss_scale.setter
    def loss_scale(self, state: list[float]) -> None:
        self.scale.factor, self.scale.good = state[0], int(state[1])

    def backward(self, loss: Tensor) -> None:
        self.scale.scaled(loss).backward()

    def update(self, grad_clip: float) -> Tensor:
        """Clip and apply the gradients; one that is not finite changes nothing. Returns its norm, still on the device.

        The host decides nothing here, so it need not wait: AdamW itself looks at `found_inf`.
        """
        self.scale.unscale(self.parameters)
        norm = clip(self.parameters, grad_clip if grad_clip > 0 else float("inf"))
        finite = norm.isfinite()
        self.scale.score(finite)
        self.adamw.found_inf = (~finite).float()
        for group in self.adamw.param_groups:
            group["lr"] = self.lr
        with updated_on_cpu(self.parameters) if self.on_cpu else contextlib.nullcontext():
            self.adamw.step()
        if self.average is not None:
            self.average.update(finite)
        self.adamw.zero_grad(set_to_none=True)
        self.updates += 1
        self._unseen.append(norm)
        return norm

    def saw(self, norms: Sequence[float]) -> None:
        """The host knows the norms of the latest updates: those that are not finite were thrown away."""
        self._unseen.clear()
        self._skipped += sum(not math.isfinite(norm) for norm in norms)

    @property
    def skipped(self) -> int:
        """Updates that were thrown away. Waits for the device where nobody has looked at the latest."""
        if self._unseen:
            self.saw([float(norm) for norm in self._unseen])
        return self._skipped

    @skipped.setter
    def skipped(self, number: int) -> None:
        self._unseen.clear()
        self._skipped = number
