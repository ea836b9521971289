"""Restart: a run whose worker died resumes from its last checkpoint by itself, a bounded number of times."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace

from burnish.config import Loaded
from burnish.errors import UserError, WorkerDied
from burnish.loop.finish import Result
from burnish.loop.run import Run

KEY = "trainer.max_restarts"


def restarting(loaded: Loaded, build: Callable[[Loaded], Run], go: Callable[[Run, Loaded], Result]) -> Result:
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
                run.recorder.num_restarts = num_restarts
                run.recorder.notices.append(f"restart {num_restarts}: {death}; resuming from the last checkpoint")
            return go(run, loaded)
        except WorkerDied as error:
            death = str(error)  # the error itself would keep the dead run's memory
        finally:
            if run is not None:
                _close(run, quietly=bool(death))
        newest = None if run is None else run.recorder.saving.newest_step
        in_a_row = 1 if newest is not None else in_a_row + 1
        if in_a_row > max_restarts:
            raise _give_up(death, max_restarts)
        num_restarts += 1
        if newest is not None:
            loaded = _from_own_checkpoint(loaded)
        logging.getLogger("burnish").warning("%s: restart %d", death, num_restarts)


def _close(run: Run, *, quietly: bool) -> None:
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
