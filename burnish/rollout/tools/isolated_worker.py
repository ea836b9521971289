"""The processes behind IsolatedTool: a template that has loaded the tools, and its forks, one per conversation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from burnish.errors import UserError
from burnish.isolation import linux
from burnish.media import InvalidMedia
from burnish.rollout.tools.frames import receive_frame, send_frame
from burnish.rollout.tools.picture_frames import packed
from burnish.rollout.tools.tool import Tool, ToolResult
from burnish.rollout.tools.truncation import cut_middle

MAX_TEXT = 1_000_000  # characters of a result that are sent; the model is given far less


def main(descriptor: int) -> None:
    """Load the tools, then fork a process for every connection that the parent sends."""
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    try:
        tools: Sequence[Tool] = pickle.loads(receive_frame(control))()
        names = ("schema", "group", "opens_at_start", "reads_rows")
        described = [{name: getattr(tool, name) for name in names} for tool in tools]
        send_frame(control, json.dumps({"tools": described}).encode())
    except EOFError:
        return
    except BaseException as error:
        text = error.text() if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        send_frame(control, json.dumps({"error": text}).encode())
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            _run_fork(socket.socket(fileno=descriptors[0]), tools)
        os.close(descriptors[0])


def _run_fork(connection: socket.socket, tools: Sequence[Tool]) -> None:
    """Serve one conversation, then exit without the template's own clean-up."""
    os.setsid()  # the parent kills the process group
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # tools may start processes and wait for them
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        asyncio.run(_serve(connection, tools))
    finally:
        os._exit(0)


async def _serve(connection: socket.socket, tools: Sequence[Tool]) -> None:
    """Execute requests (number of the tool, method, arguments) until the parent closes the connection."""
    states: dict[str, Any] = {}
    send_frame(connection, json.dumps({"pid": os.getpid()}).encode())
    while True:
        try:
            number, method, arguments = pickle.loads(receive_frame(connection))
        except EOFError:
            return
        try:
            reply = {"value": await _execute(tools[number], states, method, arguments)}
        except InvalidMedia as error:
            reply = {"error": error.problem}
        except UserError as error:
            reply = {"user_error": error.text()}
        except BaseException as error:  # a tool is somebody's program and may raise anything
            reply = {"error": f"{type(error).__name__}: {str(error)[:MAX_TEXT]}"}
        send_frame(connection, json.dumps(reply).encode())


async def _execute(tool: Tool, states: dict[str, Any], method: str, arguments: tuple[Any, ...]) -> Any:
    if method == "open":
        states[tool.group] = await tool.open(*arguments)
        return None
    value = await getattr(tool, method)(states[tool.group], *arguments)
    if isinstance(value, ToolResult):
        text = value.text if len(value.text) <= MAX_TEXT else cut_middle(value.text, MAX_TEXT)
        return dict(vars(value)) | {"text": text} | packed(value)
    return value
