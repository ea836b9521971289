"""The worker process: a loop over a pipe that evaluates samples. Starts fast, so it imports no torch."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import pickle
import random
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

from burnish.errors import UserError
from burnish.reward.evaluate import Evaluator, Setup
from burnish.reward.limits import arm_alarm, forbid_core_dumps, limit_memory
from burnish.reward.sample import Outcome

STARTUP_SECONDS = 120.0  # importing a user's file may import much
_ORPHAN_SECONDS = 10.0  # beyond the time limit, in case the parent is no longer there to enforce it
_PRINTED_LIMIT = 2000


@dataclass(frozen=True)
class Ready:
    """A worker's first message: whether samples run at once (an async function), and whether memory is limited."""

    concurrent: bool
    memory_limited: bool


def main(descriptor: int) -> None:
    """Set up, then answer chunks of samples until the parent closes the pipe."""
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    faulthandler.enable()  # a segfault leaves its stack in the output that the parent reads
    forbid_core_dumps()
    arm_alarm(STARTUP_SECONDS + _ORPHAN_SECONDS)
    try:
        evaluator, ready = _set_up(pickle.loads(connection.recv_bytes()))
    except EOFError:
        return
    except BaseException as error:
        connection.send_bytes(pickle.dumps(_startup_error(error)))
        return
    arm_alarm(0)
    connection.send_bytes(pickle.dumps(ready))
    while True:
        try:
            chunk = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        _answer(evaluator, chunk, connection)


def _set_up(setup: Setup) -> tuple[Evaluator, Ready]:
    limited = setup.memory_mb > 0 and limit_memory(setup.memory_mb)
    evaluator = Evaluator(setup, before_each=seed_by_address)
    asyncio.set_event_loop(evaluator.loop)
    return evaluator, Ready(evaluator.is_async, limited)


def _startup_error(error: BaseException) -> UserError:
    if isinstance(error, UserError):
        return error
    return UserError(f"the reward function could not be loaded: {type(error).__name__}: {error}")


def _answer(evaluator: Evaluator, chunk: list[bytes], connection: Connection) -> None:
    """One reply per sample, as soon as it is there: in order, or all at once for an async function."""

    def reply(index: int, outcome: Outcome) -> None:
        printed = take_printed()
        outcome = outcome._replace(printed=printed) if printed else outcome
        connection.send_bytes(json.dumps([index, *outcome]).encode())

    turns = 1 if evaluator.is_async else len(chunk)
    arm_alarm(evaluator.setup.timeout * turns + _ORPHAN_SECONDS)
    if evaluator.is_async:
        evaluator.outcomes_at_once(chunk, reply)
    else:
        for index, payload in enumerate(chunk):
            reply(index, evaluator.outcome(payload))
    arm_alarm(0)


def seed_by_address(address: str) -> None:
    """Randomness is addressed: a function that draws gets the same numbers whichever worker runs it, and when."""
    random.seed(address)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(random.getrandbits(32))


def take_printed() -> str:
    """What was written to stdout and stderr since the last call. Both are one file that the parent can read too."""
    size = os.fstat(1).st_size
    if size == 0:
        return ""
    text = os.pread(1, _PRINTED_LIMIT, max(0, size - _PRINTED_LIMIT)).decode("utf-8", "replace")
    os.ftruncate(1, 0)
    os.lseek(1, 0, os.SEEK_SET)
    return text.strip()
