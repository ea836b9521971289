"""Private files, and the secret that the machines of a run share.

A private file is a regular file of this user that nobody else can read or write. Processes of one machine get the
secret of their channels from such a file, in a folder that only this user can enter. Several machines share one secret:
the variable BURNISH_SECRET, the file that BURNISH_SECRET_FILE names, or ~/.config/burnish/secret, which the controller
creates if none of them exists.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from pathlib import Path

from burnish.errors import UserError
from burnish.storage import cache_folder

SECRET, SECRET_FILE = "BURNISH_SECRET", "BURNISH_SECRET_FILE"
MIN_LENGTH = 32  # characters of a secret
MAX_BYTES = 4096  # of a private file
HINT = f"export {SECRET_FILE}=/a/file/with/mode/600 on every machine, with the same content"


def cluster_secret(*, create: bool = False) -> bytes:
    """The secret that the machines of a run share; the controller may create it."""
    if value := os.environ.get(SECRET):
        return _checked(value.strip().encode(), SECRET)
    path = Path(os.environ.get(SECRET_FILE) or default_file()).expanduser()
    if create and SECRET_FILE not in os.environ:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, secrets.token_hex(32).encode())
    try:
        content = read_private(path)
    except FileNotFoundError as error:
        problem = f"several machines need a shared secret, but {path} does not exist on this one"
        raise UserError(problem, hint=HINT) from error
    return _checked(content.strip(), str(path))


def default_file() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "burnish" / "secret"


def _checked(secret: bytes, source: str) -> bytes:
    if len(secret) < MIN_LENGTH:
        problem = f"the secret in {source} has {len(secret)} characters; {MIN_LENGTH} are needed"
        raise UserError(problem, hint="openssl rand -hex 32 prints a good one")
    return secret


def write_private(path: Path, content: bytes) -> None:
    """Create the file with its whole content, readable by this user only; FileExistsError if there is one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.link(temporary, path)  # unlike a rename, it fails where the file exists
    finally:
        temporary.unlink()


def read_private(path: Path) -> bytes:
    """The content of a private file; UserError if others could read or replace it."""
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _is_private(status):
            owner, mode = status.st_uid, stat.S_IMODE(status.st_mode)
            problem = f"{path} must be a regular file of user {os.geteuid()} with mode 600"
            raise UserError(f"{problem}; it belongs to user {owner} and has mode {mode:o}", hint=f"chmod 600 {path}")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"{path} is longer than {MAX_BYTES} bytes")
    return content


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def runtime_folder() -> Path:
    """A folder of this user whose path all processes of the user on this machine know. Nobody else can enter it."""
    named = Path(tempfile.gettempdir()) / f"burnish-{os.geteuid()}"
    candidates = [cache_folder() / "run", named]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        candidates.insert(0, Path(runtime) / "burnish")
    for folder in candidates:
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.lstat()  # not what a link points to
            if stat.S_ISDIR(status.st_mode) and _is_private(status):
                return folder
    tried = ", ".join(map(str, candidates))
    raise UserError(f"no private folder could be created (tried {tried})", hint="export XDG_RUNTIME_DIR=/a/folder")
