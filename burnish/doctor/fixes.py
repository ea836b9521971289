"""Config changes that make a memory plan fit: the steps of config/memory_fixes.py, cheapest first, only as needed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from burnish.config import TrainConfig
from burnish.config.memory_fixes import STEPS, Change, Propose, changed, smaller_share, typed
from burnish.doctor.memory import Plan
from burnish.sizing import GIB

MIN_GAIN = 0.005  # share of the excess that a change must remove to be worth proposing
PlanFn = Callable[[TrainConfig], Plan]
Step = tuple[tuple[Change, ...], str]  # changes, what they cost


@dataclass(frozen=True)
class MemoryFix:
    """Keys to type, what they cost, and the largest phase after this fix and those before it."""

    changes: tuple[Change, ...]
    price: str
    bytes: int
    fits: bool

    @property
    def typed(self) -> str:
        return typed(self.changes)

    def text(self) -> str:
        return f"{self.typed}  ({self.price}; then {self.bytes / GIB:.1f} GiB)"


def memory_fixes(cfg: TrainConfig, plan_of: PlanFn) -> list[MemoryFix]:
    """Changes to apply one after the other until every phase fits, without superfluous ones."""
    plan = plan_of(cfg)
    steps: list[Step] = []
    current = copy.deepcopy(cfg)
    for propose, price in _ordered_steps(plan):
        for changes in propose(current, _phase_names(plan)):
            candidate = changed(current, changes)
            new_plan = plan_of(candidate)
            if plan.too_big and _excess(new_plan) < _excess(plan) * (1 - MIN_GAIN):
                steps.append((changes, price))
                current, plan = candidate, new_plan
    if not plan.too_big:
        steps = _without_superfluous(cfg, plan_of, steps)
    return _with_plans(cfg, plan_of, steps)


def _ordered_steps(plan: Plan) -> list[tuple[Propose, str]]:
    """The usual order; where only the rollout is too big, the engine's share comes first."""
    if _phase_names(plan) == {"rollout"}:
        return sorted(STEPS, key=lambda step: step[0] is not smaller_share)
    return list(STEPS)


def _without_superfluous(cfg: TrainConfig, plan_of: PlanFn, steps: list[Step]) -> list[Step]:
    """Drop every step without which the plan still fits, the most expensive first."""
    for step in reversed(steps[:-1]):
        others = [other for other in steps if other is not step]
        if not plan_of(changed(cfg, *(changes for changes, _ in others))).too_big:
            steps = others
    return steps


def _with_plans(cfg: TrainConfig, plan_of: PlanFn, steps: list[Step]) -> list[MemoryFix]:
    fixes = []
    for number, (changes, price) in enumerate(steps, 1):
        plan = plan_of(changed(cfg, *(applied for applied, _ in steps[:number])))
        fixes.append(MemoryFix(changes, price, plan.worst.bytes, not plan.too_big))
    return fixes


def _excess(plan: Plan) -> int:
    return sum(phase.bytes - plan.capacity for phase in plan.too_big)


def _phase_names(plan: Plan) -> set[str]:
    return {phase.name for phase in plan.too_big}
