"""Handles: the controller's side of roles that run in worker processes. They satisfy the protocols of local roles."""

from __future__ import annotations

import itertools
import secrets
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.batch import Batch, Ragged
from burnish.distributed.weights import Endpoint
from burnish.distributed.worker_group import WorkerGroup
from burnish.errors import WorkerDied
from burnish.loop.media_transfer import sender_of
from burnish.loop.row_transfer import RowTransfer
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Capabilities, Completion, Request
from burnish.training.policy import UpdateResult
from burnish.training.protocols import Pending


class RoleHandle:
    """One role on all ranks of a pool."""

    def __init__(self, group: WorkerGroup, role: str) -> None:
        self.group = group
        self.role = role
        self.rows = RowTransfer(group, role)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run a method of the role on all ranks; the result of the rank that reports it."""
        packed, media = [], []
        for value in args:
            if isinstance(value, Batch):
                value, new = sender_of(self.group).pack_batch(value, range(self.group.size))
                media += new
            packed.append(value)
        if media:
            kwargs["media"] = media
        (result,) = self.group.call("call_role", self.role, method, *packed, **kwargs)
        return result


WRITER_IDS = itertools.count()


class WriterHandle:
    """Writes a role's prepared state, several times if need be. The ranks drop it when the handle is collected."""

    def __init__(self, group: WorkerGroup, id: int) -> None:
        self.group = group
        self.id = id
        weakref.finalize(self, _drop_writer, group, id).atexit = False

    def __call__(self, folder: Path) -> None:
        problem = next((problem for problem in self.group.call("write", self.id, folder) if problem is not None), None)
        if problem is not None:
            raise OSError(problem)


def _drop_writer(group: WorkerGroup, id: int) -> None:
    for rank in range(group.size):
        group.submit(rank, "drop_writer", id)


class TrainedRoleHandle(RoleHandle):
    """A role with an optimizer."""

    @property
    def device(self) -> str:
        return f"{self.group.size} x {self.call('device')}"

    def writer(self, contents: Collection[str], tokenizer: Any = None, *, copy: bool = False) -> Callable[[Path], None]:
        id = next(WRITER_IDS)
        self.group.call("prepare_writer", id, self.role, list(contents), tokenizer is not None, copy)
        return WriterHandle(self.group, id)

    def load(self, folder: Path, contents: Collection[str], *, key: str) -> None:
        self.call("load", folder, list(contents), key=key)

    def export(self, folder: Path, tokenizer: Any) -> None:
        self.call("export", folder, tokenizer)


@dataclass(frozen=True)
class RemoteWeights:
    """Weights that stay in the policy's processes until an engine of the same run loads them."""

    group: WorkerGroup

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        raise TypeError("weights in worker processes can only be loaded by an EngineHandle")


class PolicyHandle(TrainedRoleHandle):
    """PolicyRole in worker processes."""

    def updates_once(self, num_rows: int) -> bool:
        return self.call("updates_once", num_rows)

    def start_log_probs(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        return self.rows.forward("compute_log_probs", batch)

    def start_exact_kl(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        return _named("exact_kl", self.rows.forward("compute_exact_kl", batch))

    def start_update(self, batch: Batch, step: int) -> Pending[UpdateResult]:
        return self.rows.update("update", batch, step)

    def weights(self) -> RemoteWeights:
        return RemoteWeights(self.group)


class CriticHandle(TrainedRoleHandle):
    """CriticRole in worker processes."""

    def start_values(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        return _named("values", self.rows.forward("compute_values", batch))

    def start_update(self, batch: Batch, step: int) -> Pending[UpdateResult]:
        return self.rows.update("update", batch, step)


class ReferenceHandle(RoleHandle):
    """ReferenceRole in worker processes."""

    def start_log_probs(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        return _named("ref_log_prob", self.rows.forward("compute_log_probs", batch))


class SftHandle(TrainedRoleHandle):
    """SftRole in worker processes."""

    def compute_log_probs(self, batch: Batch) -> Ragged:
        (column,) = self.rows.forward("compute_log_probs", batch)().values()
        return column

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        return self.rows.update("update", batch, step)().metrics


class RewardModelHandle(RoleHandle):
    """RewardModelRole in worker processes; it needs text columns too."""

    def compute_scores(self, batch: Batch) -> list[float]:
        return self.call("compute_scores", batch)

    def take(self) -> dict[str, float]:
        return self.call("take")


class EngineHandle:
    """One engine per rank of a pool, or per `engine_size` neighboring ranks, of which the first gets its requests.

    Requests with equal prompts go to one engine, which prefills the prompt once; prompts go to the engines in turn.
    Requests of a session go to the engine that holds it. Every completion returns as soon as it is finished.
    """

    def __init__(self, group: WorkerGroup, backend: str = "gloo", bucket_bytes: int = 0, engine_size: int = 1) -> None:
        """`backend` and `bucket_bytes`: how weights of a policy in other processes are sent, if there is one."""
        self.group = group
        self.ranks = range(0, group.size, engine_size)  # the first of each engine
        self.backend = backend
        self.bucket_bytes = bucket_bytes
        capabilities: Capabilities = group.call("engine_capabilities")[0]  # all engines are built alike
        self.capabilities = replace(capabilities, digests=False, watch=False)  # each engine compares its own weights
        self._request_ids = itertools.count()
        self._next_rank = itertools.cycle(self.ranks)
        self._lock = threading.Lock()
        self._in_flight: dict[Future[Completion], tuple[int, int]] = {}  # rank and request id
        self._prompt_ranks: dict[bytes, int] = {}  # of prompts in flight
        self._num_in_flight: Counter[bytes] = Counter()  # requests per prompt
        self._session_ranks: dict[str, int] = {}
        if engine_size > 1:
            group.on_death = lambda rank: self._lost(rank, rank // engine_size * engine_size)

    def _lost(self, rank: int, first: int) -> None:
        """The first rank of an engine may wait forever for one that was lost, inside a collective."""
        if not self.group.closing:
            self.group.workers[first].pending.fail_all(WorkerDied(self.group.names[rank], "was lost"))

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        with self._lock:
            ranks = [self._route(request) for request in requests]
        futures: list[Future[Completion] | None] = [None] * len(requests)
        for rank in dict.fromkeys(ranks):
            numbers = [number for number, other in enumerate(ranks) if other == rank]
            started = self._start(rank, [requests[number] for number in numbers])
            for number, future in zip(numbers, started, strict=True):
                futures[number] = future
        return [future for future in futures if future is not None]

    def _route(self, request: Request) -> int:
        """The rank of the engine that gets this request."""
        key, session = request.input.key, request.session
        rank = None if session is None else self._session_ranks.get(session)
        if rank is None:
            rank = self._prompt_ranks.get(key)
        if rank is None:
            rank = self._prompt_ranks[key] = next(self._next_rank)
        self._num_in_flight[key] += 1
        if session is not None:
            self._session_ranks[session] = rank
        return rank

    def _start(self, rank: int, requests: list[Request]) -> list[Future[Completion]]:
        ids = [next(self._request_ids) for _ in requests]
        sources = self.capabilities.reads_sources
        packed, media = sender_of(self.group).pack_requests(rank, requests, sources=sources)
        futures = self.group.submit_streaming(rank, len(requests), "generate", ids, packed, media)
        for id, future, request in zip(ids, futures, requests, strict=True):
            self._in_flight[future] = (rank, id)
            future.add_done_callback(partial(self._finish, request.input.key))
        return futures

    def _finish(self, key: bytes, future: Future[Completion]) -> None:
        with self._lock:
            self._in_flight.pop(future, None)
            self._num_in_flight[key] -= 1
            if self._num_in_flight[key] <= 0:
                del self._num_in_flight[key]
                self._prompt_ranks.pop(key, None)

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        in_flight = [entry for future in futures if (entry := self._in_flight.get(future)) is not None]
        for rank in sorted({rank for rank, _ in in_flight}):
            ids = [id for other, id in in_flight if other == rank]
            self.group.submit(rank, "abort", ids).result()

    def end_session(self, session: str) -> None:
        rank = self._session_ranks.pop(session, None)
        if rank is not None:
            self.group.submit(rank, "end_session", session)

    def expect_return(self, session: str, seconds: float) -> None:
        rank = self._session_ranks.get(session)
        if rank is not None:
            self.group.submit(rank, "expect_return", session, seconds)

    def pause(self) -> None:
        self.group.call("call_role", "engine", "pause")

    def resume(self) -> None:
        self.group.call("call_role", "engine", "resume")

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> float:
        """From the policy in the same processes, or from another pool's rank 0 to all engines.

        Returns the seconds that the slowest engine spent comparing its weights with those that were sent.
        """
        if not isinstance(stream, RemoteWeights):
            raise TypeError("engines in worker processes load weights of a policy in worker processes only")
        if stream.group is self.group:
            return max(self.group.call("sync_weights", version))
        ranks = self._receivers()
        address, size, key = stream.group.new_rendezvous(), len(ranks) + 1, secrets.token_bytes(32)
        sender, *receivers = [
            Endpoint(address, number, size, self.backend, self.bucket_bytes, key=key) for number in range(size)
        ]
        sending = [stream.group.submit(rank, "send_weights", sender) for rank in range(stream.group.size)]
        receiving = [
            self.group.submit(rank, "receive_weights", endpoint, version)
            for rank, endpoint in zip(ranks, receivers, strict=True)
        ]
        _check_alive(sending, receiving)
        stream.group.gather(sending)
        seconds = max(self.group.gather(receiving))
        self._have_weights(ranks)
        return seconds

    def _receivers(self) -> list[int]:
        """Ranks that get weights."""
        return list(range(self.group.size))

    def _have_weights(self, ranks: Sequence[int]) -> None:
        """Called when they have them."""

    def digests(self) -> dict[str, Tensor]:
        raise TypeError("engines in worker processes compare their weights themselves (capabilities.digests)")

    def local_weight(self, name: str, whole: Tensor) -> Tensor:
        raise TypeError("engines in worker processes compare their weights themselves (capabilities.digests)")

    def score(self, rows: Sequence[ModelInput | Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        size = len(self.ranks)
        futures = [
            self.group.submit(rank, "score", list(rows[number::size]), temperature)
            for number, rank in enumerate(self.ranks)
        ]
        scores: list[list[float]] = [[] for _ in rows]
        for number, part in enumerate(self.group.gather(futures)):
            scores[number::size] = part
        return scores

    def sleep(self, level: int = 1) -> None:
        self.group.call("call_role", "engine", "sleep", level)

    def wake(self) -> None:
        self.group.call("call_role", "engine", "wake")

    def stats(self) -> dict[str, float]:
        """Sums over all engines; for seconds, the slowest engine's."""
        all_stats = self.group.call("engine_stats")
        names = dict.fromkeys(name for stats in all_stats for name in stats)
        reductions = {"seconds": max}
        return {name: reductions.get(name, sum)([stats.get(name, 0.0) for stats in all_stats]) for name in names}

    def step(self) -> bool:
        """Engines in other processes drive themselves."""
        return False

    def close(self) -> None:
        """The pool is closed as a whole."""


def _check_alive(sending: list[Future[Any]], receiving: list[Future[Any]]) -> None:
    """Wait for a transfer. If an engine dies, raise that: the others would wait for it until the transfer times out."""
    wait([*sending, *receiving], return_when=FIRST_EXCEPTION)
    for future in receiving:
        if future.done() and isinstance(error := future.exception(), WorkerDied):
            raise error


def _named(name: str, pending: Pending[dict[str, Ragged]]) -> Pending[dict[str, Ragged]]:
    """The only column of a result, under this name."""

    def wait() -> dict[str, Ragged]:
        (column,) = pending().values()
        return {name: column}

    return wait
