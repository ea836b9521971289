"""LocalRunner: runs programs in a sandbox on this machine."""

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
from burnish.isolation.limits import MEMORY, OUTPUT, PROCESSES, TIME, Limits
from burnish.isolation.plan import WEAK
from burnish.isolation.probe import isolation
from burnish.isolation.rootfs import BOX
from burnish.isolation.spawn import IsolatedProcess, spawn_isolated
from burnish.reward.sandbox.languages import LANGUAGES
from burnish.reward.sandbox.result import RunResult
from burnish.reward.sandbox.runner import RunFn
from burnish.reward.sandbox.settings import SandboxSettings

_COMPILE_SECONDS = 30.0
_MAX_REPORT = 65536
_POLL_SECONDS = 0.05  # how often to check whether the program exited while others keep its pipes open
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",  # one thread per core would exhaust the memory limit on import
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Program:
    """The command to run, the files in its folder, and additional readable folders."""

    argv: tuple[str, ...]
    files: Mapping[str, str]
    readable: tuple[str, ...] = ()


class LocalRunner:
    """A Runner that uses this machine."""

    def __init__(self, settings: SandboxSettings, cancel_event: threading.Event | None = None) -> None:
        self.settings = settings
        self.cancel_event = cancel_event or threading.Event()

    def check(self) -> str:
        """Describe the isolation; UserError if programs cannot be isolated, unless sandbox.allow_weak permits it."""
        current = isolation()
        if current.strong:
            return f"sandbox: {current.description}"
        if not self.settings.allow_weak:
            raise UserError(
                f"responses are programs, and {current.description}. They could {', '.join(current.still_possible)}",
                key="sandbox.allow_weak",
                value=False,
                allowed="true on a disposable machine, or a sandbox service (reward_model.sandbox_fusion.url)",
                hint="sandbox.allow_weak=true",
            )
        gaps = ", ".join(current.still_possible)
        return f"WEAK SANDBOX (sandbox.allow_weak=true): {current.description}. Programs can {gaps}"

    @contextlib.contextmanager
    def prepare(self, code: str, language: str = "python") -> Iterator[RunFn]:
        """Compile the program if needed. If that fails, every run returns the compiler's result."""
        spec = LANGUAGES[language].load()()
        if spec.compile is None:
            program = Program(spec.run, {spec.file: code})
            yield lambda stdin: self._run(program, stdin, self.settings.timeout)
            return
        with tempfile.TemporaryDirectory() as private:
            out = Path(private, "out")
            out.mkdir()
            out.chmod(0o777)  # the compiler runs as another user; the parent folder keeps others out
            compiler = tuple(part.format(out=out) for part in spec.compile)
            compiled = self._run(Program(compiler, {spec.file: code}), "", _COMPILE_SECONDS, writable=(str(out),))
            program = Program(tuple(part.format(out=out) for part in spec.run), {}, readable=(str(out),))
            yield lambda stdin: self._run(program, stdin, self.settings.timeout) if compiled.ok else compiled

    def _run(self, program: Program, stdin: str, seconds: float, writable: tuple[str, ...] = ()) -> RunResult:
        """Run the program once. Returns shortly after `seconds` at the latest."""
        start = time.monotonic()
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(_private_folder())
            report_reader, report_writer = os.pipe()
            report_file = stack.enter_context(os.fdopen(report_reader, "rb"))
            with os.fdopen(report_writer, "wb"):
                process = spawn_isolated(
                    program.argv,
                    files=program.files,
                    readable=program.readable,
                    writable=writable,
                    folder=folder,
                    env=_ENVIRONMENT | {"HOME": folder or BOX, "TMPDIR": folder or BOX},
                    limits=Limits(cpu_seconds=seconds, memory_mb=self.settings.memory_mb),
                    report=report_writer,
                    stdin=stack.enter_context(input_file(stdin)),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            with process:
                texts, killed = _collect(process, self.settings.output_kb * 1024, start + seconds, self.cancel_event)
            report = _parse_report(report_file.read(_MAX_REPORT))  # all writers have exited
        return _run_result(texts, killed, report, time.monotonic() - start)


@contextlib.contextmanager
def _private_folder() -> Iterator[str | None]:
    """A folder for programs without isolation; isolated ones have a private folder inside."""
    if isolation().mode != WEAK:
        yield None
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o777)
        yield folder


@contextlib.contextmanager
def input_file(text: str) -> Iterator[int]:
    """An open file with this content; sealed against changes by the program if the system supports it."""
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
    process: IsolatedProcess, limit: int, deadline: float, cancel_event: threading.Event
) -> tuple[dict[str, bytes], str | None]:
    """Read stdout and stderr, up to `limit` bytes each, until both close, the program exits, or a limit is exceeded."""
    texts = {"stdout": b"", "stderr": b""}
    with selectors.DefaultSelector() as selector:
        for name in texts:
            selector.register(getattr(process, name), selectors.EVENT_READ, name)
        while selector.get_map():
            exited = process.poll() is not None
            remaining = deadline - time.monotonic()
            if (remaining <= 0 or cancel_event.is_set()) and not exited:
                return texts, TIME
            events = selector.select(0 if exited else min(_POLL_SECONDS, remaining))
            if exited and not events:
                break  # only a process that left the process group still holds a pipe
            for key, _ in events:
                data = os.read(key.fd, 65536)
                texts[key.data] += data
                if len(texts[key.data]) > limit:
                    texts[key.data] = texts[key.data][:limit]
                    return texts, OUTPUT
                if not data:
                    selector.unregister(key.fileobj)
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return texts, TIME
    return texts, None


def _parse_report(text: bytes) -> dict[str, Any]:
    """The watcher's report; empty if this process killed the watcher."""
    return json.loads(text) if text else {}


def _run_result(texts: dict[str, bytes], killed: str | None, report: dict[str, Any], seconds: float) -> RunResult:
    stdout, stderr = (texts[name].decode("utf-8", "replace") for name in ("stdout", "stderr"))
    if killed is None and not report:
        return RunResult(stdout, stderr, None, seconds, None, "the sandbox exited without a result")
    if killed is None and "problem" in report:
        return RunResult(stdout, stderr, None, seconds, None, f"the sandbox failed to start: {report['problem']}")
    status = report.get("status")
    if killed is None:
        killed = _limit_reached(report, stderr)
    return RunResult(stdout, stderr, status, seconds, killed)


def _limit_reached(report: dict[str, Any], stderr: str) -> str | None:
    """The limit that the program exceeded, if any."""
    if report["killed"] in (MEMORY, PROCESSES):
        return report["killed"]
    if report["status"] == 1 and stderr.rstrip().endswith("MemoryError"):
        return MEMORY
    return {-signal.SIGXCPU: TIME, -signal.SIGXFSZ: OUTPUT}.get(report["status"])
