"""ElasticEngines: engines on devices of their own, of which some may be lost and come back while the run goes on.

Requests of a lost engine are asked again on those that are left: a response is a function of its request, so it does
not matter who answers. An engine that comes back has other weights than the policy, so it gets requests only after the
next weight sync, of which it is a part. If no engine is left, or one is lost during a weight sync, the run restarts
from its last checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from torch import Tensor

from burnish.distributed.worker_group import WorkerGroup
from burnish.errors import UserError, WorkerDied
from burnish.loop.handles import EngineHandle
from burnish.loop.media_transfer import sender_of
from burnish.rollout.engine import Completion, Request

logger = logging.getLogger("burnish")

DEATH_DELAY = 2.0  # seconds after an error by which a death that caused it is known
REVIVAL_PAUSE = 5.0  # seconds between two attempts to start a worker


class ElasticEngines(EngineHandle):
    """EngineHandle that survives the loss of engines. Each is one worker of the group."""

    def __init__(
        self, group: WorkerGroup, backend: str = "gloo", bucket_bytes: int = 0, *, own_weights: bool = False
    ) -> None:
        """`own_weights`: every engine reads its weights when it is built, and gets none from a policy."""
        super().__init__(group, backend, bucket_bytes)
        self.own_weights = own_weights
        self._serving = set(range(group.size))
        self._returned: set[int] = set()  # they run again, with old weights
        self._inner: dict[Future[Completion], Future[Completion]] = {}  # what answers a caller's future
        self.num_asked_again = 0
        group.elastic = True
        group.on_death = self._lost

    # requests

    def _route(self, request: Request) -> int:
        if not self._serving:  # the request fails as the last engine did
            return 0
        while (rank := super()._route(request)) not in self._serving:
            self._num_in_flight[request.input.key] -= 1
            self._forget(rank)
        return rank

    def _start(self, rank: int, requests: list[Request]) -> list[Future[Completion]]:
        outer: list[Future[Completion]] = [Future() for _ in requests]
        for future in outer:
            future.set_running_or_notify_cancel()
        self._ask(rank, requests, outer)
        return outer

    def _ask(self, rank: int, requests: list[Request], outer: Sequence[Future[Completion]]) -> None:
        inner = super()._start(rank, requests)
        for request, future, answer in zip(requests, outer, inner, strict=True):
            self._inner[future] = answer
            answer.add_done_callback(partial(self._answered, request, future))

    def _answered(self, request: Request, outer: Future[Completion], inner: Future[Completion]) -> None:
        error = inner.exception()
        if isinstance(error, WorkerDied) and self._serving and not self.group.closing:
            with self._lock:
                rank = self._route(request)
                self.num_asked_again += 1
            self._ask(rank, [request], [outer])
            return
        self._inner.pop(outer, None)
        if error is None:
            outer.set_result(inner.result())
        else:
            outer.set_exception(error)

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        super().abort([inner for future in futures if (inner := self._inner.get(future)) is not None])

    def _forget(self, rank: int) -> None:
        """Prompts and sessions of this engine go to others."""
        self._prompt_ranks = {key: other for key, other in self._prompt_ranks.items() if other != rank}
        self._session_ranks = {key: other for key, other in self._session_ranks.items() if other != rank}

    # engines

    def _lost(self, rank: int) -> None:
        """Called before the calls to this engine fail."""
        if self.group.closing:
            return
        with self._lock:
            was_serving = rank in self._serving
            self._serving.discard(rank)
            self._returned.discard(rank)
            self._forget(rank)
        sender_of(self.group).forget(rank)
        if was_serving:
            left = f"{len(self._serving)} of {self.group.size} engines are left"
            logger.warning("%s was lost: %s; its requests are asked again", self.group.names[rank], left)
            then = "it serves again" if self.own_weights else "it serves after the next weight sync"
            bring_back(self.group, rank, self._back, then)

    def _back(self, rank: int) -> None:
        with self._lock:
            (self._serving if self.own_weights else self._returned).add(rank)

    # weights

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> float:
        before = set(self._receivers())
        try:
            return super().load_weights(stream, version)
        except Exception as error:  # the policy's own words about an engine that left amid a transfer
            time.sleep(DEATH_DELAY)
            lost = sorted(before - set(self.group.living))
            if not lost or isinstance(error, WorkerDied):
                raise
            raise WorkerDied(self.group.names[lost[0]], "was lost during a weight sync") from error

    def _receivers(self) -> list[int]:
        with self._lock:
            return sorted(self._serving | self._returned)

    def _have_weights(self, ranks: Sequence[int]) -> None:
        with self._lock:
            returned = self._returned & set(ranks)
            self._returned -= returned
            self._serving |= returned

    def stats(self) -> dict[str, Any]:
        return super().stats() | {"engines": float(len(self._serving)), "asked_again": float(self.num_asked_again)}


def bring_back(
    group: WorkerGroup, rank: int, returned: Callable[[int], None] = lambda rank: None, then: str = "it is used again"
) -> None:
    """Start a worker that was lost anew as soon as there is a place for it, unless the run ends before.

    `returned` is called when it runs.
    """
    threading.Thread(target=_bring_back, args=(group, rank, returned, then), daemon=True, name="burnish-revive").start()


def _bring_back(group: WorkerGroup, rank: int, returned: Callable[[int], None], then: str) -> None:
    name = group.names[rank]
    while not group.closing:
        try:
            if not group.revive(rank):
                return
        except UserError as error:  # the machine is not as the others are
            logger.warning("%s cannot come back: %s", name, error)
            return
        except Exception as error:  # Ray has more than one word for a machine that leaves again
            logger.warning("%s could not be started again: %s", name, error)
            time.sleep(REVIVAL_PAUSE)
            continue
        returned(rank)
        logger.warning("%s is back: %s", name, then)
        return
