"""Paths that lie elsewhere (s3://, hdfs://, gs://, ...) or shall lie in memory. The only file that imports `fsspec`.

cache folder/
  <hash of the path>.lock       held while a copy is made
  <hash of the path>/
    <hash of its files>/        one whole copy; a copy in the making has another name
      train.parquet             the file or folder, under its own name
      copy.json                 the path, and size and time (or etag) of every file as it was there
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.errors import UserError

logger = logging.getLogger(__name__)

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
IN_PLACE = ("file://", "local://")
SHARED_MEMORY = Path("/dev/shm")
ABOUT = "copy.json"
# What file systems call the time of the last change, or a hash of the content.
MARKS = ("mtime", "modified", "last_modified", "LastModified", "updated", "created", "ETag", "etag", "md5Hash")

Facts = dict[str, dict[str, Any]]  # path within the source ("" for a single file) -> size and marks


def is_remote(path: str) -> bool:
    """Does this path name another file system? (`pkg://` names a Python module, `file://` this file system.)"""
    return bool(SCHEME.match(path)) and not path.startswith((*IN_PLACE, "pkg://"))


def local_path(path: str, *, key: str, use_shm: bool = False) -> str:
    """Where to read this file or folder: itself, or a whole copy of it that is as new as the original.

    With `use_shm`, a copy in shared memory.
    """
    for scheme in IN_PLACE:
        path = path.removeprefix(scheme)
    if is_remote(path):
        path = _fetched(path, key)
    return _in_shared_memory(path, key) if use_shm else path


def cache_folder() -> Path:
    """Where copies of remote files lie: BURNISH_CACHE, or a folder of the user's."""
    return Path(os.environ.get("BURNISH_CACHE") or "~/.cache/burnish").expanduser()


@dataclass(frozen=True)
class RemoteFolder:
    """A folder of any file system that fsspec knows, or a local one, to put folders into and to fetch them from."""

    url: str
    key: str  # the config key to name in errors

    def names(self) -> list[str]:
        """What lies directly in it; nothing if there is no such folder."""
        with _told(self.url, self.key):
            filesystem, root = _open(self.url, self.key)
            if not filesystem.isdir(root):
                return []
            return sorted(str(entry).rstrip("/").rpartition("/")[2] for entry in filesystem.ls(root, detail=False))

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None."""
        with _told(self.url, self.key):
            filesystem, root = _open(self.url, self.key)
            path = f"{root.rstrip('/')}/{name}"
            return filesystem.cat_file(path) if filesystem.isfile(path) else None

    def write(self, name: str, content: bytes) -> None:
        with _told(self.url, self.key):
            filesystem, root = _open(self.url, self.key)
            filesystem.makedirs(root, exist_ok=True)
            filesystem.pipe_file(f"{root.rstrip('/')}/{name}", content)

    def put(self, folder: Path, last: str) -> None:
        """Copy a folder here, the file `last` at the end: who sees that one sees the whole."""
        with _told(self.url, self.key):
            filesystem, root = _open(self.url, self.key)
            target = f"{root.rstrip('/')}/{folder.name}"
            if filesystem.exists(target):
                filesystem.rm(target, recursive=True)
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            for file in sorted(files, key=lambda file: file.relative_to(folder) == Path(last)):
                there = f"{target}/{file.relative_to(folder).as_posix()}"
                filesystem.makedirs(there.rpartition("/")[0], exist_ok=True)
                filesystem.put_file(str(file), there)

    def fetch(self, name: str, folder: Path) -> None:
        """Copy one of its folders to this new local folder: whole or not at all."""
        with _told(self.url, self.key):
            filesystem, root = _open(self.url, self.key)
            source = f"{root.rstrip('/')}/{name}"
            _download(filesystem, source, _facts(filesystem, source), folder)


def _fetched(url: str, key: str) -> str:
    with _told(url, key):
        filesystem, root = _open(url, key)
        facts = _facts(filesystem, root)
        if not facts:
            raise UserError("no such file or folder", key=key, value=url)
        size = sum(fact["size"] or 0 for fact in facts.values())

        def download(folder: Path) -> None:
            logger.info("fetching %s (%.1f MB)", url, size / 1e6)
            _download(filesystem, root, facts, folder)

        return _copy(url, root.rstrip("/").rpartition("/")[2], facts, cache_folder(), download)


def _in_shared_memory(path: str, key: str) -> str:
    source, switch = Path(path).expanduser().resolve(), f"{key.rpartition('.')[0]}.use_shm"
    off = {"key": switch, "value": True, "hint": f"{switch}=false"}
    if not source.exists():
        raise UserError("no such file or folder", key=key, value=path)
    if not SHARED_MEMORY.is_dir():
        raise UserError(f"this machine has no {SHARED_MEMORY}", **off)
    files = {"": source} if source.is_file() else {str(f.relative_to(source)): f for f in sorted(source.rglob("*"))}
    facts = {name: _local_fact(file) for name, file in files.items() if file.is_file()}
    needed = sum(fact["size"] for fact in facts.values())

    def copy(folder: Path) -> None:
        free = shutil.disk_usage(SHARED_MEMORY).free
        if needed > free:
            room = f"{SHARED_MEMORY} has {free / 1e9:.2f} GB left"
            raise UserError(f"{path} has {needed / 1e9:.2f} GB, and {room}", **off)
        for name in facts:
            target = folder / name if name else folder
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(files[name], target)

    try:
        return _copy(str(source), source.name, facts, SHARED_MEMORY / "burnish-cache", copy)
    except OSError as error:
        raise UserError(f"cannot copy {path} to shared memory: {error}", **off) from error


def _copy(source: str, name: str, facts: Facts, cache: Path, make: Callable[[Path], None]) -> str:
    """The path of a whole copy with these facts; made now unless it is there. Older copies of the source go."""
    folder = cache / _short_hash(source)
    about = {"source": source, "files": facts}
    version = folder / _short_hash(json.dumps(about, sort_keys=True))
    with _locked(folder.with_suffix(".lock")):
        if not _is_whole(version / name, version / ABOUT, facts):
            partial = folder / f".{version.name}.{os.getpid()}"
            _remove(partial)
            partial.mkdir(parents=True)
            try:
                make(partial / name)
                (partial / ABOUT).write_text(json.dumps(about, indent=1))
                _remove(version)
                partial.rename(version)
            finally:
                _remove(partial)
        for other in folder.iterdir():
            if other != version:
                _remove(other)
    return str(version / name)


def _is_whole(copy: Path, about: Path, facts: Facts) -> bool:
    """Is the copy there, and does each of its files have the size it should have?"""
    if not about.is_file():
        return False
    files = [(copy / name if name else copy, fact["size"]) for name, fact in facts.items()]
    return all(file.is_file() and size in (None, file.stat().st_size) for file, size in files)


def _download(filesystem: Any, root: str, facts: Facts, target: Path) -> None:
    """Fetch all files beside the target, check their sizes, then make them appear under its name."""
    partial = target.with_name(f".{target.name}.partial")
    _remove(partial)
    try:
        for name, fact in facts.items():
            file = partial / name if name else partial
            file.parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(f"{root.rstrip('/')}/{name}" if name else root, str(file))
            if fact["size"] not in (None, file.stat().st_size):
                raise OSError(f"{name or root} came with {file.stat().st_size} of {fact['size']} bytes")
        partial.rename(target)
    finally:
        _remove(partial)


def _facts(filesystem: Any, root: str) -> Facts:
    """Size and marks of a file, or of every file of a folder; empty if there is nothing."""
    if not filesystem.exists(root):
        return {}
    if not filesystem.isdir(root):
        return {"": _fact(filesystem.info(root))}
    found = filesystem.find(root, detail=True)
    start = len(str(root).rstrip("/")) + 1
    return {str(path)[start:]: _fact(info) for path, info in sorted(found.items())}


def _fact(info: Mapping[str, Any]) -> dict[str, Any]:
    return {"size": info.get("size"), **{mark: str(info[mark]) for mark in MARKS if info.get(mark) is not None}}


def _local_fact(file: Path) -> dict[str, Any]:
    stat = file.stat()
    return {"size": stat.st_size, "mtime": stat.st_mtime_ns}


def _open(url: str, key: str) -> tuple[Any, str]:
    """The file system of a URL, and the path within it."""
    try:
        import fsspec.core
    except ImportError as error:
        problem = "remote paths need a library that is not installed"
        raise UserError(problem, key=key, value=url, hint="pip install burnish[remote]") from error
    filesystem, root = fsspec.core.url_to_fs(os.path.expanduser(url))
    filesystem.invalidate_cache()  # what was listed before may have changed
    return filesystem, root


@contextmanager
def _told(url: str, key: str) -> Iterator[None]:
    """Errors of a file system, in the user's words. Each library behind fsspec raises its own."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        what = str(error).strip().split("\n")[0]
        raise UserError(f"cannot reach it: {type(error).__name__}: {what}", key=key, value=url) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; a killed one lets go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
