"""The optimizer of one role, its schedule, and the guard in front of every update."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from burnish.algos.schedules import SCHEDULES

if TYPE_CHECKING:
    from burnish.config.optim import OptimConfig


class Optimizer:
    """AdamW with a learning rate that is a pure function of how many steps or updates were made."""

    def __init__(self, module: nn.Module, config: OptimConfig, total_steps: int, updates_per_step: int) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.config = config
        # `fused` does the whole update in one kernel, on the CPU too; the learning rate is set before each update.
        self.adamw = torch.optim.AdamW(
            self.parameters, lr=config.lr, betas=tuple(config.betas), weight_decay=config.weight_decay, fused=True
        )
        for parameter in self.parameters:
            # Made now: else the first save would make it, by an update that AdamW counts and the run does not.
            self.adamw.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self.per_update = config.lr_step_unit == "update"
        horizon = config.total_training_steps if config.total_training_steps > 0 else total_steps
        self.total = horizon * updates_per_step if self.per_update else horizon
        ratio = int(config.lr_warmup_steps_ratio * self.total)
        self.warmup = config.lr_warmup_steps if config.lr_warmup_steps >= 0 else ratio
        self.schedule = SCHEDULES[config.warmup_style].load()
        self.steps = 0  # turns of the loop in which this role was taught
        self.updates = 0
        self.skipped = 0

    @property
    def lr(self) -> float:
        done = self.updates if self.per_update else self.steps
        factor = self.schedule(done, self.warmup, self.total, self.config.min_lr_ratio or 0.0, self.config.num_cycles)
        return self.config.lr * factor

    def update(self, grad_clip: float) -> float:
        """Clip and apply the gradients; a gradient that is not finite is thrown away and counted. Returns its norm."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, grad_clip if grad_clip > 0 else float("inf")))
        if norm == norm and norm != float("inf"):
            for group in self.adamw.param_groups:
                group["lr"] = self.lr
            self.adamw.step()
        else:
            self.skipped += 1
        self.adamw.zero_grad(set_to_none=True)
        self.updates += 1
        return norm
