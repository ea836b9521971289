"""The learning rate of one role: a pure function of the number of steps or updates so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from burnish.algos.schedules import SCHEDULES, decay_at_the_end

if TYPE_CHECKING:
    from burnish.config.optim import OptimConfig

Schedule = Callable[[int, int, int, float, float], float]


class LearningRate:
    """Warm-up, then the schedule, whose floor is a share of the peak (min_lr_ratio) or a rate (min_lr)."""

    def __init__(self, config: OptimConfig, num_steps: int, updates_per_step: int) -> None:
        self.peak = config.lr
        self.per_update = config.lr_step_unit == "update"
        unit = updates_per_step if self.per_update else 1
        self.total = unit * (num_steps if config.lr_decay_steps is None else config.lr_decay_steps)
        # verl counts steps and rounds down; OpenRLHF counts updates and rounds up.
        warmup = (math.ceil if self.per_update else int)(config.lr_warmup_steps_ratio * self.total)
        self.warmup = config.lr_warmup_steps if config.lr_warmup_steps >= 0 else warmup
        self.num_cycles = config.num_cycles
        self.start = self._relative(config.lr_warmup_init)
        self.floor = self._relative(config.min_lr) or config.min_lr_ratio or 0.0
        self.schedule = DECAY_STYLES[config.lr_decay_style](config, unit)

    def _relative(self, rate: float) -> float:
        return rate / self.peak if self.peak > 0 else 0.0

    def after(self, steps: int, updates: int) -> float:
        """The rate of the next update, after this many steps and updates."""
        done = updates if self.per_update else steps
        factor = self.schedule(done, self.warmup, self.total, self.floor, self.num_cycles)
        return self.peak * (self.start + (1 - self.start) * factor if done < self.warmup else factor)


def _by_warmup_style(config: OptimConfig, unit: int) -> Schedule:
    return SCHEDULES[config.warmup_style].load()


def _by_decay_style(config: OptimConfig, unit: int) -> Schedule:
    return SCHEDULES[config.lr_decay_style].load()


def _warmup_stable_decay(config: OptimConfig, unit: int) -> Schedule:
    return partial(decay_at_the_end, steps=unit * (config.lr_wsd_decay_steps or 0), style=config.lr_wsd_decay_style)


# Megatron's lr_decay_style -> schedule; its default leaves the choice to verl's warmup_style.
DECAY_STYLES: dict[str, Callable[[OptimConfig, int], Schedule]] = {
    "constant": _by_warmup_style,
    "linear": _by_decay_style,
    "cosine": _by_decay_style,
    "inverse_square_root": _by_decay_style,
    "WSD": _warmup_stable_decay,
}
