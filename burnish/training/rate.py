"""The learning rate of one role: a pure function of how many steps or updates were made."""

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

    def __init__(self, config: OptimConfig, total_steps: int, updates_per_step: int) -> None:
        self.peak = config.lr
        self.per_update = config.lr_step_unit == "update"
        unit = updates_per_step if self.per_update else 1
        asked = config.total_training_steps if config.total_training_steps > 0 else total_steps
        self.total = unit * (asked if config.lr_decay_steps is None else config.lr_decay_steps)
        # Steps are verl's and cut off; updates are OpenRLHF's and rounded up.
        ratio = (math.ceil if self.per_update else int)(config.lr_warmup_steps_ratio * self.total)
        self.warmup = config.lr_warmup_steps if config.lr_warmup_steps >= 0 else ratio
        self.num_cycles = config.num_cycles
        self.start = self._share(config.lr_warmup_init)
        self.floor = self._share(config.min_lr) or config.min_lr_ratio or 0.0
        self.schedule = DECAY_STYLES[config.lr_decay_style](config, unit)

    def _share(self, rate: float) -> float:
        return rate / self.peak if self.peak > 0 else 0.0

    def after(self, steps: int, updates: int) -> float:
        """The rate of the next update, once so many steps and updates were made."""
        done = updates if self.per_update else steps
        factor = self.schedule(done, self.warmup, self.total, self.floor, self.num_cycles)
        return self.peak * (self.start + (1 - self.start) * factor if done < self.warmup else factor)


def _of_warmup_style(config: OptimConfig, unit: int) -> Schedule:
    return SCHEDULES[config.warmup_style].load()


def _of_the_same_name(config: OptimConfig, unit: int) -> Schedule:
    return SCHEDULES[config.lr_decay_style].load()


def _decay_at_the_end(config: OptimConfig, unit: int) -> Schedule:
    return partial(decay_at_the_end, steps=unit * (config.lr_wsd_decay_steps or 0), style=config.lr_wsd_decay_style)


# lr_decay_style, Megatron's word, -> the schedule; where that says nothing, warmup_style does.
DECAY_STYLES: dict[str, Callable[[OptimConfig, int], Schedule]] = {
    "constant": _of_warmup_style,
    "linear": _of_the_same_name,
    "cosine": _of_the_same_name,
    "inverse_square_root": _of_the_same_name,
    "WSD": _decay_at_the_end,
}
