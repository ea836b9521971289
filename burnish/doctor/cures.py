"""The changes of config/memory_fixes.py, one after the other, until the plan fits; none that is not needed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from burnish.config import TrainConfig
from burnish.config.memory_fixes import STEPS, Change, Propose, changed, smaller_share, typed
from burnish.doctor.memory import GIB, Plan


@dataclass(frozen=True)
class Cure:
    """Keys to type, what they cost, and the worst phase with them and all cures before them in place."""

    changes: tuple[Change, ...]
    price: str
    bytes: int
    fits: bool

    @property
    def typed(self) -> str:
        return typed(self.changes)

    def text(self) -> str:
        return f"{self.typed}  ({self.price}; then {self.bytes / GIB:.1f} GiB)"


def cures(cfg: TrainConfig, plan_of: Callable[[TrainConfig], Plan]) -> list[Cure]:
    """The changes, one after the other, after which everything fits; what turns out not to be needed is left out."""
    first = plan_of(cfg)
    tried: list[tuple[tuple[Change, ...], str]] = []
    now, before = copy.deepcopy(cfg), first
    for propose, price in _order(first):
        for changes in propose(now, _names(before)):
            trial = changed(now, changes)
            plan = plan_of(trial)
            if before.too_big and _excess(plan) < _excess(before) * 0.995:
                tried.append((changes, price))
                now, before = trial, plan
    if not before.too_big:
        tried = _needed(cfg, plan_of, tried)
    return _told(cfg, plan_of, tried)


def _order(plan: Plan) -> list[tuple[Propose, str]]:
    """The usual order; where only the rollout is too big, the engine's share comes first."""
    if _names(plan) == {"rollout"}:
        return sorted(STEPS, key=lambda step: step[0] is not smaller_share)
    return list(STEPS)


def _needed(cfg: TrainConfig, plan_of: Callable[[TrainConfig], Plan], tried: list) -> list:
    """Without those that nothing depends on, the dearest first."""
    for one in reversed(tried[:-1]):
        others = [other for other in tried if other is not one]
        if not plan_of(changed(cfg, *(changes for changes, _ in others))).too_big:
            tried = others
    return tried


def _told(cfg: TrainConfig, plan_of: Callable[[TrainConfig], Plan], tried: list) -> list[Cure]:
    found = []
    for number, (changes, price) in enumerate(tried, 1):
        plan = plan_of(changed(cfg, *(done for done, _ in tried[:number])))
        found.append(Cure(changes, price, plan.worst.bytes, not plan.too_big))
    return found


def _excess(plan: Plan) -> int:
    return sum(phase.bytes - plan.capacity for phase in plan.too_big)


def _names(plan: Plan) -> set[str]:
    return {phase.name for phase in plan.too_big}
