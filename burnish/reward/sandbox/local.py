"""Running a program in a sandbox of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.reward.sandbox.inside import WEAK
from burnish.reward.sandbox.languages import LANGUAGES
from burnish.reward.sandbox.limits import Limits
from burnish.reward.sandbox.namespaces import IsolatedProcess, isolation, spawn_isolated
from burnish.reward.sandbox.ran import MEMORY, OUTPUT, PROCESSES, TIME, Ran
from burnish.reward.sandbox.root import BOX
from burnish.reward.sandbox.runner import Run
from burnish.reward.sandbox.settings import SandboxSettings

_COMPILE_SECONDS = 30.0
_REPORT_MOST = 65536
_GLANCE = 0.05  # seconds between two looks at a program that left its pipes to others
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",  # a thread per processor would use up the memory limit before the program starts
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Program:
    """Something that can be run: the command, the files it finds, and the folders it sees."""

    argv: tuple[str, ...]
    files: Mapping[str, str]
    readable: tuple[str, ...] = ()


class Machine:
    """The Runner that uses this machine."""

    def __init__(self, settings: SandboxSettings, abandon: threading.Event | None = None) -> None:
        self.settings = settings
        self.abandon = abandon or threading.Event()

    def check(self) -> str:
        """How programs are kept in; UserError where they are not, unless that was allowed."""
        found = isolation()
        if found.strong:
            return f"sandbox: {found.sentence}"
        if not self.settings.allow_weak:
            raise UserError(
                f"the answers are programs, and {found.sentence}. A program that a model wrote could read your files",
                key="sandbox.allow_weak",
                value=False,
                allowed="true on a machine with nothing to lose, or a sandbox service: reward_model.sandbox_fusion.url",
                hint="sandbox.allow_weak=true",
            )
        return f"WEAK SANDBOX (sandbox.allow_weak=true): {found.sentence}"

    @contextlib.contextmanager
    def prepared(self, code: str, language: str = "python") -> Iterator[Run]:
        """Compile where the language wants that. A program that does not compile fails every run in the same way."""
        spoken = LANGUAGES[language].load()()
        if spoken.compile is None:
            program = Program(spoken.run, {spoken.file: code})
            yield lambda stdin: self._run(program, stdin, self.settings.timeout)
            return
        with tempfile.TemporaryDirectory() as private:
            out = Path(private, "out")
            out.mkdir()
            out.chmod(0o777)  # the compiler runs as another user; nobody else gets through the folder above
            compiler = tuple(part.format(out=out) for part in spoken.compile)
            compiled = self._run(Program(compiler, {spoken.file: code}), "", _COMPILE_SECONDS, writable=(str(out),))
            program = Program(tuple(part.format(out=out) for part in spoken.run), {}, readable=(str(out),))
            yield lambda stdin: self._run(program, stdin, self.settings.timeout) if compiled.ok else compiled

    def _run(self, program: Program, stdin: str, seconds: float, writable: tuple[str, ...] = ()) -> Ran:
        """Run it once. Whatever it does, this returns within its time and a moment."""
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(_private_folder())
            reading, report = os.pipe()
            ending = stack.enter_context(os.fdopen(reading, "rb"))
            with os.fdopen(report, "wb"):
                process = spawn_isolated(
                    program.argv,
                    files=program.files,
                    readable=program.readable,
                    writable=writable,
                    folder=folder,
                    env=_ENVIRONMENT | {"HOME": folder or BOX, "TMPDIR": folder or BOX},
                    limits=Limits(cpu_seconds=seconds, memory_mb=self.settings.memory_mb),
                    report=report,
                    stdin=stack.enter_context(input_file(stdin)),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            with process:
                texts, killed = _collect(process, self.settings.output_kb * 1024, began + seconds, self.abandon)
            ended = _ending(ending.read(_REPORT_MOST))  # nobody holds its other end any more
        return _as_ran(texts, killed, ended, time.monotonic() - began)


@contextlib.contextmanager
def _private_folder() -> Iterator[str | None]:
    """An isolated program has a folder inside; any other needs one outside."""
    if isolation().way != WEAK:
        yield None
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)
        yield folder


@contextlib.contextmanager
def input_file(text: str) -> Iterator[int]:
    """An open file with this content, which its reader cannot change where the system knows how to forbid that."""
    data = text.encode("utf-8", "replace")
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            yield file.fileno()
        return
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        written = 0
        while written < len(data):
            written += file.write(data[written:])
        file.seek(0)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor


def _collect(
    process: IsolatedProcess, most: int, deadline: float, abandon: threading.Event
) -> tuple[dict[str, bytes], str | None]:
    """stdout and stderr up to `most` bytes each, until both end, the program ends, or a limit is reached."""
    texts = {"stdout": b"", "stderr": b""}
    with selectors.DefaultSelector() as selector:
        for name in texts:
            selector.register(getattr(process, name), selectors.EVENT_READ, name)
        while selector.get_map():
            over = process.poll() is not None
            left = deadline - time.monotonic()
            if (left <= 0 or abandon.is_set()) and not over:
                return texts, TIME
            events = selector.select(0 if over else min(_GLANCE, left))
            if over and not events:
                break  # only a process that fled from its group still holds a pipe
            for key, _ in events:
                data = os.read(key.fd, 65536)
                texts[key.data] += data
                if len(texts[key.data]) > most:
                    texts[key.data] = texts[key.data][:most]
                    return texts, OUTPUT
                if not data:
                    selector.unregister(key.fileobj)
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return texts, TIME
    return texts, None


def _ending(report: bytes) -> dict[str, Any]:
    """What the watcher said. It says nothing when it was killed from here."""
    return json.loads(report) if report else {}


def _as_ran(texts: dict[str, bytes], killed: str | None, ended: dict[str, Any], seconds: float) -> Ran:
    stdout, stderr = (texts[name].decode("utf-8", "replace") for name in ("stdout", "stderr"))
    if killed is None and not ended:
        return Ran(stdout, stderr, None, seconds, None, "the sandbox ended without a word")
    if killed is None and "problem" in ended:
        return Ran(stdout, stderr, None, seconds, None, f"the sandbox did not start: {ended['problem']}")
    status = ended.get("status")
    if killed is None:
        killed = _limit_reached(ended, stderr)
    return Ran(stdout, stderr, status, seconds, killed)


def _limit_reached(ended: dict[str, Any], stderr: str) -> str | None:
    """Which limit ended the program, if it was one."""
    if ended["killed"] in (MEMORY, PROCESSES):
        return ended["killed"]
    if ended["status"] == 1 and stderr.rstrip().endswith("MemoryError"):
        return MEMORY
    return {-signal.SIGXCPU: TIME, -signal.SIGXFSZ: OUTPUT}.get(ended["status"])
