"""Group: worker processes that each host one object, as the controller sees them."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from typing import Any, NoReturn, Protocol

from burnish.distributed.channel import Call, Line, Pending, pack
from burnish.distributed.host import BUILD, CLOSE, MEETING, STACKS
from burnish.errors import UserError, WorkerDied

NO_ANSWER = "does not answer"
LAG = 2.0  # seconds between the end of a process and the news of it


class Starter(Protocol):
    """Brings worker processes to life. They then call the controller."""

    def start(self, names: Sequence[str], address: tuple[str, int], secret: bytes) -> None:
        """One process per name; each connects to `address` and says its name."""
        ...

    def why_dead(self, name: str) -> str | None:
        """What is known about a process that is gone; None while it lives."""
        ...

    def stop(self) -> None:
        """End all that still run; they were asked to."""
        ...

    def kill(self) -> None:
        """End all, at once."""
        ...


@dataclass
class Worker:
    """One process of a group."""

    name: str
    line: Line
    pending: Pending = field(default_factory=Pending)


class Group:
    """`call` runs a method on all workers and `submit` on one. A worker that dies fails what waits for it."""

    def __init__(
        self, names: Sequence[str], starter: Starter, *, host: str = "127.0.0.1", patience: float = 300
    ) -> None:
        self.names = list(names)
        self.starter = starter
        self._numbers = itertools.count()
        self._closing = False
        self._broken: WorkerDied | None = None
        secret = secrets.token_bytes(32)
        with Listener((host, 0), backlog=len(self.names), authkey=secret) as listener:
            starter.start(self.names, listener.address, secret)
            self.workers = self._meet(listener, patience)
        for worker in self.workers:
            threading.Thread(target=self._listen, args=(worker,), daemon=True, name=f"burnish-{worker.name}").start()

    @property
    def size(self) -> int:
        return len(self.workers)

    def build(self, factory: str, args: Sequence[tuple[Any, ...]]) -> None:
        """Each worker builds its object: "module:name" called with its own arguments."""
        self.gather([self.submit(rank, BUILD, factory, *own) for rank, own in enumerate(args)])

    def meeting_place(self) -> str:
        """host:port, free now, at which the first worker can be met."""
        return self.submit(0, MEETING).result()

    def submit(self, rank: int, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Ask one worker."""
        number = next(self._numbers)
        return self._send(self.workers[rank], number, pack(Call(number, method, args, kwargs)))

    def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Ask all workers for the same and wait; what they answer, by rank. Packed once, however many they are."""
        number = next(self._numbers)
        packed = pack(Call(number, method, args, kwargs))
        return self.gather([self._send(worker, number, packed) for worker in self.workers])

    def stacks(self, patience: float = 5.0) -> dict[str, str]:
        """What every worker's threads are doing, by name; one that does not answer is told so."""
        asked = {worker.name: self.submit(rank, STACKS) for rank, worker in enumerate(self.workers)}
        wait(asked.values(), timeout=patience)
        return {name: _said(future) for name, future in asked.items()}

    def break_off(self, who: str, why: str) -> None:
        """End all workers at once: whoever waits for them hears of it as of a death."""
        self._broken = WorkerDied(who, why)
        self.starter.kill()

    def close(self) -> None:
        """Ask all to end, then end those that do not."""
        if self._closing:
            return
        self._closing = True
        for worker in self.workers:
            try:
                worker.line.send(Call(next(self._numbers), CLOSE, (), {}))
            except (OSError, ValueError):
                continue
        self.starter.stop()
        for worker in self.workers:
            worker.line.close()

    def gather(self, futures: list[Future[Any]]) -> list[Any]:
        """All answers. One failure breaks a collective: the others would wait for ever, so they are ended."""
        wait(futures, return_when=FIRST_EXCEPTION)
        if any(future.done() and future.exception() is not None for future in futures):
            self._fail(futures)
        return [future.result() for future in futures]

    def _fail(self, futures: list[Future[Any]]) -> NoReturn:
        """Raise the cause: a user's mistake, else a death, which the others of a collective may hear of first."""
        done, waiting = wait(futures, timeout=LAG)  # they may be about to say the same
        failed = [error for future in done if (error := future.exception()) is not None]
        mistakes = [error for error in failed if isinstance(error, UserError)]
        deaths = [] if self._closing else [worker.pending.ended for worker in self.workers if worker.pending.ended]
        if waiting or len(mistakes) < len(failed):
            self._closing = True
            self.starter.stop()
        raise [*mistakes, *deaths, *failed][0]

    def _send(self, worker: Worker, number: int, packed: bytes) -> Future[Any]:
        future = worker.pending.expect(number)
        try:
            worker.line.send_packed(packed)
        except (OSError, ValueError):
            worker.pending.fail(self._death(worker))
        return future

    def _meet(self, listener: Listener, patience: float) -> list[Worker]:
        """Wait until all have called; a worker that dies before is named at once."""
        found: dict[str, Worker] = {}
        met = threading.Event()
        errors: list[BaseException] = []

        def accept() -> None:
            try:
                while len(found) < len(self.names):
                    with contextlib.suppress(AuthenticationError):  # a stranger
                        line = Line(listener.accept())
                        name = line.receive()
                        found[name] = Worker(name, line)
            except BaseException as error:
                errors.append(error)
            met.set()

        threading.Thread(target=accept, daemon=True, name="burnish-meet").start()
        waited = 0.0
        while not met.wait(0.5):
            waited += 0.5
            dead = [(name, why) for name in self.names if name not in found and (why := self.starter.why_dead(name))]
            if dead or waited > patience:
                self.starter.stop()
                missing = sorted(set(self.names) - set(found))
                raise WorkerDied(*(dead[0] if dead else (", ".join(missing), f"did not call within {patience:.0f} s")))
        if errors:
            self.starter.stop()
            raise WorkerDied("a worker", f"could not be met: {errors[0]}")
        return [found[name] for name in self.names]

    def _listen(self, worker: Worker) -> None:
        try:
            while True:
                worker.pending.settle(worker.line.receive())
        except (EOFError, OSError):
            worker.pending.fail(self._death(worker))

    def _death(self, worker: Worker) -> WorkerDied:
        if self._broken is not None:
            return self._broken
        patience = time.monotonic() + LAG / 2
        while not (why := self.starter.why_dead(worker.name)) and not self._closing and time.monotonic() < patience:
            time.sleep(0.05)
        return WorkerDied(worker.name, "was ended" if self._closing else why or "is gone")


def _said(future: Future[str]) -> str:
    if not future.done():
        return NO_ANSWER
    error = future.exception()
    return future.result() if error is None else str(error)
