"""record_script: lists the commands that a shell script would start, by running it with programs replaced by recorders.

A real bash runs the script, so that variables, functions, loops, arrays, here-documents and `$(...)` work. It runs in
its own namespaces: without network, with its own process table, and with a temporary root in which system folders are
read-only and the script's folder is a copy. It has no side effects, and sees neither secrets nor private files
(`visible`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from burnish.cli.scripts.cluster import head_address, slurm_variables, with_head_address
from burnish.cli.scripts.recorder_shell import write_recorder
from burnish.cli.scripts.visible import Visible, shown_environment, text_of
from burnish.errors import UserError
from burnish.isolation.limits import Limits
from burnish.isolation.probe import isolation
from burnish.isolation.rootfs import BOX, SYSTEM
from burnish.isolation.spawn import BARE_PYTHON, interpreter_folders, spawn_isolated
from burnish.untrusted import is_private_path

SECONDS = 20.0
_LIMITS = Limits(cpu_seconds=SECONDS, memory_mb=512, processes=96)
_POLL_SECONDS = 0.25
_MAX_BYTES = 16 * 2**20  # of records
_MAX_RECORDS = 2000
_MIN_DESCRIPTOR = 60  # above those that scripts usually open, below the sandbox's limit
_MAX_COPIED_BYTES = 8 * 2**20
_PATHS = re.compile(r"""(?:~|\$HOME|\$\{HOME\})?(?:/[\w.@+-]+)+/?""")
# Variables of the recorder, and those that bash sets itself.
_IGNORED_VARIABLES = re.compile(r"BURNISH_\w+|BASH_ENV|BASH_FUNC_.*|_|PWD|OLDPWD|SHLVL|PATH|TMPDIR")
_REMOVED_VARIABLES = re.compile(
    r"BASH_ENV|ENV|LD_\w+|DYLD_\w+|PYTHON\w*|BASH_FUNC_.*|SHELLOPTS|BASHOPTS|PROMPT_COMMAND|BURNISH_\w+|TMPDIR"
)


@dataclass(frozen=True)
class RecordedCommand:
    """A command that the script would start: its words, the variables that the script set for it, its folder."""

    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "."


class Recording(list[RecordedCommand]):
    """All commands of a script in order. `notes` say where the recording may differ from a real run."""

    def __init__(self, commands: Sequence[RecordedCommand] = (), notes: Sequence[str] = ()) -> None:
        super().__init__(commands)
        self.notes = list(notes)


def record_script(
    path: str | Path, args: Sequence[str] = (), cwd: str | Path | None = None, *, trust: bool = False
) -> Recording:
    """Record the commands that a script would start. UserError if the script cannot be isolated.

    With `trust` the script sees the whole environment, and every file that it names.
    """
    script = Path(path).expanduser().absolute()
    folder = Path(cwd or ".").absolute()
    if not script.is_file():
        raise UserError(f"no such script: {path}")
    text = text_of(script)
    if text is None:
        raise UserError(f"{path}: not a shell script", allowed="a text file for bash")
    environment = slurm_variables(text) | (dict(os.environ) if trust else shown_environment(os.environ))
    if not isolation().strong:
        from burnish.cli.scripts.parse import parse_script

        return parse_script(text, script, args, folder, environment)
    bash = shutil.which("bash")
    if bash is None:
        raise UserError(
            "bash is not installed", hint="burnish convert -- COMMAND, with the command that the script starts"
        )
    return _SandboxedScript(script, folder, bash, Visible.of(script, folder, trust=trust)).record(args, environment)


@dataclass(frozen=True)
class _SandboxedScript:
    script: Path
    folder: Path
    bash: str
    visible: Visible

    def record(self, args: Sequence[str], variables: Mapping[str, str]) -> Recording:
        environment = {name: value for name, value in variables.items() if not _REMOVED_VARIABLES.fullmatch(name)}
        copies = _copies(self.script, self.folder, self.visible)
        with tempfile.TemporaryDirectory(prefix="burnish-recorder-") as recorder, tempfile.TemporaryFile() as errors:
            start = ["-c", 'cd -- "$1" && shift && exec "$@"', "start", str(self.folder), self.bash, str(self.script)]
            address = head_address(text_of(self.script) or "")
            recorder_variables = write_recorder(Path(recorder), self.bash, BARE_PYTHON[0], address)
            with _pipe() as (read_fd, write_fd):
                process = spawn_isolated(
                    [self.bash, "-p", *start, *args],
                    readable=[recorder],
                    files=copies.files,
                    env=environment | recorder_variables | {"TMPDIR": BOX, "BURNISH_RECORDS": str(write_fd)},
                    limits=_LIMITS,
                    pass_fds=[write_fd],
                    throwaway=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
                os.close(write_fd)
                with process:
                    data, limit = _read(read_fd, errors, time.monotonic() + SECONDS)
                    status = None if limit else process.wait()
            message = _last_line(errors)
        return self._recording(data, environment, [*copies.notes, *_end_notes(status, limit, message)])

    def _recording(self, data: bytes, environment: Mapping[str, str], end_notes: list[str]) -> Recording:
        commands, notes = [], []
        for kind, *words in filter(None, _messages(data)):
            if kind == "note":
                notes += words
            elif kind == "command" and (command := _command(words, environment)) is not None:
                commands.append(command)
        return Recording(commands, list(dict.fromkeys([*notes, *end_notes])))


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose write end has a descriptor that scripts do not use. The caller closes the write end."""
    read_fd, low_fd = os.pipe()
    write_fd = fcntl.fcntl(low_fd, fcntl.F_DUPFD_CLOEXEC, _MIN_DESCRIPTOR)
    os.close(low_fd)
    try:
        yield read_fd, write_fd
    finally:
        os.close(read_fd)


def _read(read_fd: int, errors: IO[bytes], deadline: float) -> tuple[bytes, str | None]:
    """Read records until all writers have closed the pipe; or up to a limit, which is returned as text."""
    data = bytearray()
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return bytes(data), f"did not end within {SECONDS:g} s"
        if select.select([read_fd], [], [], min(remaining, _POLL_SECONDS))[0]:
            block = os.read(read_fd, 65536)
            if not block:
                return bytes(data), None
            data += block
        if len(data) > _MAX_BYTES:
            return bytes(data), "starts too many commands"
        if b"fork: retry" in _tail(errors):  # bash would retry for 15 seconds
            return bytes(data), "starts too many processes"


def _messages(data: bytes) -> Iterator[list[str]]:
    """Join the lines `id+text` of each id; a line `id.` ends its message. Unfinished messages are dropped."""
    parts: dict[bytes, bytearray] = {}
    complete: set[bytes] = set()
    for line in data.split(b"\n"):
        name, plus, text = line.partition(b"+")
        if plus and name:
            parts.setdefault(name, bytearray()).extend(text)
        elif line.endswith(b".") and line[:-1] in parts:
            complete.add(line[:-1])
    for name in list(parts)[:_MAX_RECORDS]:
        if name in complete:
            yield [_unescape(word) for word in parts[name].decode("utf-8", "replace").split("\t")[:-1]]


_ESCAPES = {r"\\": "\\", r"\n": "\n", r"\t": "\t"}


def _unescape(text: str) -> str:
    return re.sub(r"\\[\\nt]", lambda match: _ESCAPES[match[0]], text)


def _command(words: list[str], environment: Mapping[str, str]) -> RecordedCommand | None:
    """None for a record that is not of the recorder: the script can write to its pipe, too."""
    if len(words) < 3 or not re.fullmatch(r"[0-9]{1,6}", words[1]) or not 0 < int(words[1]) <= len(words) - 2:
        return None
    folder, count, rest = words[0], int(words[1]), words[2:]
    pairs = (variable.partition("=") for variable in rest[count:])
    env = {
        name: value
        for name, _, value in pairs
        if environment.get(name) != value and not _IGNORED_VARIABLES.fullmatch(name)
    }
    return RecordedCommand(tuple(rest[:count]), env, folder)


def _end_notes(status: int | None, limit: str | None, message: str) -> list[str]:
    if limit is not None:
        return [f"the script {limit}: later commands are unknown"]
    if status == 0:
        return []
    return [f"the script ended with status {status}" + (f": {message}" if message else "")]


def _tail(errors: IO[bytes]) -> bytes:
    """The end of the script's stderr."""
    size = os.fstat(errors.fileno()).st_size
    return os.pread(errors.fileno(), 4000, max(0, size - 4000))


def _last_line(errors: IO[bytes]) -> str:
    lines = _tail(errors).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


@dataclass
class _Copies:
    """Files of the temporary root (path -> text; a path that ends in / is a folder), and notes on what they lack."""

    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    remaining: int = _MAX_COPIED_BYTES

    def add(self, path: Path, text: str | None) -> None:
        if path.is_dir():
            self.files[f"{path}/"] = ""
            return
        text = text if text is not None and len(text) <= self.remaining else ""
        self.remaining -= len(text)
        self.files[str(path)] = text


def _copies(script: Path, folder: Path, visible: Visible) -> _Copies:
    """The script, the files near it and in `folder`, and the paths in its text that exist.

    Binary and large files are empty, because scripts often test whether their data exist; so are files elsewhere.
    """
    home = os.environ.get("HOME") or "/"
    text, notes = with_head_address(text_of(script) or "")
    copies = _Copies(notes=notes)
    for path in (Path(home), folder):
        if not _is_mounted(path):
            copies.add(path, None)
    copies.add(script, text)
    for path in visible.nearby():
        if not _is_mounted(path) and str(path) not in copies.files:
            copies.add(path, visible.text(path))
    mentioned = (re.sub(r"^(~|\$HOME|\$\{HOME\})", lambda _: home, path) for path in _PATHS.findall(text))
    for name in dict.fromkeys(mentioned):
        path = Path(name)
        if _is_mounted(path) or name in copies.files or not os.path.exists(name):
            continue
        if not visible.trust and is_private_path(name):
            copies.notes.append(f"{name}: a private file, not shown to the script (--trust shows it)")
            continue
        copies.add(path, visible.text(path))
        if path.is_file() and not visible.contains(path) and text_of(path):
            copies.notes.append(f"{name}: outside the script's folder, so the script saw it empty (--trust shows it)")
    return copies


def _is_mounted(path: Path) -> bool:
    """Whether the sandbox mounts this path anyway: system folders and those of this Python."""
    mounted = (*SYSTEM, *interpreter_folders(), "/proc", "/sys", "/dev", "/etc", BOX)
    return f"{path}/".startswith(tuple(f"{folder}/" for folder in mounted))
