"""The event loop of rollouts: one per thread, kept from step to step.

Agents, tools and environments of users hold on to objects that belong to a loop (HTTP sessions, locks, queues), so a
loop of each step's own would break them in the second step.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

_own = threading.local()


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end, also where the caller (a notebook) already has a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_here(coroutine)
    context = contextvars.copy_context()
    return _other_thread().submit(context.run, _run_here, coroutine).result()


def _run_here(coroutine: Coroutine[Any, Any, Any]) -> Any:
    if not hasattr(_own, "runner"):
        _own.runner = asyncio.Runner()
    return _own.runner.run(_alone(coroutine), context=contextvars.copy_context())


async def _alone(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Where it fails, nothing that it started goes on: neither samples nor their tools."""
    before = asyncio.all_tasks()
    try:
        return await coroutine
    except BaseException:
        started = asyncio.all_tasks() - before
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)
        raise


@cache
def _other_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="rollout")
