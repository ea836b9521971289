"""Tools in processes of their own (`limits: {isolate: true}`): a call that hangs is killed instead of abandoned.

One template process per tool imports the user's file and forks a process for every conversation that uses the tool, so
that a conversation does not pay for the imports. Templates may be on other machines (loop/tool_nodes.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from burnish.errors import NotSupportedYet, UserError
from burnish.rollout.tools.execution import UserCode
from burnish.rollout.tools.frames import receive_frame, send_frame
from burnish.rollout.tools.picture_frames import unpacked
from burnish.rollout.tools.tool import ConversationInfo, Tool, ToolLimits, ToolResult, ToolTimeout

STARTUP_SECONDS = 120.0  # a user's file may import large libraries
FORK_SECONDS = 30.0
RESTARTED = "(The tool was restarted after a timeout or a crash: its earlier state is lost.)\n"


class ConversationWorker(Protocol):
    """Tools of one conversation. The methods block, so they run in threads."""

    def start(self, seconds: float) -> None: ...

    def call(self, tool: int, arguments: dict[str, Any], seconds: float) -> ToolResult: ...

    def score(self, tool: int, seconds: float) -> float: ...

    def close(self, tool: int, seconds: float) -> None: ...


class ToolTemplate(Protocol):
    """What has loaded the tools and makes workers for conversations."""

    tools: list[dict[str, Any]]  # how each is described

    def worker(self, opening: tuple[Any, ...], *, repeatable: bool) -> ConversationWorker:
        """`opening` is the first request to a process. `repeatable`: calls may be repeated if their machine is lost."""
        ...

    def close(self) -> None: ...


class Template:
    """The process of this machine that has loaded the tools and forks one process per conversation."""

    def __init__(self, build: bytes, where: str, key: str) -> None:
        """`build` is a pickled function that returns the tools; it is unpickled in the process."""
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        code = (
            f"import sys; sys.path[:] = {[str(path) for path in sys.path]!r}; "
            f"from burnish.rollout.tools.isolated_worker import main; main({theirs.fileno()})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # only the run itself gets Ctrl-C
            )
        try:
            send_frame(self._control, build)
            ready = json.loads(receive_frame(self._control, time.monotonic() + STARTUP_SECONDS))
        except (EOFError, TimeoutError) as error:
            self.close()
            raise UserError(f"{where}: the tool's process did not start: {error}", key=key) from error
        if "error" in ready:
            self.close()
            raise UserError(f"{where}: {ready['error']}", key=key)
        self.tools: list[dict[str, Any]] = ready["tools"]

    def worker(self, opening: tuple[Any, ...], *, repeatable: bool) -> Worker:
        return Worker(self, opening)

    def fork(self) -> socket.socket:
        """A connection to a new process for one conversation."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        return ours

    def close(self) -> None:
        self._control.close()  # the template exits, and every process exits when its connection closes
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()


class Worker:
    """The process of one conversation."""

    def __init__(self, template: Template, opening: tuple[Any, ...]) -> None:
        self.template = template
        self.opening = opening  # the first request to every process
        self._lock = threading.Lock()  # one call at a time
        self._connection: socket.socket | None = None
        self._pid: int | None = None
        self._closed = False

    def start(self, seconds: float) -> None:
        with self._lock:
            self._start(seconds)

    def call(self, tool: int, arguments: dict[str, Any], seconds: float) -> ToolResult:
        with self._lock:
            restarted = self._connection is None
            if restarted:
                self._start(seconds)
            result = unpacked(self._request((tool, "call", (arguments,)), seconds))
        return replace(result, text=RESTARTED + result.text) if restarted else result

    def score(self, tool: int, seconds: float) -> float:
        with self._lock:
            return 0.0 if self._connection is None else float(self._request((tool, "score", ()), seconds))

    def close(self, tool: int, seconds: float) -> None:
        with self._lock:
            self._closed = True
            if self._connection is not None:
                try:
                    self._request((tool, "close", ()), seconds)
                finally:
                    self._stop()

    def _start(self, seconds: float) -> None:
        if self._closed:
            raise RuntimeError("the conversation is over")
        self._connection = self.template.fork()
        self._pid = int(self._receive(FORK_SECONDS)["pid"])
        self._request(self.opening, seconds)

    def _request(self, request: tuple[Any, ...], seconds: float) -> Any:
        assert self._connection is not None
        send_frame(self._connection, pickle.dumps(request))
        reply = self._receive(seconds)
        if "user_error" in reply:
            raise NotSupportedYet(reply["user_error"])
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]

    def _receive(self, seconds: float) -> dict[str, Any]:
        assert self._connection is not None
        try:
            return json.loads(receive_frame(self._connection, time.monotonic() + seconds))
        except TimeoutError as error:
            self._stop()
            raise ToolTimeout(f"{seconds:g} s") from error
        except (EOFError, ValueError) as error:
            self._stop()
            raise RuntimeError("the tool's process died") from error

    def _stop(self) -> None:
        """Kill the process and what it started; a new one is forked if the conversation goes on."""
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
        if self._connection is not None:
            self._connection.close()
        self._connection, self._pid = None, None


class IsolatedTool(Tool):
    """A tool of the template process."""

    enforces_timeout = True

    def __init__(self, template: ToolTemplate, number: int, limits: ToolLimits) -> None:
        described = template.tools[number]
        super().__init__(described["schema"], limits)
        self.opens_at_start, self.reads_rows = described["opens_at_start"], described["reads_rows"]
        self.template = template
        self.number = number
        self.code = UserCode(self.name)
        self._group = described["group"]

    @property
    def group(self) -> str:
        return self._group

    async def open(self, conversation: ConversationInfo, options: Mapping[str, Any]) -> ConversationWorker:
        opening = (self.number, "open", (conversation, dict(options)))
        worker = self.template.worker(opening, repeatable=self.limits.repeatable)
        await self.code.run(worker.start, self.limits.timeout)
        return worker

    async def call(self, state: ConversationWorker, arguments: dict[str, Any]) -> ToolResult:
        return await self.code.run(state.call, self.number, arguments, self.limits.timeout)

    async def score(self, state: ConversationWorker) -> float:
        return await self.code.run(state.score, self.number, self.limits.timeout)

    async def close(self, state: ConversationWorker) -> None:
        await self.code.run(state.close, self.number, self.limits.timeout)

    def shut_down(self) -> None:
        self.template.close()
        self.code.close()


LoadTemplate = Callable[[bytes, str, str], ToolTemplate]  # pickled build, where, key


def isolated_tools(
    build: Callable[[], Sequence[Tool]],
    limits: ToolLimits,
    where: str = "tools",
    key: str = "tools",
    load: LoadTemplate = Template,
) -> list[Tool]:
    """The tools that `build` returns, in processes. `build` is pickled and called there."""
    import cloudpickle

    template = load(cloudpickle.dumps(build), where, key)
    return [IsolatedTool(template, number, limits) for number in range(len(template.tools))]
