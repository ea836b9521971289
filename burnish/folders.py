"""Folders on disk: private ones, removal that follows no links, names that stay inside a folder, locks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from burnish.errors import UserError


def make_private(path: Path) -> None:
    """Create a folder that only this user can enter, for prompts, responses and weights.

    One that exists keeps its mode: a folder that the user has created may be shared.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def private_folder(path: Path) -> Path:
    """Create a folder that only this user can enter. UserError if there is one of somebody else, or a link."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UserError(f"{path} is not a folder that only this user can write to", hint=f"remove {path}")
    return path


def is_inside(name: object) -> bool:
    """Whether this is the relative name of a file that stays inside the folder it is joined to."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and "\\" not in name
        and all(part not in ("", ".", "..") and len(part.encode()) < 256 for part in name.split("/"))
    )


def remove_tree(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a file, or a folder with its contents. Of a link only the link itself."""
    if path.is_symlink() or not path.is_dir():
        with contextlib.suppress(OSError) if ignore_errors else contextlib.nullcontext():
            path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=ignore_errors)


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """A lock between processes; the system releases that of a killed process."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
