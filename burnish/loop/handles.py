"""Handles: the roles of a run as the controller sees them when they live in other processes. Same methods."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from burnish.batch import Batch, Ragged
from burnish.distributed.group import Group
from burnish.distributed.weights import Link
from burnish.rollout.engine import Capabilities, Completion, Request
from burnish.training.policy import UpdateResult


class RoleHandle:
    """One role on all ranks of a pool."""

    def __init__(self, group: Group, role: str) -> None:
        self.group = group
        self.role = role

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.group.call("ask", self.role, method, *args, **kwargs)[0]


WRITERS = itertools.count()


class WriterHandle:
    """Writes what the ranks have prepared, several times if need be; they forget it when nobody holds this any more."""

    def __init__(self, group: Group, number: int) -> None:
        self.group = group
        self.number = number
        weakref.finalize(self, _forget, group, number).atexit = False

    def __call__(self, folder: Path) -> None:
        problem = next((said for said in self.group.call("write", self.number, folder) if said is not None), None)
        if problem is not None:
            raise OSError(problem)


def _forget(group: Group, number: int) -> None:
    for rank in range(group.size):
        group.submit(rank, "forget", number)


class LearnerHandle(RoleHandle):
    """A role that learns."""

    @property
    def device(self) -> str:
        return f"{self.group.size} x {self.ask('device')}"

    def writer(self, contents: Collection[str], tokenizer: Any = None, *, copy: bool = False) -> Callable[[Path], None]:
        number = next(WRITERS)
        self.group.call("prepare", number, self.role, list(contents), tokenizer is not None, copy)
        return WriterHandle(self.group, number)

    def load(self, folder: Path, contents: Collection[str], *, key: str) -> None:
        self.ask("load", folder, list(contents), key=key)

    def export(self, folder: Path, tokenizer: Any) -> None:
        self.ask("export", folder, tokenizer)


@dataclass(frozen=True)
class HeldWeights:
    """The weights of a policy that lives elsewhere: a stream that only an engine of the same cluster can take."""

    group: Group


class PolicyHandle(LearnerHandle):
    """The policy."""

    def updates_once(self, num_rows: int) -> bool:
        return self.ask("updates_once", num_rows)

    def compute_log_probs(self, batch: Batch) -> dict[str, Ragged]:
        return self.ask("compute_log_probs", numbers_of(batch))

    def compute_exact_kl(self, batch: Batch) -> Ragged:
        return self.ask("compute_exact_kl", numbers_of(batch))

    def update(self, batch: Batch, step: int) -> UpdateResult:
        return self.ask("update", numbers_of(batch), step)

    def weights(self) -> HeldWeights:
        return HeldWeights(self.group)


class CriticHandle(LearnerHandle):
    """The critic."""

    def compute_values(self, batch: Batch) -> Ragged:
        return self.ask("compute_values", numbers_of(batch))

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        return self.ask("update", numbers_of(batch), step)


class ReferenceHandle(RoleHandle):
    """The reference."""

    def compute_log_probs(self, batch: Batch) -> Ragged:
        return self.ask("compute_log_probs", numbers_of(batch))


class RewardModelHandle(RoleHandle):
    """The reward model; it reads texts too."""

    def compute_scores(self, batch: Batch) -> list[float]:
        return self.ask("compute_scores", batch)

    def take(self) -> dict[str, float]:
        return self.ask("take")


class EngineHandle:
    """One engine per rank of a pool. A prompt's samples go to one of them, prompts in turn to all."""

    def __init__(self, group: Group, backend: str, bucket_bytes: int) -> None:
        self.group = group
        self.backend = backend
        self.bucket_bytes = bucket_bytes
        found: Capabilities = group.call("engine_capabilities")[0]
        self.capabilities = replace(found, digests=False)  # each engine compares where it is
        self._numbers = itertools.count()
        self._turns = itertools.cycle(range(group.size))
        self._flying: dict[Future[Completion], tuple[int, int]] = {}  # where each is made, under which number

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        futures: list[Future[Completion]] = [Future() for _ in requests]
        for _, members in itertools.groupby(range(len(requests)), key=lambda number: requests[number].ids):
            self._start([(futures[number], requests[number]) for number in members])
        return futures

    def _start(self, asked: list[tuple[Future[Completion], Request]]) -> None:
        rank = next(self._turns)
        numbers = [next(self._numbers) for _ in asked]
        for (future, _), number in zip(asked, numbers, strict=True):
            future.set_running_or_notify_cancel()
            self._flying[future] = (rank, number)
        made = self.group.submit(rank, "generate", numbers, [request for _, request in asked])
        made.add_done_callback(lambda done: self._land([future for future, _ in asked], done))

    def _land(self, futures: list[Future[Completion]], done: Future[list[Completion]]) -> None:
        error = done.exception()
        completions = [None] * len(futures) if error is not None else done.result()
        for future, completion in zip(futures, completions, strict=True):
            self._flying.pop(future, None)
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(completion)

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        flying = [self._flying[future] for future in futures if future in self._flying]
        for rank in sorted({rank for rank, _ in flying}):
            numbers = [number for where, number in flying if where == rank]
            self.group.submit(rank, "abort", numbers).result()

    def pause(self) -> None:
        self.group.call("ask", "engine", "pause")

    def resume(self) -> None:
        self.group.call("ask", "engine", "resume")

    def load_weights(self, stream: HeldWeights, version: int) -> float:
        """From the policy in the same processes, or from another pool's first rank to all engines.

        Returns the seconds that the slowest engine took to compare what it holds with what was sent.
        """
        if stream.group is self.group:
            return max(self.group.call("sync", version))
        meeting = stream.group.meeting_place()
        links = [
            Link(meeting, rank, self.group.size + 1, self.backend, self.bucket_bytes)
            for rank in range(self.group.size + 1)
        ]
        sending = [stream.group.submit(rank, "send_weights", links[0]) for rank in range(stream.group.size)]
        taking = [
            self.group.submit(rank, "receive_weights", links[rank + 1], version) for rank in range(self.group.size)
        ]
        stream.group.gather(sending)
        return max(self.group.gather(taking))

    def score(self, rows: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        size = self.group.size
        parts = [self.group.submit(rank, "score", list(rows[rank::size]), temperature) for rank in range(size)]
        scores: list[list[float]] = [[] for _ in rows]
        for rank, found in enumerate(self.group.gather(parts)):
            scores[rank::size] = found
        return scores

    def sleep(self, level: int = 1) -> None:
        self.group.call("ask", "engine", "sleep", level)

    def wake(self) -> None:
        self.group.call("ask", "engine", "wake")

    def stats(self) -> dict[str, float]:
        """Sums over all engines; seconds are those of the slowest."""
        found = self.group.call("engine_stats")
        names = dict.fromkeys(name for stats in found for name in stats)
        how = {"seconds": max}
        return {name: how.get(name, sum)([stats.get(name, 0.0) for stats in found]) for name in names}

    def step(self) -> bool:
        """Engines in other processes drive themselves."""
        return False

    def close(self) -> None:
        """The pool is closed as a whole."""


def numbers_of(batch: Batch) -> Batch:
    """Only what models read: texts and what users attached stay where they are."""
    return batch.keep(*(name for name in batch if isinstance(batch[name], Ragged | Tensor)))
