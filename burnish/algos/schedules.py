"""Learning-rate schedules: the factor of the learning rate at each step.

Every entry is factor(step, warmup, total, min_ratio, num_cycles), with steps counted from 0. A warm-up of W steps gives
1/W, 2/W, ..., 1, so that no update has rate 0. After `total`, a decaying schedule keeps its last value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from burnish.registry import Registry

SCHEDULES = Registry("learning-rate schedule", key="actor_rollout_ref.actor.optim.lr_scheduler_type")

# Fraction of the steps after warm-up that `wsd` (warm-up, stable, decay) spends at the full rate.
STABLE_SHARE = 0.9


@SCHEDULES.register("constant")
def constant(step: int, warmup: int, total: int, min_ratio: float = 0.0, num_cycles: float = 0.5) -> float:
    """1 after warm-up."""
    return (step + 1) / warmup if step < warmup else 1.0


@SCHEDULES.register("cosine")
def cosine(step: int, warmup: int, total: int, min_ratio: float = 0.0, num_cycles: float = 0.5) -> float:
    """From 1 along cos(2 pi num_cycles p) to the floor min_ratio; num_cycles=0.5 decays monotonically."""
    if step < warmup:
        return constant(step, warmup, total)
    return _wave(_progress(step, warmup, total), min_ratio, num_cycles)


@SCHEDULES.register("linear")
def linear(step: int, warmup: int, total: int, min_ratio: float = 0.0, num_cycles: float = 0.5) -> float:
    """Linear decay from 1 to min_ratio."""
    if step < warmup:
        return constant(step, warmup, total)
    return 1 - (1 - min_ratio) * _progress(step, warmup, total)


@SCHEDULES.register("wsd")
def wsd(step: int, warmup: int, total: int, min_ratio: float = 0.0, num_cycles: float = 0.5) -> float:
    """Warm-up, then 1 for 90 % of the remaining steps, then cosine to min_ratio."""
    decay_start = warmup + int(STABLE_SHARE * max(0, total - warmup))
    if step < decay_start:
        return constant(step, warmup, total)
    return _wave(_progress(step, decay_start, total), min_ratio, num_cycles)


@SCHEDULES.register("inverse_square_root")
def inverse_square_root(step: int, warmup: int, total: int, min_ratio: float = 0.0, num_cycles: float = 0.5) -> float:
    """sqrt(warm-up / step), never below min_ratio, and min_ratio after the end."""
    if step < warmup:
        return constant(step, warmup, total)
    return min_ratio if step > total else max(min_ratio, math.sqrt(max(1, warmup) / max(1, step)))


# Decay styles of Megatron's WSD schedule: from 1 at progress 0 to 0 at progress 1.
DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "exponential": lambda progress: 2 * 0.5**progress - 1,
    "minus_sqrt": lambda progress: 1 - math.sqrt(progress),
}


def decay_at_the_end(
    step: int, warmup: int, total: int, min_ratio: float = 0.0, num_cycles: float = 0.5, *, steps: int, style: str
) -> float:
    """Warm-up, then 1, then decay to min_ratio over the last `steps` steps."""
    start = max(warmup, total - steps)
    if step < start:
        return constant(step, warmup, total)
    return min_ratio + (1 - min_ratio) * DECAYS[style](min(1.0, (step - start) / max(1, total - start)))


def _progress(step: int, start: int, end: int) -> float:
    """0 at start, 1 from end on."""
    return min(1.0, (step - start) / max(1, end - start))


def _wave(progress: float, min_ratio: float, num_cycles: float) -> float:
    height = (1 + math.cos(2 * math.pi * num_cycles * progress)) / 2
    return max(min_ratio, min_ratio + (1 - min_ratio) * height)
