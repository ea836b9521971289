"""Out of device memory: the phase, who holds the bytes, and the key to change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from burnish.config.memory_fixes import next_change
from burnish.errors import UserError
from burnish.models.device import pick_device
from burnish.sizing import GIB
from burnish.training.device_memory import OutOfMemory, memory_reported

if TYPE_CHECKING:
    from burnish.loop.run import Run

# The clock's phases -> their names in the memory plan.
PHASES = {
    "gen": "rollout",
    "testing": "rollout",
    "wake": "rollout",
    "reward": "reward model",
    "old_log_prob": "old log-probs",
    "ref": "reference",
    "values": "values",
    "update_critic": "update critic",
    "update_actor": "update actor",
    "update_weights": "weight sync",
}


@contextlib.contextmanager
def explaining_out_of_memory(run: Run) -> Iterator[None]:
    """Turn out-of-memory errors into a UserError; workers report what their own roles hold."""
    try:
        with memory_reported(run.roles(), pick_device(run.recorder.trainer.device)):
            yield
    except OutOfMemory as error:
        phase = PHASES.get(run.clock.failed_in or "", run.clock.failed_in or "start")
        raise run.explain_out_of_memory(phase, error) from error


def explain(cfg: Any, phase: str, error: OutOfMemory) -> UserError:
    return out_of_memory(phase, error, next_change(cfg, phase))


def out_of_memory(phase: str, error: OutOfMemory, change: tuple[str, str] | None) -> UserError:
    """`change`: the override to try next, and its cost."""
    requested = "" if error.requested is None else f", allocating {error.requested} more"
    capacity = "" if error.capacity is None else f" of {error.capacity / GIB:.1f} GiB"
    held = sorted(error.owners.items(), key=lambda owner: -owner[1])
    parts = ", ".join(f"{owner} {number / GIB:.2f} GiB" for owner, number in held if number)
    problem = (
        f"the device ran out of memory{capacity} in the phase {phase!r}{requested}. Allocated: {parts or 'nothing'}"
    )
    if change is None:
        return UserError(problem, hint="burnish doctor with the same settings shows the plan of all phases")
    override, cost = change
    key = override.partition("=")[0]
    return UserError(problem, key=key, hint=f"{override}  ({cost}; `burnish doctor` plans all phases)")
