"""recompute.method=auto: the fewest recomputed layers with which an update fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from burnish.doctor.roles import Role
from burnish.doctor.stages import Stages
from burnish.sizing import GIB

SAFE_SHARE = 0.95  # of the memory that a choice may plan with: the largest error of the plan was 7 %


@dataclass(frozen=True)
class Recompute:
    """The layers that a role recomputes, and what its update then needs."""

    per_stage: int  # the first ones of each pipeline stage
    stages: Stages
    bytes: int
    capacity: int

    @property
    def fits(self) -> bool:
        return self.bytes <= SAFE_SHARE * self.capacity

    @property
    def is_all(self) -> bool:
        return self.per_stage == max(self.stages.layers)

    @property
    def share(self) -> float:
        return self.stages.num_recomputed(self.per_stage) / sum(self.stages.layers)

    @property
    def text(self) -> str:
        num_stages, most = len(self.stages.layers), max(self.stages.layers)
        each = f" in each of {num_stages} pipeline stages" if num_stages > 1 else ""
        chosen = f"recomputes {self.per_stage} of {most} layers{each}, update {self.bytes / GIB:.2f} GiB"
        return f"{chosen}, {'within' if self.fits else 'ABOVE'} {SAFE_SHARE:.0%} of {self.capacity / GIB:.1f} GiB"

    def to_json(self) -> dict[str, Any]:
        return {"layers": self.per_stage, "of": max(self.stages.layers), "bytes": self.bytes, "fits": self.fits}


def fewest_recomputed(role: Role, bytes_of: Callable[[Role], int], capacity: int) -> tuple[Role, Recompute]:
    """The role with as few recomputed layers as fit, or with all where none fits. `bytes_of` plans its update.

    It tries all numbers: recomputing one layer can need more than none.
    """

    def choice(per_stage: int) -> tuple[Role, Recompute]:
        candidate = replace(role, num_recomputed=role.stages.num_recomputed(per_stage))
        return candidate, Recompute(per_stage, role.stages, bytes_of(candidate), capacity)

    most = max(role.stages.layers)
    choices = (choice(per_stage) for per_stage in range(most))
    return next((chosen for chosen in choices if chosen[1].fits), None) or choice(most)
