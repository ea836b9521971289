"""Supervised: an engine that may die. It is made again, filled again, and asked again what it still owes.

A caller's future is ours and stays the same whatever happens behind it; the engine's own futures come and go. Each
request is answered once: by the first engine that completes it.
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

from burnish.rollout.engine import Completion, Engine, EngineDied, Request

logger = logging.getLogger(__name__)

RESTARTS = 3  # between two weight syncs: an engine that dies of what it is asked must not be asked for ever


@dataclass(eq=False)
class Owed:
    """A request that is not answered yet, and the engine's future that should answer it."""

    request: Request
    future: Future[Completion]
    theirs: Future[Completion] | None = None


class Supervised:
    """`make` builds the engine, at once and after each death.

    Weights come back from the stream of the last `load_weights`: it must be one that can be read again.
    """

    def __init__(self, make: Callable[[], Engine], restarts: int = RESTARTS) -> None:
        self._make = make
        self._allowed = restarts
        self._used = 0  # since the last weight sync
        self._restarts = 0  # since the last call of `stats`
        self._cause: BaseException | None = None  # of the first of them
        self._broken: BaseException | None = None  # why there is no engine any more
        self._mourned: Engine | None = None  # the dead engine that is seen to
        self._closed = False
        self._paused = False
        self._asleep = 0
        self._weights: tuple[Iterable[tuple[str, Tensor]], int] | None = None
        self._owed: dict[Future[Completion], Owed] = {}  # in the order they came
        self._door = threading.RLock()  # held by who calls the engine or replaces it
        self._book = (
            threading.Lock()
        )  # held for a look at `_owed`; an engine's thread may wait for it, never for the door
        self._engine = make()
        self.capabilities = self._engine.capabilities

    # the protocol

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        """A death while they are handed over is no loss: they stand in the book by then."""
        owed = [Owed(request, Future()) for request in requests]
        with self._door:
            self._check()
            for one in owed:
                one.future.set_running_or_notify_cancel()
            with self._book:
                self._owed |= {one.future: one for one in owed}
            try:
                self._ask(owed)
            except EngineDied as death:
                self._revive(death)
            except BaseException:
                with self._book:
                    for one in owed:
                        self._owed.pop(one.future, None)
                raise
        return [one.future for one in owed]

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        chosen = list(futures)

        def work(engine: Engine) -> None:
            with self._book:
                theirs = [self._owed[future].theirs for future in chosen if future in self._owed]
            engine.abort([future for future in theirs if future is not None])

        self._call(work)

    def pause(self) -> None:
        self._paused = True
        self._call(lambda engine: engine.pause())

    def resume(self) -> None:
        self._paused = False
        self._call(lambda engine: engine.resume())

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        """If the engine dies on it, the next one is filled with the same."""
        with self._door:
            self._check()
            before = self._weights, self._asleep
            self._weights, self._asleep = (stream, version), min(self._asleep, 1)
            try:
                self._engine.load_weights(stream, version)
            except EngineDied as death:
                self._revive(death)
            except BaseException:
                self._weights, self._asleep = before
                raise
            self._used = 0

    def score(self, rows: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        return self._call(lambda engine: engine.score(rows, temperature))

    def sleep(self, level: int = 1) -> None:
        self._call(lambda engine: engine.sleep(level))
        self._asleep = level

    def wake(self) -> None:
        self._asleep = 0
        self._call(lambda engine: engine.wake())

    def stats(self) -> dict[str, float]:
        counts = self._call(lambda engine: engine.stats())
        restarts, self._restarts = self._restarts, 0
        return {**counts, "restarts": restarts}

    def step(self) -> bool:
        return self._call(lambda engine: engine.step())

    def close(self) -> None:
        with self._door:
            if not self._closed:
                self._closed = True
                self._engine.close()
                self._fail(RuntimeError("the engine was closed"))

    # the engine of now

    def _check(self) -> None:
        if self._closed:
            raise RuntimeError("the engine is closed")
        if self._broken is not None:
            raise self._broken

    def _call(self, work: Callable[[Engine], Any]) -> Any:
        """Do it, if need be again with the engine that comes after."""
        with self._door:
            while True:
                self._check()
                try:
                    return work(self._engine)
                except EngineDied as death:
                    self._revive(death)

    def _ask(self, owed: list[Owed]) -> None:
        engine = self._engine
        for one, theirs in zip(owed, engine.generate([one.request for one in owed]), strict=True):
            one.theirs = theirs
        for one in owed:  # only now: an answer that is there already must find its own future in the book
            one.theirs.add_done_callback(partial(self._answered, one, engine))

    def _answered(self, one: Owed, engine: Engine, theirs: Future[Completion]) -> None:
        """By any thread of the engine's. A death is seen to elsewhere: this thread may be part of what died."""
        error = theirs.exception()
        if isinstance(error, EngineDied):
            with self._book:
                known, self._mourned = self._mourned is engine, engine
            if not known:
                threading.Thread(target=self._see_to, args=(engine, error), name="burnish-revive", daemon=True).start()
            return
        with self._book:
            if one.theirs is not theirs or self._owed.pop(one.future, None) is None:
                return  # another engine has it now, or it was given up
        if error is None:
            one.future.set_result(theirs.result())
        else:
            one.future.set_exception(error)

    def _see_to(self, engine: Engine, death: EngineDied) -> None:
        with self._door:
            if engine is self._engine and self._broken is None and not self._closed:
                with contextlib.suppress(BaseException):  # everybody who waits has been told
                    self._revive(death)

    def _revive(self, death: BaseException) -> None:
        """A new engine in the place of the dead one; raises why the first one died if there have been too many."""
        while True:
            self._bury()
            if self._used == 0:
                self._cause = death
            if self._used >= self._allowed:
                self._give_up(self._cause)
            self._used += 1
            self._restarts += 1
            logger.warning("the engine died and is started again (%d of %d): %s", self._used, self._allowed, death)
            try:
                self._renew()
                return
            except EngineDied as again:
                death = again
            except BaseException as error:  # it cannot be made or filled: another try would not help
                self._give_up(error)

    def _bury(self) -> None:
        """Whatever the dead engine still says of what it was asked, nobody listens any more."""
        with self._book:
            for one in self._owed.values():
                one.theirs = None
        with contextlib.suppress(Exception):  # a dead engine may fail to close too
            self._engine.close()

    def _give_up(self, why: BaseException) -> NoReturn:
        self._broken = why
        self._fail(why)
        raise why

    def _renew(self) -> None:
        """Make, fill, put into the state of the one before, ask again."""
        self._engine = self._make()
        if self._paused:
            self._engine.pause()
        if self._weights is not None and self._asleep < 2:
            stream, version = self._weights
            if iter(stream) is stream:
                raise RuntimeError("the engine died, and its weights were given as a stream that is read only once")
            self._engine.load_weights(stream, version)
        if self._asleep:
            self._engine.sleep(self._asleep)
        with self._book:
            owed = list(self._owed.values())
        self._ask(owed)

    def _fail(self, error: BaseException) -> None:
        with self._book:
            owed, self._owed = list(self._owed.values()), {}
        for one in owed:
            one.future.set_exception(error)
