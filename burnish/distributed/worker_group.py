"""WorkerGroup: the controller's view of worker processes that each host one object."""

from __future__ import annotations

import contextlib
import functools
import itertools
import queue
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol, runtime_checkable

from burnish.distributed.channel import NO_RESULT, Call, Channel, PendingCalls, Result, serialize
from burnish.distributed.handshake import Listener
from burnish.distributed.host import BUILD, CLOSE, RENDEZVOUS, STACKS
from burnish.distributed.traffic import Traffic
from burnish.errors import UserError, WorkerDied
from burnish.network import socket_folder

NOT_RESPONDING = "does not respond"
EXIT_DELAY = 2.0  # seconds between the end of a process and the time its exit code is known


class Starter(Protocol):
    """Starts worker processes, which then connect to the controller."""

    def start(self, names: Sequence[str], address: str) -> None:
        """One process per name; each connects to `address` (handshake.py) as the rank of its name."""
        ...

    def poll(self) -> None:
        """Called every half second until all workers have connected."""
        ...

    def exit_reason(self, name: str) -> str | None:
        """Why a process has ended; None while it runs."""
        ...

    def node(self, name: str) -> str:
        """The machine that a process runs on."""
        ...

    def stop(self) -> None:
        """End all processes that still run after CLOSE."""
        ...

    def kill(self) -> None:
        """End all processes at once."""
        ...


class Link(Protocol):
    """Calls to one worker, in order."""

    def send(self, call: Call, message: bytes | None = None) -> None:
        """`message` is the call where it is serialized already; OSError or ValueError if the worker is gone."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class CallingStarter(Starter, Protocol):
    """A starter whose processes are called by its own means instead of our sockets (Ray)."""

    def connect(
        self,
        names: Sequence[str],
        timeout: float,
        resolve: Callable[[int, Result], None],
        fail: Callable[[int, str], None],
    ) -> list[Link]:
        """Start the processes. `resolve` gets the results of each rank, `fail` why a rank has no more."""
        ...

    def revive(self, rank: int) -> Link | None:
        """Start a process anew, as soon as there is a place for it; None if `stop` comes first."""
        ...

    def share(self, value: Any) -> Any:
        """Store data for calls of several workers; what `Call.shared` then is."""
        ...


@dataclass(frozen=True)
class Shared:
    """Data that several workers get, serialized once."""

    id: int
    data: Any  # bytes, or what the starter's transport stores
    num_bytes: int


@dataclass(eq=False)
class Worker:
    """One process of a group."""

    name: str
    link: Link | None = None  # None until it has started
    pending: PendingCalls = field(default_factory=PendingCalls)


class SocketLink:
    """Calls over a socket."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def send(self, call: Call, message: bytes | None = None) -> None:
        self.channel.send_bytes(serialize(call) if message is None else message)

    def close(self) -> None:
        self.channel.close()


class WorkerGroup:
    """`call` runs a method on all workers, `submit` on one. Calls to a worker that dies raise WorkerDied."""

    def __init__(
        self, names: Sequence[str], starter: Starter, *, host: str | None = None, timeout: float = 300
    ) -> None:
        """`host`: the network address of this machine, if workers may run on other machines."""
        self.names = list(names)
        self.starter = starter
        self._next_id = 0
        self._starting: dict[int, Worker] = {}  # workers that are started anew
        self._id_lock = threading.Lock()
        self._closing = False
        self._killed: WorkerDied | None = None
        self._store_numbers = itertools.count()
        self._shared_ids = itertools.count()
        self.elastic = False  # whether the group goes on without workers that died
        self.on_death: Callable[[int], None] = lambda rank: None  # called before calls to this worker fail
        self._build: tuple[str, Sequence[tuple[Any, ...]]] = ("", ())
        self.workers = [Worker(name) for name in self.names]
        self._folder: Path | None = None  # private; None if workers may run on other machines
        try:
            if isinstance(starter, CallingStarter):
                self._connect(starter, timeout, local=host is None)
            else:
                self._listen_at(host, timeout)
        except BaseException:
            _remove(self._folder)
            raise

    def _connect(self, starter: CallingStarter, timeout: float, *, local: bool) -> None:
        if local:
            self._folder = socket_folder("burnish-")
        links = starter.connect(
            self.names,
            timeout,
            lambda rank, result: self._starting.get(rank, self.workers[rank]).pending.resolve(result),
            self._lost,
        )
        for worker, link in zip(self.workers, links, strict=True):
            worker.link = link

    def _listen_at(self, host: str | None, timeout: float) -> None:
        listener = Listener(host, len(self.names))
        self._folder = listener.folder
        try:
            self.starter.start(self.names, listener.address)
            channels = self._accept_workers(listener, timeout)
        finally:
            listener.close()
        for worker, channel in zip(self.workers, channels, strict=True):
            worker.link = SocketLink(channel)
            args = (worker, channel)
            threading.Thread(target=self._listen, args=args, daemon=True, name=f"burnish-{worker.name}").start()

    @functools.cached_property
    def traffic(self) -> Traffic:
        """Bytes of shared data."""
        nodes = [self.starter.node(name) for name in self.names]
        return Traffic(nodes, once_per_node=isinstance(self.starter, CallingStarter))

    @property
    def size(self) -> int:
        return len(self.workers)

    def build(self, factory: str, args: Sequence[tuple[Any, ...]]) -> None:
        """Each worker builds its object: "module:name", called with the arguments of its rank."""
        self._build = (factory, args)
        self.gather([self.submit(rank, BUILD, factory, *rank_args) for rank, rank_args in enumerate(args)])

    @property
    def living(self) -> list[int]:
        """Ranks that answer; all but in an elastic group."""
        ranks = range(self.size)
        return [rank for rank in ranks if not self.elastic or self.workers[rank].pending.error is None]

    @property
    def closing(self) -> bool:
        return self._closing or self._killed is not None

    def revive(self, rank: int) -> bool:
        """Start a worker that died anew, as soon as there is a place for it, and build its object.

        False if the launcher cannot, or if the group is closed first. WorkerDied or UserError if it fails.
        """
        if self.closing or not isinstance(self.starter, CallingStarter):
            return False
        link = self.starter.revive(rank)
        if link is None:
            return False
        worker = Worker(self.names[rank], link)
        factory, args = self._build
        future = self._send(worker, Call(self._new_id(), BUILD, (factory, *args[rank])))[0]
        self._starting[rank] = worker
        try:
            future.result()
        finally:
            del self._starting[rank]
        self.workers[rank] = worker
        return True

    def new_rendezvous(self) -> str:
        """Where the ranks, or a weight transfer, can rendezvous: the address of a new store (rendezvous.py)."""
        if self._folder is not None:
            return f"file:{self._folder / f'store-{next(self._store_numbers)}'}"
        return self.submit(0, RENDEZVOUS).result()

    def submit(self, rank: int, method: str, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a method of one worker."""
        (future,) = self._send(self.workers[rank], Call(self._new_id(), method, args, kwargs))
        return future

    def share(self, value: Any, num_bytes: int) -> Shared:
        """Data for calls of several workers. `num_bytes` counts in `traffic`."""
        self.traffic.put += num_bytes
        data = self.starter.share(value) if isinstance(self.starter, CallingStarter) else serialize(value)
        return Shared(next(self._shared_ids), data, num_bytes)

    def submit_shared(self, rank: int, shared: Shared, method: str, *args: Any) -> Future[Any]:
        """Call a method of one worker, which gets the data as the argument `shared`."""
        self.traffic.sent(shared.id, shared.num_bytes, rank)
        (future,) = self._send(self.workers[rank], Call(self._new_id(), method, args, shared=shared.data))
        return future

    def submit_streaming(self, rank: int, num_results: int, method: str, *args: Any) -> list[Future[Any]]:
        """Call a method of one worker that returns futures; each result arrives as soon as it is there."""
        return self._send(self.workers[rank], Call(self._new_id(num_results), method, args, {}, num_results))

    def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of all workers and wait; the results of those ranks that have one, in rank order.

        In an elastic group: of those workers that live.
        """
        call = Call(self._new_id(), method, args, kwargs)
        message = serialize(call)  # once for all workers
        futures = [self._send(self.workers[rank], call, message)[0] for rank in self.living]
        return [result for result in self.gather(futures) if result is not NO_RESULT]

    def stacks(self, timeout: float = 5.0) -> dict[str, str]:
        """Stack traces of every worker's threads, by name; NOT_RESPONDING for a worker that does not answer."""
        futures = {worker.name: self.submit(rank, STACKS) for rank, worker in enumerate(self.workers)}
        wait(futures.values(), timeout=timeout)
        return {name: _stack_or_error(future) for name, future in futures.items()}

    def kill(self, who: str, why: str) -> None:
        """End all workers at once; pending calls raise WorkerDied(who, why)."""
        self._killed = WorkerDied(who, why)
        self.starter.kill()

    def close(self) -> None:
        """Ask all workers to end, then end those that do not."""
        if self._closing:
            return
        self._closing = True
        for worker in self.workers:
            with contextlib.suppress(OSError, ValueError):
                self._link(worker).send(Call(self._new_id(), CLOSE))
        self.starter.stop()
        for worker in self.workers:
            self._link(worker).close()
        _remove(self._folder)

    def gather(self, futures: list[Future[Any]]) -> list[Any]:
        """All results. If one rank fails, the others would wait in a collective for ever, so the group is stopped.

        In an elastic group there are no collectives: those who died are left out, unless nobody is left.
        """
        if self.elastic:
            wait(futures)
            lost = [isinstance(future.exception(), WorkerDied) for future in futures]
            if not all(lost):
                futures = [future for future, is_lost in zip(futures, lost, strict=True) if not is_lost]
        wait(futures, return_when=FIRST_EXCEPTION)
        if any(future.done() and future.exception() is not None for future in futures):
            self._raise_cause(futures)
        return [future.result() for future in futures]

    def _raise_cause(self, futures: list[Future[Any]]) -> NoReturn:
        """A UserError first; then a death, of which other ranks may report consequences before it is known."""
        done, running = wait(futures, timeout=EXIT_DELAY)  # all ranks may be about to raise the same error
        errors = [error for future in done if (error := future.exception()) is not None]
        user_errors = [error for error in errors if isinstance(error, UserError)]
        deaths = [] if self._closing else [worker.pending.error for worker in self.workers if worker.pending.error]
        if running or len(user_errors) < len(errors):
            self._closing = True
            self.starter.kill()  # a rank in a collective never ends by itself
            self.starter.stop()
        raise [*user_errors, *deaths, *errors][0]

    def _new_id(self, count: int = 1) -> int:
        with self._id_lock:
            first = self._next_id
            self._next_id += count
        return first

    def _send(self, worker: Worker, call: Call, message: bytes | None = None) -> list[Future[Any]]:
        futures = worker.pending.add(call.ids)
        try:
            self._link(worker).send(call, message)
        except (OSError, ValueError):
            self._fail(worker, self._death(worker))
        return futures

    def _link(self, worker: Worker) -> Link:
        assert worker.link is not None
        return worker.link

    def _accept_workers(self, listener: Listener, timeout: float) -> list[Channel]:
        """Wait until all workers have connected; one that ends before is named at once."""
        channels: dict[int, Channel] = {}
        end = time.monotonic() + timeout
        while len(channels) < len(self.names):
            with contextlib.suppress(queue.Empty):
                rank, connection = listener.connected.get(timeout=0.5)
                channels[rank] = Channel(connection)
                continue
            self.starter.poll()
            missing = [name for rank, name in enumerate(self.names) if rank not in channels]
            ended = [(name, reason) for name in missing if (reason := self.starter.exit_reason(name))]
            if ended or time.monotonic() > end:
                self.starter.stop()
                raise WorkerDied(
                    *(ended[0] if ended else (", ".join(missing), f"did not connect within {timeout:g} s"))
                )
        return [channels[rank] for rank in range(len(self.names))]

    def _listen(self, worker: Worker, channel: Channel) -> None:
        try:
            while True:
                worker.pending.resolve(channel.receive())
        except (EOFError, OSError):
            self._fail(worker, self._death(worker))

    def _fail(self, worker: Worker, death: WorkerDied) -> None:
        if worker in self.workers:
            self.on_death(self.workers.index(worker))
        worker.pending.fail_all(death)

    def _lost(self, rank: int, why: str) -> None:
        """A worker will answer no more."""
        worker = self._starting.get(rank, self.workers[rank])
        death = WorkerDied(worker.name, "was stopped" if self._closing else why)
        self._fail(worker, self._killed or death)

    def _death(self, worker: Worker) -> WorkerDied:
        if self._killed is not None:
            return self._killed
        deadline = time.monotonic() + EXIT_DELAY / 2
        while not (reason := self.starter.exit_reason(worker.name)) and not self._closing:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return WorkerDied(worker.name, "was stopped" if self._closing else reason or "closed its connection")


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _stack_or_error(future: Future[str]) -> str:
    if not future.done():
        return NOT_RESPONDING
    error = future.exception()
    return future.result() if error is None else str(error)
