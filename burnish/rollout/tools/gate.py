"""CallGate: bounds how many calls of a tool run at once and how many start per second."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import Future

from burnish.rollout.tools.tool import ToolLimits


class CallGate:
    """An async context manager around a call. It is not bound to an event loop: training and validation have their own,
    and every step a new one."""

    def __init__(self, limits: ToolLimits) -> None:
        self.max_concurrency = limits.max_concurrency
        self.interval = 1 / limits.rate_limit if limits.rate_limit else 0.0
        self._lock = threading.Lock()
        self._num_running = 0
        self._waiting: deque[Future[None]] = deque()
        self._next_start = 0.0

    async def __aenter__(self) -> None:
        place = self._enter()
        if place is not None:
            try:
                await asyncio.wrap_future(place)
            except asyncio.CancelledError:
                self._withdraw(place)
                raise
        try:
            await asyncio.sleep(self._delay())
        except asyncio.CancelledError:
            self._leave()
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._leave()

    def _enter(self) -> Future[None] | None:
        """None if the call may run, else what to wait for."""
        with self._lock:
            if self.max_concurrency is None or self._num_running < self.max_concurrency:
                self._num_running += 1
                return None
            place: Future[None] = Future()
            self._waiting.append(place)
            return place

    def _leave(self) -> None:
        """Hand the place to the next call that still waits."""
        with self._lock:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(None)
                    return
            self._num_running -= 1

    def _withdraw(self, place: Future[None]) -> None:
        """The waiting call was canceled; if it had been given its place meanwhile, it passes it on."""
        if place.done() and not place.cancelled():
            self._leave()

    def _delay(self) -> float:
        if not self.interval:
            return 0.0
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next_start)
            self._next_start = start + self.interval
            return start - now
