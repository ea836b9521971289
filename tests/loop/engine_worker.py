"""A worker with a stand-in engine, for tests of EngineHandle in real processes."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

from burnish.distributed.weights import Endpoint
from burnish.loop.media_transfer import MediaStore
from burnish.loop.worker import Worker
from burnish.loop.worker_clock import WorkerClock
from burnish.rollout.engine import Capabilities, Completion, Request


class HeldEngine:
    """Answers the first request of a call at once and the others at `release`. A response says which call it was of."""

    capabilities = Capabilities(addressed="request", invariant=True)

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.num_calls = 0
        self.held: list[tuple[Future[Completion], Completion]] = []
        self.ended: list[str] = []

    def generate(self, requests: list[Request]) -> list[Future[Completion]]:
        self.num_calls += 1
        futures: list[Future[Completion]] = [Future() for _ in requests]
        for number, future in enumerate(futures):
            completion = Completion([self.rank, self.num_calls, number], [0.0] * 3, [0] * 3, "stop")
            if number == 0:
                future.set_result(completion)
            else:
                self.held.append((future, completion))
        return futures

    def release(self) -> None:
        for future, completion in self.held:
            future.set_result(completion)
        self.held = []

    def abort(self, futures: list[Future[Completion]]) -> None:
        for future in futures:
            future.set_result(Completion([], [], [], "abort"))
        self.held = [(future, completion) for future, completion in self.held if future not in futures]

    def end_session(self, session: str) -> None:
        self.ended.append(session)

    def ended_sessions(self) -> list[str]:
        return self.ended

    def close(self) -> None:
        pass


class EngineWorker(Worker):
    """Holds nothing but the engine."""

    def __init__(self, rank: int) -> None:
        self.device = None
        self.roles = {"engine": HeldEngine(rank)}
        self._in_flight = {}
        self.media = MediaStore()
        self.clock = WorkerClock()


class LeavingWorker(EngineWorker):
    """Ranks of a weight transfer that never meet, because rank 1 is lost."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank

    def send_weights(self, endpoint: Endpoint) -> None:
        threading.Event().wait()

    def receive_weights(self, endpoint: Endpoint, version: int) -> float:
        if self.rank == 1:
            os._exit(1)
        threading.Event().wait()
        return 0.0
