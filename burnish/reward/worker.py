"""Main loop of a worker process: evaluates samples received over a pipe. Does not import torch, to start fast."""

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
from burnish.reward.channel import MAX_MESSAGE_BYTES
from burnish.reward.evaluate import Evaluator, Setup
from burnish.reward.limits import arm_alarm, forbid_core_dumps, limit_files, limit_memory
from burnish.reward.sample import INVALID, Outcome

STARTUP_SECONDS = 120.0  # a user's file may import large libraries
_ORPHAN_SECONDS = 10.0  # added to the time limit, in case the parent has exited and cannot enforce it
_OUTPUT_LIMIT = 2000


@dataclass(frozen=True)
class Ready:
    """A worker's first message: whether samples run concurrently (async function), and whether memory is limited."""

    concurrent: bool
    memory_limited: bool


class Chunk(NamedTuple):
    """Samples sent in one message. Replies carry its number, so that a late reply is not matched with another chunk."""

    number: int
    seconds: float
    payloads: list[bytes]


def main(descriptor: int) -> None:
    """Set up, then evaluate chunks of samples until the parent closes the pipe."""
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    faulthandler.enable()  # writes the stack of a segfault to the output file, which the parent reads
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
        _evaluate_chunk(evaluator, chunk, connection)


def _set_up(setup: Setup) -> tuple[Evaluator, Ready]:
    memory_limited = setup.memory_mb > 0 and limit_memory(setup.memory_mb)
    evaluator = Evaluator(setup, before_each=seed_random)
    folder = os.getcwd()  # after importing the user's file, which may have changed it

    def before_each(seed_key: str) -> None:
        os.chdir(folder)  # undo a chdir of the previous call
        seed_random(seed_key)

    evaluator.before_each = before_each
    asyncio.set_event_loop(evaluator.loop)
    return evaluator, Ready(evaluator.is_async, memory_limited)


def _startup_error(error: BaseException) -> UserError:
    if isinstance(error, UserError):
        return error
    return UserError(f"the reward function could not be loaded: {type(error).__name__}: {error}")


def _evaluate_chunk(evaluator: Evaluator, chunk: Chunk, connection: Connection) -> None:
    """Evaluate samples and reply to each as soon as it is done: sequentially, or concurrently for an async function."""
    process = os.getpid()

    def reply(index: int, outcome: Outcome) -> None:
        if os.getpid() != process:
            os._exit(0)  # a child that the reward function forked; the parent replies
        output = take_output()
        outcome = outcome._replace(printed=output) if output else outcome
        message = json.dumps([chunk.number, index, *outcome]).encode()
        if len(message) > MAX_MESSAGE_BYTES:
            text = (
                f"returned {len(message) / 2**20:.0f} MiB of extras; the limit is {MAX_MESSAGE_BYTES / 2**20:.0f} MiB"
            )
            message = json.dumps([chunk.number, index, *Outcome(kind=INVALID, text=text)]).encode()
        connection.send_bytes(message)

    arm_alarm(chunk.seconds + _ORPHAN_SECONDS)
    if evaluator.is_async:
        evaluator.evaluate_concurrently(chunk.payloads, reply)
    else:
        for index, payload in enumerate(chunk.payloads):
            reply(index, evaluator.evaluate(payload))
            if __name__ not in sys.modules:
                os._exit(0)  # the function cleared sys.modules: let a new worker take over
    arm_alarm(0)


def seed_random(key: str) -> None:
    """Seed Python's and NumPy's global generators, so that scores do not depend on the worker or the order of calls."""
    random.seed(key)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(random.getrandbits(32))


def take_output() -> str:
    """Text written to stdout and stderr since the last call. Both are the same file, which the parent can also read."""
    size = os.fstat(1).st_size
    if size == 0:
        return ""
    text = os.pread(1, _OUTPUT_LIMIT, max(0, size - _OUTPUT_LIMIT)).decode("utf-8", "replace")
    os.ftruncate(1, 0)
    os.lseek(1, 0, os.SEEK_SET)
    return text.strip()
