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
from typing import NamedTuple

from burnish.errors import UserError
from burnish.reward.channel import MOST_BYTES
from burnish.reward.evaluate import Evaluator, Setup
from burnish.reward.limits import arm_alarm, forbid_core_dumps, limit_files, limit_memory
from burnish.reward.sample import INVALID, Outcome

STARTUP_SECONDS = 120.0  # importing a user's file may import much
_ORPHAN_SECONDS = 10.0  # beyond the time limit, in case the parent is no longer there to enforce it
_PRINTED_LIMIT = 2000


@dataclass(frozen=True)
class Ready:
    """A worker's first message: whether samples run at once (an async function), and whether memory is limited."""

    concurrent: bool
    memory_limited: bool


class Chunk(NamedTuple):
    """Samples that are sent together. Replies name its number, so that a late one is not taken for another's."""

    number: int
    seconds: float
    payloads: list[bytes]


def main(descriptor: int) -> None:
    """Set up, then answer chunks of samples until the parent closes the pipe."""
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    faulthandler.enable()  # a segfault leaves its stack in the output that the parent reads
    forbid_core_dumps()
    limit_files()
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
            chunk = Chunk(*pickle.loads(connection.recv_bytes()))
        except EOFError:
            return
        _answer(evaluator, chunk, connection)


def _set_up(setup: Setup) -> tuple[Evaluator, Ready]:
    limited = setup.memory_mb > 0 and limit_memory(setup.memory_mb)
    evaluator = Evaluator(setup, before_each=seed_by_address)
    home = os.getcwd()  # where the function's file left it

    def before_each(address: str) -> None:
        os.chdir(home)  # a function that goes elsewhere takes nobody with it
        seed_by_address(address)

    evaluator.before_each = before_each
    asyncio.set_event_loop(evaluator.loop)
    return evaluator, Ready(evaluator.is_async, limited)


def _startup_error(error: BaseException) -> UserError:
    if isinstance(error, UserError):
        return error
    return UserError(f"the reward function could not be loaded: {type(error).__name__}: {error}")


def _answer(evaluator: Evaluator, chunk: Chunk, connection: Connection) -> None:
    """One reply per sample, as soon as it is there: in order, or all at once for an async function."""
    process = os.getpid()

    def reply(index: int, outcome: Outcome) -> None:
        if os.getpid() != process:
            os._exit(0)  # a function forked, and this is its child: the other one answers
        printed = take_printed()
        outcome = outcome._replace(printed=printed) if printed else outcome
        message = json.dumps([chunk.number, index, *outcome]).encode()
        if len(message) > MOST_BYTES:
            text = f"returned {len(message) / 2**20:.0f} MiB of extras; {MOST_BYTES / 2**20:.0f} are allowed"
            message = json.dumps([chunk.number, index, *Outcome(kind=INVALID, text=text)]).encode()
        connection.send_bytes(message)

    arm_alarm(chunk.seconds + _ORPHAN_SECONDS)
    if evaluator.is_async:
        evaluator.outcomes_at_once(chunk.payloads, reply)
    else:
        for index, payload in enumerate(chunk.payloads):
            reply(index, evaluator.outcome(payload))
            if __name__ not in sys.modules:
                os._exit(0)  # a function emptied sys.modules: a fresh worker takes over
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
