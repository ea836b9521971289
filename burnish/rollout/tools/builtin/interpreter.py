"""Interpreter: a Python process in the sandbox that keeps its variables from call to call."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field

from burnish.isolation.limits import Limits
from burnish.isolation.plan import WEAK
from burnish.isolation.probe import isolation
from burnish.isolation.rootfs import BOX
from burnish.isolation.spawn import BARE_PYTHON, IsolatedProcess, package_folders, spawn_isolated
from burnish.rollout.tools.frames import receive_frame, send_frame
from burnish.rollout.tools.tool import ToolTimeout

_MAX_REPLY = 4096
_READ = 2**16
_GRACE_SECONDS = 5.0  # for the process to interrupt the code itself, which keeps its variables
_START_SECONDS = 60.0

_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",  # one thread per core would exhaust the memory limit on import
    "OMP_NUM_THREADS": "1",
}

# What runs in the sandbox. The value of a last expression is printed, as in a notebook. The reply only says that the
# code ended; what it printed comes through the pipe.
PROGRAM = """
import ast, json, linecache, signal, socket, struct, sys, traceback
connection = socket.socket(fileno=int(sys.argv[1]))
connection.set_inheritable(False)
sys.path += json.loads(sys.argv[2])
sys.argv = ["main.py"]
variables = {"__name__": "__main__", "__builtins__": __builtins__}

def receive(length):
    data = b""
    while len(data) < length:
        chunk = connection.recv(length - len(data))
        if not chunk:
            raise SystemExit
        data += chunk
    return data

def interrupt(*_):
    raise TimeoutError("the code was interrupted: it ran for too long")

def run(code, name):
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), variables)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval"), variables)
        if value is not None:
            print(repr(value))

def report(error):
    frames = error.__traceback__.tb_next
    while frames is not None and frames.tb_frame.f_code.co_filename == "<string>":
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames, limit=-10)

def reply(**fields):
    message = json.dumps(fields).encode()
    connection.sendall(struct.pack("!I", len(message)) + message)

signal.signal(signal.SIGALRM, interrupt)
number = 0
reply(ready=True)
while True:
    request = json.loads(receive(struct.unpack("!I", receive(4))[0]))
    number += 1
    failed = False
    sys.stdout, sys.stderr = (open(fd, "w", errors="replace", closefd=False) for fd in (1, 2))
    try:
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])
        run(request["code"], "<call %d>" % number)
    except SystemExit as error:
        failed = error.code not in (None, 0)
        if isinstance(error.code, str):
            print(error.code)
    except BaseException as error:
        failed = True
        report(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            failed = True
    reply(failed=failed)
"""


@dataclass(frozen=True)
class InterpreterLimits:
    """Limits of one interpreter."""

    seconds: float = 10.0  # per call
    memory_mb: int = 1024
    output_kb: int = 64  # of which the beginning and the end are kept
    cpu_seconds: float = 600.0  # of all calls of a conversation, and of what runs between them


class InterpreterDied(RuntimeError):
    """The process ended. `output` is what it had printed."""

    def __init__(self, output: str) -> None:
        super().__init__("the interpreter died; its variables are lost")
        self.output = output


@dataclass
class BoundedOutput:
    """The beginning and the end of what a program prints."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    num_omitted: int = 0

    def add(self, data: bytes) -> None:
        space = max(0, self.limit // 2 - len(self.head))
        self.head += data[:space]
        self.tail += data[space:]
        excess = len(self.tail) - self.limit // 2
        if excess > 0:
            del self.tail[:excess]
            self.num_omitted += excess

    def text(self) -> str:
        omitted = f"\n... ({self.num_omitted} bytes omitted)\n" if self.num_omitted else ""
        return self.head.decode("utf-8", "replace") + omitted + self.tail.decode("utf-8", "replace")


class Interpreter:
    """One process. Its methods block, and take one call at a time."""

    def __init__(self, limits: InterpreterLimits) -> None:
        self.limits = limits
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = self._spawn(theirs.fileno())
        assert self._process.stdout is not None
        self._stdout = self._process.stdout.fileno()
        os.set_blocking(self._stdout, False)
        try:
            receive_frame(self._connection, time.monotonic() + _START_SECONDS, _MAX_REPLY)
        except (EOFError, TimeoutError) as error:
            output = BoundedOutput(_MAX_REPLY)
            self._drain(output)
            self.close()
            raise RuntimeError(f"the interpreter did not start: {output.text().strip() or error}") from error

    def run(self, code: str) -> tuple[str, bool]:
        """What the code printed, and whether it failed. After ToolTimeout or InterpreterDied, only close it."""
        output = BoundedOutput(self.limits.output_kb * 1024)
        request = json.dumps({"code": code, "seconds": self.limits.seconds}).encode()
        try:
            send_frame(self._connection, request)
            self._wait(output, time.monotonic() + self.limits.seconds + _GRACE_SECONDS)
            reply = json.loads(receive_frame(self._connection, time.monotonic() + _GRACE_SECONDS, _MAX_REPLY))
            failed = bool(reply["failed"])
        except TimeoutError as error:
            raise ToolTimeout(f"{self.limits.seconds:g} s") from error
        except (EOFError, ValueError, KeyError, TypeError) as error:  # the code may write to the connection too
            self._drain(output)
            raise InterpreterDied(output.text()) from error
        self._drain(output)
        return output.text(), failed

    def close(self) -> None:
        """Kill the process and everything it started."""
        self._process.stop()
        self._connection.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _spawn(self, descriptor: int) -> IsolatedProcess:
        folder = None
        if isolation().mode == WEAK:  # isolated programs have a private folder inside
            self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            folder = self._folder.name
            os.chmod(folder, 0o777)
        return spawn_isolated(
            [*BARE_PYTHON, "-c", PROGRAM, str(descriptor), json.dumps(package_folders())],
            folder=folder,
            env=_ENVIRONMENT | {"HOME": folder or BOX, "TMPDIR": folder or BOX},
            limits=Limits(cpu_seconds=self.limits.cpu_seconds, memory_mb=self.limits.memory_mb),
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def _wait(self, output: BoundedOutput, deadline: float) -> None:
        """Read what the code prints until there is a reply. TimeoutError at the deadline."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(self._stdout, selectors.EVENT_READ)
            while True:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError
                ready = {key.fileobj for key, _ in selector.select(remaining)}
                if self._stdout in ready and not self._read(output):
                    selector.unregister(self._stdout)  # closed by the code, which may still reply
                if self._connection in ready:
                    return

    def _drain(self, output: BoundedOutput) -> None:
        """Read what was printed before the reply. A thread of the code may print on, so this is bounded."""
        for _ in range(64):
            if not self._read(output):
                return

    def _read(self, output: BoundedOutput) -> bool:
        """Read a piece of the output; False if there is none."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._stdout, _READ)
            output.add(data)
            return bool(data)
        return False
