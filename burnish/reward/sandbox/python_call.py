"""call_isolated: call a Python function of Burnish in its own namespaces, for work that imports a stranger's files.

The process has this Python and its packages, no network, no secrets, and of the file system only what is listed. It
answers in JSON, so that nothing of it is unpickled here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from burnish.errors import UserError
from burnish.isolation.limits import Limits
from burnish.isolation.probe import isolation
from burnish.isolation.rootfs import BOX
from burnish.isolation.spawn import spawn_isolated
from burnish.reward.limits import worker_environment
from burnish.untrusted import parse_json

Progress = Callable[[str], None]
LIMITS = Limits(memory_mb=None, file_mb=4096, processes=512, open_files=4096)
_BURNISH = str(Path(__file__).parents[2])
_MAX_ANSWER = 64 * 2**20
_POLL_SECONDS = 0.5
_PACKAGES = ("site-packages", "dist-packages")


class CallFailed(UserError):
    """The isolated process gave no answer: it was killed, or ran out of time."""


def can_isolate() -> bool:
    """Whether this machine can isolate a process."""
    return isolation().strong


def call_isolated(
    target: str,
    arguments: Mapping[str, Any],
    *,
    readable: Sequence[str | Path] = (),
    writable: Sequence[str | Path] = (),
    network: bool = False,
    seconds: float | None = None,
    progress: Progress = lambda text: None,
) -> Any:
    """Call `module:function` with these arguments and a function for progress; return its answer, a JSON value.

    It starts in the current folder if that is listed, else in an empty one. CallFailed if there is no answer in time.
    """
    environment, _ = worker_environment(os.environ, ())
    folder = os.getcwd()
    listed = [os.path.abspath(path) for path in (*readable, *writable)]
    inside = any(folder == path or folder.startswith(f"{path}/") for path in listed)
    # An editable install is found by a hook that the process does not have.
    path = [*(os.path.abspath(entry) for entry in sys.path if entry or inside), os.path.dirname(_BURNISH)]
    code = f"import sys; sys.path[:] = {path!r}; from burnish.reward.sandbox.python_call import main; main(*{{}})"
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as output:
        request.write(json.dumps({"target": target, "arguments": dict(arguments)}).encode())
        request.seek(0)
        reader, writer = os.pipe()
        try:
            process = spawn_isolated(
                [os.path.realpath(sys.executable), "-c", code.format((request.fileno(), writer))],
                readable=[*_library_folders(), *map(str, readable)],
                writable=[*map(str, writable)],
                network=network,
                folder=folder if inside else None,
                env=environment | {"TMPDIR": BOX},
                limits=LIMITS,
                pass_fds=[request.fileno(), writer],
                throwaway=True,  # libraries write to /tmp and to the home folder
                same_user=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            os.close(writer)
            writer = -1
            with process:
                answer = _answer(reader, seconds, progress)
                status = process.wait() if answer is None else 0
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        if answer is None:
            raise CallFailed(f"the process exited with status {status}{_last_line(output)}")
    return answer.get("answer")


def _library_folders() -> list[str]:
    """Burnish itself, and folders of installed packages beside those of this Python."""
    return [_BURNISH, *(entry for entry in sys.path if os.path.basename(entry) in _PACKAGES)]


def _answer(reader: int, seconds: float | None, progress: Progress) -> dict[str, Any] | None:
    """The last message; None if the process ended without one. CallFailed after these seconds."""
    data = bytearray()
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        remaining = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
        if remaining <= 0:
            raise CallFailed(f"it takes longer than {seconds:g} s")
        if not select.select([reader], [], [], min(remaining, _POLL_SECONDS))[0]:
            continue
        block = os.read(reader, 65536)
        data += block
        while b"\n" in data:
            line, _, rest = data.partition(b"\n")
            data = bytearray(rest)
            message = parse_json(bytes(line), "the answer")
            if isinstance(message, dict) and "answer" in message:
                return message
            progress(str(message.get("progress"))[:200] if isinstance(message, dict) else "")
        if not block:
            return None
        if len(data) > _MAX_ANSWER:
            raise CallFailed("answers too much")


def _last_line(output: IO[bytes]) -> str:
    size = os.fstat(output.fileno()).st_size
    text = os.pread(output.fileno(), 4000, max(0, size - 4000)).decode("utf-8", "replace")
    lines = text.strip().splitlines()
    return f": {lines[-1][:300]}" if lines else ""


def main(request: int, writer: int) -> None:
    """Entry point of the isolated process."""
    for descriptor in (request, writer):
        os.set_inheritable(descriptor, False)
    with os.fdopen(request, "rb") as file:
        call = json.load(file)

    def send(message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # the caller has given up
            while data:
                data = data[os.write(writer, data) :]

    module, _, name = call["target"].partition(":")
    function = getattr(importlib.import_module(module), name)
    answer = function(**call["arguments"], progress=lambda text: send({"progress": text}))
    send({"answer": answer})
    sys.stdout.flush()
    os._exit(0)  # threads of imported libraries may never end
