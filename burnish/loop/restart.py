"""Restart: a run whose worker died resumes from its last checkpoint by itself, a bounded number of times."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from burnish.config import Loaded
from burnish.errors import UserError, WorkerDied
from burnish.loop.finish import Result
from burnish.loop.saving import Saving

KEY = "trainer.max_restarts"


class Restartable(Protocol):
    """What a restart reads and sets of a run: of its Recorder, or of a supervised run."""

    saving: Saving
    notices: list[str]
    num_restarts: int


class Closable(Protocol):
    def close(self) -> None: ...


AnyRun = TypeVar("AnyRun", bound=Closable)


def fault_metrics(run: Restartable) -> dict[str, float]:
    """Faults that the run survived; none, as a rule."""
    counts = {"training/restarts": run.num_restarts, "training/failed_saves": run.saving.failures}
    return {name: float(count) for name, count in counts.items() if count > 0}


def restarting(
    loaded: Loaded,
    build: Callable[[Loaded], AnyRun],
    go: Callable[[AnyRun, Loaded], Result],
    recorder_of: Callable[[AnyRun], Restartable],
) -> Result:
    """Build and run; when a worker dies, again, at most trainer.max_restarts times without a new checkpoint in between.

    `go` resumes from what trainer.resume_mode finds; once the run has written a checkpoint, from that.
    """
    max_restarts = loaded.cfg.trainer.max_restarts
    num_restarts = in_a_row = 0
    death = ""
    while True:
        run = None
        try:
            run = build(loaded)
            if death:
                recorder = recorder_of(run)
                recorder.num_restarts = num_restarts
                recorder.notices.append(f"restart {num_restarts}: {death}; resuming from the last checkpoint")
            return go(run, loaded)
        except WorkerDied as error:
            death = str(error)  # the error itself would keep the dead run's memory
        finally:
            if run is not None:
                _close(run, quietly=bool(death))
        newest = None if run is None else recorder_of(run).saving.newest_step
        in_a_row = 1 if newest is not None else in_a_row + 1
        if in_a_row > max_restarts:
            raise _give_up(death, max_restarts)
        num_restarts += 1
        if newest is not None:
            loaded = _from_own_checkpoint(loaded)
        logging.getLogger("burnish").warning("%s: restart %d", death, num_restarts)


def _close(run: Closable, *, quietly: bool) -> None:
    """Closing after a worker died may fail too; the death is the error to report."""
    try:
        run.close()
    except Exception as error:
        if not quietly:
            raise
        logging.getLogger("burnish").debug("closing after a death: %s", error)


def _from_own_checkpoint(loaded: Loaded) -> Loaded:
    cfg = copy.deepcopy(loaded.cfg)
    cfg.trainer.resume_mode = "auto"
    return replace(loaded, cfg=cfg)


def _give_up(death: str, max_restarts: int) -> UserError:
    if max_restarts == 0:
        return UserError(f"{death}. Run the same command to resume from the last checkpoint", key=KEY, value=0)
    problem = f"{death}; {max_restarts + 1} failures in a row without a new checkpoint in between"
    return UserError(problem, key=KEY, value=max_restarts, hint="the same command resumes from the last checkpoint")
