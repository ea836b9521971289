"""EnvironmentSession: an environment in one conversation, in a thread of its own, bounded by a timeout."""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from burnish.rollout.agents.failure import EpisodeFailed, failed
from burnish.rollout.agents.user_files import accepted
from burnish.rollout.chat.template import Message
from burnish.rollout.environments.environment import (
    EnvironmentFactory,
    StepResult,
    WholePrompt,
    as_messages,
    as_step,
)
from burnish.rollout.episode import Sampler

logger = logging.getLogger("burnish.rollout")


class DaemonThread:
    """Runs functions one after another. A function that never returns does not keep the process from exiting."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs.put((function, future))
        return future

    def stop(self) -> None:
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:  # the environment is somebody's program; its caller raises this
                future.set_exception(error)
            else:
                future.set_result(result)


class EnvironmentSession:
    """reset once, step for every turn, close always.

    Answers go through the sampler's journal. A run that was killed gets recorded answers without an environment; for
    the first step that is not recorded, a new one is brought to the same state by repeating the earlier actions.
    """

    def __init__(
        self,
        factory: EnvironmentFactory,
        options: Mapping[str, Any],
        seed: int,
        row: Mapping[str, Any],
        timeout: float | None,
    ) -> None:
        self.factory = factory
        self.options = options
        self.seed = seed
        self.row = row
        self.timeout = timeout
        self.metrics: dict[str, float] = {}
        self._actions: list[str] = []
        self._num_applied = 0
        self._environment: Any = None
        self._thread: DaemonThread | None = None

    async def reset(self, sampler: Sampler) -> tuple[list[Message], bool]:
        """The first observation, and whether it replaces the messages of the row."""

        async def act() -> dict[str, Any]:
            first = await self._open()
            return {"messages": as_messages(first), "replaces": isinstance(first, WholePrompt)}

        reset = await sampler.observe(act, name=f"environment {self.factory.name}: reset")
        return reset["messages"], reset["replaces"]

    async def step(self, action: str, sampler: Sampler) -> StepResult:
        async def act() -> dict[str, Any]:
            if self._environment is None:
                await self._open()
            while self._num_applied < len(self._actions):
                await self._apply(self._actions[self._num_applied])
            return vars(await self._apply(action))

        result = StepResult(**await sampler.observe(act, name=f"environment {self.factory.name}: step"))
        self._actions.append(action)
        for name, value in result.metrics.items():
            self.metrics[name] = value
        return result

    async def close(self) -> None:
        """A failure is logged: the conversation is complete without it."""
        environment, self._environment = self._environment, None
        try:
            if environment is not None and hasattr(environment, "close"):
                await self._call(environment.close, what="close")
        except EpisodeFailed as failure:
            logger.warning("%s", failure)
        if self._thread is not None:
            self._thread.stop()

    async def _open(self) -> Any:
        self._environment = await self._call(self.factory, self.options, what="creating it")
        reset = self._method("reset")
        return await self._call(reset, **accepted(reset, {"seed": self.seed, "row": self.row}))

    async def _apply(self, action: str) -> StepResult:
        result = as_step(await self._call(self._method("step"), action))
        self._num_applied += 1
        return result

    def _method(self, name: str) -> Callable[..., Any]:
        try:
            return getattr(self._environment, name)
        except AttributeError as error:
            raise failed(f"environment {self.factory.name}: {name}", error) from error

    async def _call(self, function: Callable[..., Any], *args: Any, what: str = "", **kwargs: Any) -> Any:
        name = f"environment {self.factory.name}: {what or function.__name__}"
        try:
            async with asyncio.timeout(self.timeout):
                if inspect.iscoroutinefunction(function):
                    return await function(*args, **kwargs)
                if self._thread is None:
                    self._thread = DaemonThread(f"environment-{self.factory.name}")
                result = await asyncio.wrap_future(self._thread.submit(lambda: function(*args, **kwargs)))
                return await result if inspect.isawaitable(result) else result
        except TimeoutError:
            raise EpisodeFailed(f"{name} took longer than {self.timeout:g} s") from None
        except EpisodeFailed:
            raise
        except Exception as error:  # an environment is somebody's program and may raise anything
            raise failed(name, error) from error
