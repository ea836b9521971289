"""Supervised: restarts an engine that dies, loads its weights again, and submits its unfinished requests again.

Callers hold our futures, which survive a restart; the engine's futures do not. Each request is answered once, by the
first engine that completes it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from torch import Tensor

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Completion, Engine, EngineDied, Request

logger = logging.getLogger(__name__)

MAX_RESTARTS = 3  # between two weight syncs: a request that kills every engine must not be repeated forever


@dataclass(eq=False)
class Pending:
    """A request without an answer, our future for it, and the current engine's future."""

    request: Request
    future: Future[Completion]
    engine_future: Future[Completion] | None = None


class Supervised:
    """`make` builds the engine, at first and after each death.

    Weights are loaded again from the stream of the last `load_weights`, which must be re-iterable.
    """

    def __init__(self, make: Callable[[], Engine], restarts: int = MAX_RESTARTS) -> None:
        self._make = make
        self._max_restarts = restarts
        self._restarts_since_sync = 0
        self._restarts = 0  # since the last call of `stats`
        self._cause: BaseException | None = None  # of the first death since the last sync
        self._broken: BaseException | None = None  # why there is no engine any more
        self._being_replaced: Engine | None = None  # a dead engine that a thread is replacing
        self._closed = False
        self._paused = False
        self._sleep_level = 0
        self._weights: tuple[Iterable[tuple[str, Tensor]], int] | None = None
        self._pending: dict[Future[Completion], Pending] = {}  # in order of arrival
        self._engine_lock = threading.RLock()  # held while calling or replacing the engine
        # Held while reading or changing `_pending`. An engine's thread may wait for it, but never for `_engine_lock`.
        self._pending_lock = threading.Lock()
        self._engine = make()
        self.capabilities = self._engine.capabilities

    # the protocol

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        """Requests are recorded first, so that a death during submission loses none."""
        pending = [Pending(request, Future()) for request in requests]
        with self._engine_lock:
            self._check()
            for one in pending:
                one.future.set_running_or_notify_cancel()
            with self._pending_lock:
                self._pending |= {one.future: one for one in pending}
            try:
                self._submit(pending)
            except EngineDied as death:
                self._restart(death)
            except BaseException:
                with self._pending_lock:
                    for one in pending:
                        self._pending.pop(one.future, None)
                raise
        return [one.future for one in pending]

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        chosen = list(futures)

        def work(engine: Engine) -> None:
            with self._pending_lock:
                engine_futures = [self._pending[future].engine_future for future in chosen if future in self._pending]
            engine.abort([future for future in engine_futures if future is not None])

        self._call(work)

    def end_session(self, session: str) -> None:
        self._call(lambda engine: engine.end_session(session))

    def expect_return(self, session: str, seconds: float) -> None:
        self._call(lambda engine: engine.expect_return(session, seconds))

    def pause(self) -> None:
        self._paused = True
        self._call(lambda engine: engine.pause())

    def resume(self) -> None:
        self._paused = False
        self._call(lambda engine: engine.resume())

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """If the engine dies meanwhile, its successor gets the same weights."""
        with self._engine_lock:
            self._check()
            before = self._weights, self._sleep_level
            self._weights, self._sleep_level = (stream, version), min(self._sleep_level, 1)
            try:
                self._engine.load_weights(stream, version)
            except EngineDied as death:
                self._restart(death)
            except BaseException:
                self._weights, self._sleep_level = before
                raise
            self._restarts_since_sync = 0

    def digests(self) -> dict[str, Tensor]:
        return self._call(lambda engine: engine.digests())

    def local_weight(self, name: str, whole: Tensor) -> Tensor:
        return self._engine.local_weight(name, whole)

    def score(self, rows: Sequence[ModelInput | Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        return self._call(lambda engine: engine.score(rows, temperature))

    def sleep(self, level: int = 1) -> None:
        self._call(lambda engine: engine.sleep(level))
        self._sleep_level = level

    def wake(self) -> None:
        self._sleep_level = 0
        self._call(lambda engine: engine.wake())

    def stats(self) -> dict[str, float]:
        counts = self._call(lambda engine: engine.stats())
        restarts, self._restarts = self._restarts, 0
        return {**counts, "restarts": restarts}

    def step(self) -> bool:
        return self._call(lambda engine: engine.step())

    def close(self) -> None:
        with self._engine_lock:
            if not self._closed:
                self._closed = True
                self._engine.close()
                self._fail(RuntimeError("the engine was closed"))

    # the current engine

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
        if self._broken is not None:
            raise self._broken

    def _call(self, work: Callable[[Engine], Any]) -> Any:
        """Call the engine, and its successor if it dies."""
        with self._engine_lock:
            while True:
                self._check()
                try:
                    return work(self._engine)
                except EngineDied as death:
                    self._restart(death)

    def _submit(self, pending: list[Pending]) -> None:
        engine = self._engine
        engine_futures = engine.generate([one.request for one in pending])
        for one, future in zip(pending, engine_futures, strict=True):
            one.engine_future = future
        # Only after all are recorded: a future that is done already calls back at once.
        for one, future in zip(pending, engine_futures, strict=True):
            future.add_done_callback(partial(self._on_done, one, engine))

    def _on_done(self, one: Pending, engine: Engine, engine_future: Future[Completion]) -> None:
        """Called in a thread of the engine, which may be part of what died: another thread replaces the engine."""
        error = engine_future.exception()
        if isinstance(error, EngineDied):
            with self._pending_lock:
                is_known, self._being_replaced = self._being_replaced is engine, engine
            if not is_known:
                args = (engine, error)
                threading.Thread(target=self._replace, args=args, name="burnish-engine-restart", daemon=True).start()
            return
        with self._pending_lock:
            if one.engine_future is not engine_future or self._pending.pop(one.future, None) is None:
                return  # another engine has it now, or it failed
        if error is None:
            one.future.set_result(engine_future.result())
        else:
            one.future.set_exception(error)

    def _replace(self, engine: Engine, death: EngineDied) -> None:
        with self._engine_lock:
            if engine is self._engine and self._broken is None and not self._closed:
                with contextlib.suppress(BaseException):  # all futures have it already
                    self._restart(death)

    def _restart(self, death: BaseException) -> None:
        """Replace the dead engine. After too many deaths, raise the cause of the first."""
        while True:
            self._discard_engine()
            if self._restarts_since_sync == 0:
                self._cause = death
            if self._restarts_since_sync >= self._max_restarts:
                self._give_up(self._cause or death)
            self._restarts_since_sync += 1
            self._restarts += 1
            logger.warning(
                "rollout engine died, restarting (%d of %d): %s", self._restarts_since_sync, self._max_restarts, death
            )
            try:
                self._start_engine()
                return
            except EngineDied as next_death:
                death = next_death
            except BaseException as error:  # it cannot be built or filled: another attempt would not help
                self._give_up(error)

    def _discard_engine(self) -> None:
        """Ignore whatever the dead engine's futures still report."""
        with self._pending_lock:
            for one in self._pending.values():
                one.engine_future = None
        with contextlib.suppress(Exception):  # closing a dead engine may fail
            self._engine.close()

    def _give_up(self, cause: BaseException) -> NoReturn:
        self._broken = cause
        self._fail(cause)
        raise cause

    def _start_engine(self) -> None:
        """Build it, load weights, restore the state of its predecessor, submit pending requests."""
        self._engine = self._make()
        if self._paused:
            self._engine.pause()
        if self._weights is not None and self._sleep_level < 2:
            stream, version = self._weights
            if iter(stream) is stream:
                raise RuntimeError("the engine died, and its weight stream cannot be iterated a second time")
            self._engine.load_weights(stream, version)
        if self._sleep_level:
            self._engine.sleep(self._sleep_level)
        with self._pending_lock:
            pending = list(self._pending.values())
        self._submit(pending)

    def _fail(self, error: BaseException) -> None:
        with self._pending_lock:
            pending, self._pending = list(self._pending.values()), {}
        for one in pending:
            one.future.set_exception(error)
