"""record_script: the commands that a shell script would start, found by running it where every program is a recorder.

Bash is real, so that variables, functions, loops, arrays, here-documents and `$(...)` mean what they mean. It runs in
namespaces of its own: no network, no process but its own, a throwaway root in which the system's folders are read-only
and the script's folder is a copy. Nothing that it does is left, or leaves.
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

from burnish.cli.recorder import write_recorder
from burnish.errors import UserError
from burnish.reward.sandbox.limits import Limits
from burnish.reward.sandbox.namespaces import BARE_PYTHON, interpreter_folders, isolation, spawn_isolated
from burnish.reward.sandbox.root import BOX, SYSTEM

SECONDS = 20.0
_LIMITS = Limits(cpu_seconds=SECONDS, memory_mb=512, processes=96)
_GLANCE = 0.25  # seconds between two looks at what it says
_MOST_BYTES = 16 * 2**20  # of records
_MOST_RECORDS = 2000
_FIRST_DESCRIPTOR = 60  # above those that scripts open for themselves, below the sandbox's limit
_LONGEST_TEXT = 256 * 1024
_COPIED_FILES, _COPIED_BYTES, _DEEPEST = 1000, 8 * 2**20, 4
_SKIPPED = {".git", "__pycache__", "node_modules", ".venv", "wandb", "outputs", "checkpoints"}
_PATHS = re.compile(r"""(?:~|\$HOME|\$\{HOME\})?(?:/[\w.@+-]+)+/?""")
# The recorder's own, and what bash changes by itself.
_OURS = re.compile(r"BURNISH_\w+|BASH_ENV|BASH_FUNC_.*|_|PWD|OLDPWD|SHLVL|PATH|TMPDIR")
_KEPT_OUT = re.compile(
    r"BASH_ENV|ENV|LD_\w+|DYLD_\w+|PYTHON\w*|BASH_FUNC_.*|SHELLOPTS|BASHOPTS|PROMPT_COMMAND|BURNISH_\w+|TMPDIR"
)


@dataclass(frozen=True)
class Recorded:
    """A command that would have been started: its words, the variables that the script set for it, its folder."""

    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "."


class Recording(list[Recorded]):
    """All commands of a script in the order of their start. `notes` say where the recording may differ from a run."""

    def __init__(self, commands: Sequence[Recorded] = (), notes: Sequence[str] = ()) -> None:
        super().__init__(commands)
        self.notes = list(notes)


def record_script(path: str | Path, args: Sequence[str] = (), cwd: str | Path | None = None) -> Recording:
    """What the script would start. Nothing is started for real; where that cannot be promised, a UserError."""
    script = Path(path).expanduser().absolute()
    folder = Path(cwd or ".").absolute()
    if not script.is_file():
        raise UserError(f"no such script: {path}")
    text = _text_of(script)
    if text is None:
        raise UserError(f"{path} is no shell script", allowed="a text that bash reads")
    if not isolation().strong:
        from burnish.cli.reading import read_script  # the way for systems without namespaces

        return read_script(text, script, args, folder)
    bash = shutil.which("bash")
    if bash is None:
        raise UserError("bash is not installed here", hint="burnish convert -- COMMAND, with the script's last command")
    return _Sandboxed(script, folder, bash).record(args)


@dataclass(frozen=True)
class _Sandboxed:
    script: Path
    folder: Path
    bash: str

    def record(self, args: Sequence[str]) -> Recording:
        environment = {name: value for name, value in os.environ.items() if not _KEPT_OUT.fullmatch(name)}
        files = dict(_copies(self.script, self.folder))
        with tempfile.TemporaryDirectory(prefix="burnish-recorder-") as made, tempfile.TemporaryFile() as errors:
            recorder = Path(made)
            start = ["-c", 'cd -- "$1" && shift && exec "$@"', "start", str(self.folder), self.bash, str(self.script)]
            ours = write_recorder(recorder, self.bash, BARE_PYTHON[0])
            with _pipe() as (reading, writing):
                process = spawn_isolated(
                    [self.bash, "-p", *start, *args],
                    readable=[made],
                    files=files,
                    env=environment | ours | {"TMPDIR": BOX, "BURNISH_RECORDS": str(writing)},
                    limits=_LIMITS,
                    pass_fds=[writing],
                    throwaway=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
                os.close(writing)
                with process:
                    data, cut = _read(reading, errors, time.monotonic() + SECONDS)
                    status = None if cut else process.wait()
            said = _last_line(errors)
        return self._recording(data, environment, _ending(status, cut, said))

    def _recording(self, data: bytes, environment: Mapping[str, str], ending: list[str]) -> Recording:
        commands, notes = [], []
        for kind, *words in _messages(data):
            if kind == "note":
                notes += words
            elif kind == "command":
                commands.append(_command(words, environment))
        return Recording(commands, list(dict.fromkeys([*notes, *ending])))


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """The reader's end, and the writer's under a number that scripts leave alone. The user closes the writer's."""
    reading, writing = os.pipe()
    high = fcntl.fcntl(writing, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)
    os.close(writing)
    try:
        yield reading, high
    finally:
        os.close(reading)


def _read(reading: int, errors: IO[bytes], deadline: float) -> tuple[bytes, str | None]:
    """All records, until nobody can write any more; or those up to a limit, and which limit."""
    data = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return bytes(data), f"did not end within {SECONDS:g} s"
        if select.select([reading], [], [], min(left, _GLANCE))[0]:
            block = os.read(reading, 65536)
            if not block:
                return bytes(data), None
            data += block
        if len(data) > _MOST_BYTES:
            return bytes(data), "starts too many commands"
        if b"fork: retry" in _tail(errors):  # bash would go on trying for a quarter of a minute
            return bytes(data), "starts too many processes"


def _messages(data: bytes) -> Iterator[list[str]]:
    """Lines of one id belong together; a line `id.` ends a message. An unfinished one is dropped."""
    parts: dict[bytes, bytearray] = {}
    whole: dict[bytes, bool] = {}
    for line in data.split(b"\n"):
        name, plus, text = line.partition(b"+")
        if plus and name:
            parts.setdefault(name, bytearray()).extend(text)
        elif line.endswith(b".") and line[:-1] in parts:
            whole[line[:-1]] = True
    for name in list(parts)[:_MOST_RECORDS]:
        if whole.get(name):
            yield [_word(word) for word in parts[name].decode("utf-8", "replace").split("\t")[:-1]]


_ESCAPES = {r"\\": "\\", r"\n": "\n", r"\t": "\t"}


def _word(text: str) -> str:
    return re.sub(r"\\[\\nt]", lambda found: _ESCAPES[found[0]], text)


def _command(words: list[str], environment: Mapping[str, str]) -> Recorded:
    folder, count, rest = words[0], int(words[1]), words[2:]
    pairs = (variable.partition("=") for variable in rest[count:])
    env = {name: value for name, _, value in pairs if environment.get(name) != value and not _OURS.fullmatch(name)}
    return Recorded(tuple(rest[:count]), env, folder)


def _ending(status: int | None, cut: str | None, said: str) -> list[str]:
    if cut is not None:
        return [f"the script {cut}: what it would do after that is not known"]
    if status == 0:
        return []
    return [f"the script ended with status {status}" + (f": {said}" if said else "")]


def _tail(errors: IO[bytes]) -> bytes:
    """The end of what the script said on standard error."""
    size = os.fstat(errors.fileno()).st_size
    return os.pread(errors.fileno(), 4000, max(0, size - 4000))


def _last_line(errors: IO[bytes]) -> str:
    lines = _tail(errors).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


def _copies(script: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Names and texts for the throwaway root: the script, what lies around it and in the folder, and what it names.

    A file that is no text, or a large one, is there with nothing in it: scripts ask whether their data exist.
    """
    home = os.environ.get("HOME") or "/"
    text = _text_of(script) or ""
    named = (re.sub(r"^(~|\$HOME|\$\{HOME\})", lambda _: home, found) for found in _PATHS.findall(text))
    room = _COPIED_BYTES
    first = [Path(home), folder, script]
    around = [path for root in dict.fromkeys((folder, script.parent)) for path in _walk(root, _DEEPEST)]
    for path in [*first, *around[:_COPIED_FILES], *(Path(name) for name in named if os.path.exists(name))]:
        if _is_shown(str(path)):
            continue
        if path.is_dir():
            yield f"{path}/", ""
            continue
        content = _text_of(path) or ""
        content = content if len(content) <= room else ""
        room -= len(content)
        yield str(path), content


def _walk(root: Path, depth: int) -> Iterator[Path]:
    """Nearest first: a folder's own files before those of its folders. Environments of Python are left out."""
    if root.parent == root or _is_shown(str(root)) or (root / "pyvenv.cfg").exists():
        return
    with contextlib.suppress(PermissionError):
        entries = sorted(root.iterdir())
        yield from (path for path in entries if path.is_file())
        for path in entries:
            if path.is_dir() and not path.is_symlink() and path.name not in _SKIPPED:
                yield path
                if depth > 1:
                    yield from _walk(path, depth - 1)


def _is_shown(path: str) -> bool:
    """Does it lie where the sandbox shows the system's own files, and those of this Python?"""
    shown = (*SYSTEM, *interpreter_folders(), "/proc", "/sys", "/dev", "/etc", BOX)
    return f"{path}/".startswith(tuple(f"{folder}/" for folder in shown))


def _text_of(path: Path) -> str | None:
    try:
        if path.stat().st_size > _LONGEST_TEXT:
            return None
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text
