"""Restart: a run whose worker died goes on from its last checkpoint by itself, a bounded number of times."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace

from burnish.config import Loaded
from burnish.errors import UserError, WorkerDied
from burnish.loop.fit import Result
from burnish.loop.run import Run

KEY = "trainer.max_restarts"


def restarting(loaded: Loaded, build: Callable[[Loaded], Run], go: Callable[[Run, Loaded], Result]) -> Result:
    """Build the run and let it go, again and again while its workers die; without progress in between, not for ever.

    `go` resumes from what trainer.resume_mode finds. Once the run has written a checkpoint, that is where it goes on.
    """
    most = loaded.cfg.trainer.max_restarts
    restarts = in_a_row = 0
    death = ""
    while True:
        run = None
        try:
            run = build(loaded)
            if death:
                run.restarts = restarts
                run.notices.append(f"restart {restarts}: {death}; the run goes on from its last checkpoint")
            return go(run, loaded)
        except WorkerDied as error:
            death = str(error)  # the error itself would keep the dead run's memory
        finally:
            if run is not None:
                _close(run, quietly=bool(death))
        sealed = None if run is None else run.saving.sealed
        in_a_row = 1 if sealed is not None else in_a_row + 1
        if in_a_row > most:
            raise _gives_up(death, most)
        restarts += 1
        if sealed is not None:
            loaded = _from_own_checkpoint(loaded)
        logging.getLogger("burnish").warning("%s: restart %d", death, restarts)


def _close(run: Run, *, quietly: bool) -> None:
    """What a dead worker leaves open may fail to close; why it died is the news."""
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


def _gives_up(death: str, most: int) -> UserError:
    if most == 0:
        return UserError(f"{death}; the same command goes on from the last checkpoint", key=KEY, value=0)
    problem = f"{death}, and so it went {most + 1} times in a row without a new checkpoint in between"
    return UserError(problem, key=KEY, value=most, hint="the same command, to go on from the last checkpoint")
