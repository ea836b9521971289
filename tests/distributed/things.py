"""What the workers of these tests host."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future
from typing import Any

from burnish.distributed.channel import NO_RESULT
from burnish.distributed.ray_actor import HostActor
from burnish.errors import UserError


class Thing:
    """Adds, fails, waits and dies on request."""

    concurrent = frozenset({"release", "later"})

    def __init__(self, rank: int, base: int = 0) -> None:
        self.rank = rank
        self.base = base
        self.num_calls = 0
        self.released = threading.Event()
        self.streams: list[Future[str]] = []

    def add(self, number: int) -> int:
        return self.base + self.rank + number

    def add_on(self, rank: int, number: int) -> Any:
        return self.add(number) if self.rank == rank else NO_RESULT

    def nothing(self) -> None:
        pass

    def order(self) -> int:
        self.num_calls += 1
        return self.num_calls

    def stream(self) -> list[Future[str]]:
        self.streams = [Future() for _ in range(3)]
        self.streams[0].set_result("first")
        return self.streams

    def finish_stream(self) -> None:
        self.streams[1].set_result("second")
        self.streams[2].set_exception(UserError("the third failed"))

    def nothing_to_stream(self) -> list[Future[str]]:
        return []

    def mistype(self) -> None:
        raise UserError("no such thing", key="a.key", value=3, hint="a.key=4")

    def fail_on(self, rank: int) -> None:
        if self.rank == rank:
            raise ValueError("the worker's own words")
        time.sleep(600)

    def break_with(self, rank: int) -> None:
        """One dies amid a collective; the others hear that it is broken before anybody hears of the death."""
        if self.rank == rank:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("connection closed by peer")

    def wait_for_release(self) -> bool:
        return self.released.wait(30)

    def release(self) -> None:
        self.released.set()

    def later(self) -> Future[str]:
        answer: Future[str] = Future()
        threading.Timer(0.05, lambda: answer.set_result("later")).start()
        return answer

    def unsendable(self) -> object:
        return threading.Lock()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Unbuildable:
    """Refuses to be made."""

    def __init__(self, rank: int) -> None:
        raise UserError("cannot be made", key="a.key")


class DyingActor(HostActor):
    """Its node is lost between two calls."""

    async def start(self, address):
        os._exit(1)
