"""Main loop of a worker process: evaluates samples received over a pipe. Does not import torch, to start fast."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import os
import pickle
import random
import sys
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

from burnish.errors import NotSupportedYet, UserError
from burnish.reward.call import Inputs, plain, trimmed, user_frames
from burnish.reward.channel import MAX_MESSAGE_BYTES
from burnish.reward.evaluate import Evaluator, Setup
from burnish.reward.limits import arm_alarm, forbid_core_dumps, limit_cause, limit_files, limit_memory
from burnish.reward.sample import INVALID, MAX_EXTRAS_BYTES, Outcome

STARTUP_SECONDS = 120.0  # a user's file may import large libraries
_ORPHAN_SECONDS = 10.0  # added to the time limit, in case the parent has exited and cannot enforce it
_OUTPUT_LIMIT = 20_000  # bytes of output kept per sample: the end of it
MAX_TEXT = 2 * _OUTPUT_LIMIT  # characters of output and error message per sample
STARTED, DONE = "started", "done"  # instead of an index: the next sample has begun, or the worker awaits the next chunk


@dataclass(frozen=True)
class Ready:
    """A worker's first message, after it has loaded the function."""

    concurrent: bool  # samples run concurrently (async function)
    memory_limited: bool
    inputs: Inputs

    def to_json(self) -> bytes:
        """The message."""
        values = {"concurrent": self.concurrent, "memory_limited": self.memory_limited} | asdict(self.inputs)
        return json.dumps(values).encode()


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
    setup = None
    try:
        setup = pickle.loads(connection.recv_bytes())
        evaluator, ready = _set_up(setup)
    except EOFError:
        return
    except BaseException as error:
        connection.send_bytes(_to_json(_startup_error(error, setup)))
        return
    arm_alarm(0)
    connection.send_bytes(ready.to_json())
    while True:
        try:
            chunk = Chunk(*pickle.loads(connection.recv_bytes()))
        except EOFError:
            return
        _evaluate_chunk(evaluator, chunk, connection)


def _set_up(setup: Setup) -> tuple[Evaluator, Ready]:
    memory_limited = setup.memory_mb > 0 and limit_memory(setup.memory_mb, final=False)
    evaluator = Evaluator(setup, before_each=seed_random)
    if memory_limited:
        limit_memory(setup.memory_mb)
    folder = os.getcwd()  # after importing the user's file, which may have changed it

    def before_each(seed_key: str) -> None:
        os.chdir(folder)  # undo a chdir of the previous call
        seed_random(seed_key)

    evaluator.before_each = before_each
    asyncio.set_event_loop(evaluator.loop)
    return evaluator, Ready(evaluator.is_async, memory_limited, evaluator.inputs)


def _startup_error(error: BaseException, setup: Setup | None) -> UserError:
    """The error for the user; if a limit of the worker explains it, with that cause and what a library printed."""
    cause = error.__cause__ or error if isinstance(error, UserError) else error
    output, memory_mb = take_output(), 0 if setup is None else setup.memory_mb
    limit = limit_cause(cause, output, memory_mb)
    if isinstance(error, UserError) and limit is None:
        return error
    where = "" if setup is None else f" {setup.source.label('')}"
    problem = f"the reward function{where} could not be loaded: {type(cause).__name__}: {cause}".rstrip(": ")
    if limit is None:
        return UserError(f"{problem}{user_frames(cause)}", key=_key(setup))
    printed = f"\n{trimmed(output)}" if output else ""
    hint = f"reward.memory_mb={max(2 * memory_mb, 8192)}"
    return UserError(f"{problem}. Likely cause: {limit}{user_frames(cause)}{printed}", key=_key(setup), hint=hint)


def _to_json(error: UserError) -> bytes:
    allowed = list(map(str, error.allowed)) if isinstance(error.allowed, list) else error.allowed
    values = {"problem": error.problem, "key": error.key, "allowed": allowed, "hint": error.hint}
    unsupported = isinstance(error, NotSupportedYet)
    return json.dumps(values | {"value": plain(error.value), "unsupported": unsupported}).encode()


def _key(setup: Setup | None) -> str | None:
    return None if setup is None else setup.source.key


def _evaluate_chunk(evaluator: Evaluator, chunk: Chunk, connection: Connection) -> None:
    """Evaluate samples and reply to each as soon as it is done: sequentially, or concurrently for an async function."""
    process = os.getpid()

    def reply(index: int, outcome: Outcome) -> None:
        if os.getpid() != process:
            os._exit(0)  # a child that the reward function forked; the parent replies
        output = take_output()
        outcome = outcome._replace(printed=output) if output else outcome
        message = json.dumps([chunk.number, index, *outcome]).encode()
        limit = min(MAX_MESSAGE_BYTES, MAX_EXTRAS_BYTES * evaluator.num_samples)
        if len(message) > limit + MAX_TEXT:
            text = f"returned {len(message) / 2**20:.0f} MiB of extras; the limit is {limit / 2**20:.0f} MiB"
            message = json.dumps([chunk.number, index, *Outcome(kind=INVALID, text=text)]).encode()
        connection.send_bytes(message)

    def report(step: str) -> None:
        connection.send_bytes(json.dumps([chunk.number, step]).encode())

    arm_alarm(chunk.seconds + _ORPHAN_SECONDS)
    if evaluator.is_async:
        report(STARTED)
        evaluator.evaluate_concurrently(chunk.payloads, reply)
    else:
        for index, payload in enumerate(chunk.payloads):
            report(STARTED)
            reply(index, evaluator.evaluate(payload))
            if __name__ not in sys.modules:
                report(DONE)
                os._exit(0)  # the function cleared sys.modules: let a new worker take over
    arm_alarm(0)
    report(DONE)


def seed_random(key: str) -> None:
    """Seed Python's and NumPy's global generators, so that scores do not depend on the worker or the order of calls."""
    random.seed(key)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(random.getrandbits(32))


def take_output() -> str:
    """Text written to stdout and stderr since the last call. Both are the same file, which the parent can also read."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the function may have closed or replaced it
            stream.flush()
    try:
        size = os.fstat(1).st_size
        if size == 0:
            return ""
        text = os.pread(1, _OUTPUT_LIMIT, max(0, size - _OUTPUT_LIMIT)).decode("utf-8", "replace")
        os.ftruncate(1, 0)
        os.lseek(1, 0, os.SEEK_SET)
    except OSError:  # the function has closed or redirected the descriptor
        return ""
    omitted = f"... ({size - _OUTPUT_LIMIT} bytes omitted)\n" if size > _OUTPUT_LIMIT else ""
    return omitted + text.strip()
