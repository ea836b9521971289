"""The run folder: config, command, environment and outputs of a run on disk."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import platform
import shlex
import socket
import struct
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from burnish import __version__
from burnish.errors import UserError
from burnish.escape import escape
from burnish.folders import make_private
from burnish.log import pictures, timeline, tokens
from burnish.log.jsonl import encode, write_atomically
from burnish.redact import redact_command, redact_text
from burnish.storage import FINAL_MODEL, FINISHED
from burnish.untrusted import read_json_object, read_text

MAX_FAILURE = 500  # characters
PACKAGES = ("torch", "transformers", "numpy", "safetensors", "vllm", "sglang", "ray")
LOCK, HOLDER = ".lock", ".lock.json"
FAILURE = ".failure.json"  # of the last start, if an error ended it
_held: set[tuple[int, int]] = set()  # locks of this process, by device and inode


class RunFolder:
    """trainer.default_local_dir: created if needed; properties for the paths in it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser().absolute()
        try:
            make_private(self.path)
        except OSError as error:
            raise UserError(
                f"cannot create the run folder: {error.strerror or error}",
                key="trainer.default_local_dir",
                value=str(path),
                hint="trainer.default_local_dir=/a/folder/you/can/write",
            ) from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UserError("the run folder is not writable", key="trainer.default_local_dir", value=str(path))

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def command(self) -> Path:
        return self.path / "command.txt"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def curves(self) -> Path:
        return self.path / "curves.png"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def tokens(self) -> Path:
        """Token records for the viewer."""
        return self.path / tokens.FOLDER

    @property
    def pictures(self) -> Path:
        """Pictures that trajectories show."""
        return self.path / pictures.FOLDER

    @property
    def timeline(self) -> Path:
        """When the phases of each step ran, for the viewer."""
        return self.path / timeline.NAME

    @property
    def model(self) -> Path:
        """The trained model, in Hugging Face format."""
        return self.path / FINAL_MODEL

    @property
    def finished(self) -> Path:
        """The record of a run that came to its end."""
        return self.path / FINISHED

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process train in this folder; raises UserError if one does. Reading is not restricted.

        A POSIX record lock works on NFS too, and the system releases that of a killed process at once. The file beside
        it only names the holder. A record lock belongs to the process and ends when the process closes any handle of
        the file: nothing else may open it.
        """
        path = self.path / LOCK
        if path.exists() and _inode(path) in _held:  # before it is opened
            raise self._in_use()
        with open(path, "a") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise self._in_use() from None
                logging.getLogger("burnish").warning("cannot lock %s: %s", self.path, error.strerror)
            inode = _inode(path)
            _held.add(inode)
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
            try:
                (self.path / FAILURE).unlink(missing_ok=True)
                write_atomically(self.path / HOLDER, encode(holder) + "\n")
                yield
            except Exception as error:
                self._record_failure(error)
                raise
            finally:
                (self.path / HOLDER).unlink(missing_ok=True)
                _held.discard(inode)

    def _record_failure(self, error: Exception) -> None:
        """For `burnish runs`: an error ended the run, not its user."""
        text = redact_text(f"{type(error).__name__}: {error}".split("\n")[0])[:MAX_FAILURE]
        with suppress(OSError):  # the disk may be the cause
            write_atomically(self.path / FAILURE, encode({"error": text, "at": _now()}) + "\n")

    def _in_use(self) -> UserError:
        try:
            holder = read_json_object(self.path / HOLDER)
            who = f"process {holder['pid']} on host {holder['host']}, since {holder['since']}"
            stop = f"wait until it ends, stop it (kill {holder['pid']} on {holder['host']})"
        except (OSError, KeyError, UserError):
            who, stop = "another process", "wait until it ends"
        return UserError(
            f"another run is using this run folder ({who})",
            key="trainer.default_local_dir",
            value=str(self.path),
            hint=f"{stop}, or trainer.default_local_dir=/another/folder",
        )

    def describe(self, config: str, command: Sequence[str] | None = None, device: str | None = None) -> None:
        """Write the resolved config (YAML text), the command line and the environment, without secrets.

        The command is appended to those of earlier starts; config and environment are overwritten.
        """
        write_atomically(self.config, redact_text(config))
        arguments = redact_command(sys.argv if command is None else command)
        with open(self.command, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{_now()} {escape(shlex.join(arguments))}\n")
        write_atomically(self.environment, encode(environment(device)) + "\n")


def lock_state(folder: Path) -> bool | None:
    """Whether a process trains in this folder; None if there is no lock, or the file system has none. Acquires nothing,
    so that a run may start at the same moment."""
    path = folder / LOCK
    try:
        if _inode(path) in _held:  # closing a second handle would end the lock of this process
            return True
        with open(path, "rb") as file:
            answer = fcntl.fcntl(file, fcntl.F_GETLK, _FLOCK.pack(*_ANY_LOCK))
    except OSError:
        return None
    return _FLOCK.unpack(answer)[_ANY_LOCK.index(fcntl.F_WRLCK)] != fcntl.F_UNLCK


# The C library's struct flock, and a request that conflicts with any lock of the file.
if sys.platform == "darwin":
    _FLOCK, _ANY_LOCK = struct.Struct("qqihh"), (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
else:
    _FLOCK, _ANY_LOCK = struct.Struct("hhqqi4x"), (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment(device: str | None = None) -> dict[str, str]:
    """Versions of the main packages, the platform and the device."""
    versions = {"burnish": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions | ({} if device is None else {"device": device})


def dump_rollouts(folder: str | Path, step: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """{folder}/{step}.jsonl for trainer.rollout_data_dir and trainer.validation_data_dir.

    Each row has input, output, gts (ground truth) and score; step is added, other entries follow.
    """
    lines = []
    for row in rows:
        first = {name: row[name] for name in ("input", "output", "gts", "score")} | {"step": step}
        lines.append(encode(first | {name: value for name, value in row.items() if name not in first}) + "\n")
    path = Path(folder).expanduser() / f"{step}.jsonl"
    make_private(path.parent)
    write_atomically(path, "".join(lines))
    return path


def persistent_id(folder: Path, name: str, create: Callable[[], str], *, resume: bool) -> str:
    """The run id of a tracker, stored in the run folder so that a resumed run continues under it."""
    path = folder / ".ids" / name
    if resume and path.is_file():
        return read_text(path, limit=1000).strip()
    run_id = create()
    write_atomically(path, run_id)
    return run_id


def new_id() -> str:
    return uuid.uuid4().hex[:16]
