"""Remote paths (s3://, hdfs://, gs://, ...) and copies in shared memory. The only file that imports `fsspec`.

cache folder/
  <hash of the path>.lock       held while a copy is written
  <hash of the path>/
    <hash of its files>/        one complete copy; an incomplete one has a temporary name
      train.parquet             the file or folder, under its own name
      copy.json                 the path, and size and time (or etag) of every remote file
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
LOCAL_SCHEMES = ("file://", "local://")
SHARED_MEMORY = Path("/dev/shm")
METADATA = "copy.json"
# Names that file systems use for the modification time or a hash of the content.
VERSION_FIELDS = ("mtime", "modified", "last_modified", "LastModified", "updated", "created", "ETag", "etag", "md5Hash")

FileVersions = dict[str, dict[str, Any]]  # path within the source ("" for a single file) -> size, time or etag


def is_remote(path: str) -> bool:
    """Whether a path is on another file system. (`pkg://` names a Python module, `file://` a local file.)"""
    return bool(SCHEME.match(path)) and not path.startswith((*LOCAL_SCHEMES, "pkg://"))


def local_path(path: str, *, key: str, use_shm: bool = False) -> str:
    """A local path of this file or folder: itself, or an up-to-date copy.

    With `use_shm`, a copy in shared memory.
    """
    for scheme in LOCAL_SCHEMES:
        path = path.removeprefix(scheme)
    if is_remote(path):
        path = _fetched(path, key)
    return _in_shared_memory(path, key) if use_shm else path


def cache_folder() -> Path:
    """The folder of copies of remote files: BURNISH_CACHE, or ~/.cache/burnish."""
    return Path(os.environ.get("BURNISH_CACHE") or "~/.cache/burnish").expanduser()


@dataclass(frozen=True)
class RemoteFolder:
    """A folder on a file system that fsspec supports, or a local one."""

    url: str
    key: str  # the config key, for errors

    def names(self) -> list[str]:
        """The names of its entries; empty if there is no such folder."""
        with _user_errors(self.url, self.key):
            filesystem, root = _open(self.url, self.key)
            if not filesystem.isdir(root):
                return []
            return sorted(str(entry).rstrip("/").rpartition("/")[2] for entry in filesystem.ls(root, detail=False))

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None."""
        with _user_errors(self.url, self.key):
            filesystem, root = _open(self.url, self.key)
            path = f"{root.rstrip('/')}/{name}"
            return filesystem.cat_file(path) if filesystem.isfile(path) else None

    def write(self, name: str, content: bytes) -> None:
        with _user_errors(self.url, self.key):
            filesystem, root = _open(self.url, self.key)
            filesystem.makedirs(root, exist_ok=True)
            filesystem.pipe_file(f"{root.rstrip('/')}/{name}", content)

    def put(self, folder: Path, last: str) -> None:
        """Upload a folder, the file `last` at the end: where that file exists, the upload is complete."""
        with _user_errors(self.url, self.key):
            filesystem, root = _open(self.url, self.key)
            target = f"{root.rstrip('/')}/{folder.name}"
            if filesystem.exists(target):
                filesystem.rm(target, recursive=True)
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            for file in sorted(files, key=lambda file: file.relative_to(folder) == Path(last)):
                remote = f"{target}/{file.relative_to(folder).as_posix()}"
                filesystem.makedirs(remote.rpartition("/")[0], exist_ok=True)
                filesystem.put_file(str(file), remote)

    def fetch(self, name: str, folder: Path) -> None:
        """Download one of its folders to a new local folder, atomically."""
        with _user_errors(self.url, self.key):
            filesystem, root = _open(self.url, self.key)
            source = f"{root.rstrip('/')}/{name}"
            _download(filesystem, source, _versions(filesystem, source), folder)


def _fetched(url: str, key: str) -> str:
    with _user_errors(url, key):
        filesystem, root = _open(url, key)
        versions = _versions(filesystem, root)
        if not versions:
            raise UserError("no such file or folder", key=key, value=url)
        size = sum(version["size"] or 0 for version in versions.values())

        def download(folder: Path) -> None:
            logger.info("downloading %s (%.1f MB)", url, size / 1e6)
            _download(filesystem, root, versions, folder)

        return _copy(url, root.rstrip("/").rpartition("/")[2], versions, cache_folder(), download)


def _in_shared_memory(path: str, key: str) -> str:
    source, shm_key = Path(path).expanduser().resolve(), f"{key.rpartition('.')[0]}.use_shm"
    options = {"key": shm_key, "value": True, "hint": f"{shm_key}=false"}
    if not source.exists():
        raise UserError("no such file or folder", key=key, value=path)
    if not SHARED_MEMORY.is_dir():
        raise UserError(f"this machine has no {SHARED_MEMORY}", **options)
    files = {"": source} if source.is_file() else {str(f.relative_to(source)): f for f in sorted(source.rglob("*"))}
    versions = {name: _local_version(file) for name, file in files.items() if file.is_file()}
    needed = sum(version["size"] for version in versions.values())

    def copy(folder: Path) -> None:
        free = shutil.disk_usage(SHARED_MEMORY).free
        if needed > free:
            space = f"{SHARED_MEMORY} has {free / 1e9:.2f} GB left"
            raise UserError(f"{path} needs {needed / 1e9:.2f} GB, but {space}", **options)
        for name in versions:
            target = folder / name if name else folder
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(files[name], target)

    try:
        return _copy(str(source), source.name, versions, SHARED_MEMORY / "burnish-cache", copy)
    except OSError as error:
        raise UserError(f"cannot copy {path} to shared memory: {error}", **options) from error


def _copy(source: str, name: str, versions: FileVersions, cache: Path, write: Callable[[Path], None]) -> str:
    """The path of a complete copy with these file versions, written unless it exists. Removes older copies."""
    folder = cache / _short_hash(source)
    metadata = {"source": source, "files": versions}
    version = folder / _short_hash(json.dumps(metadata, sort_keys=True))
    with _locked(folder.with_suffix(".lock")):
        if not _is_complete(version / name, version / METADATA, versions):
            partial = folder / f".{version.name}.{os.getpid()}"
            _remove(partial)
            partial.mkdir(parents=True)
            try:
                write(partial / name)
                (partial / METADATA).write_text(json.dumps(metadata, indent=1))
                _remove(version)
                partial.rename(version)
            finally:
                _remove(partial)
        for other in folder.iterdir():
            if other != version:
                _remove(other)
    return str(version / name)


def _is_complete(copy: Path, metadata: Path, versions: FileVersions) -> bool:
    """Whether the copy exists and its files have the expected sizes."""
    if not metadata.is_file():
        return False
    files = [(copy / name if name else copy, version["size"]) for name, version in versions.items()]
    return all(file.is_file() and size in (None, file.stat().st_size) for file, size in files)


def _download(filesystem: Any, root: str, versions: FileVersions, target: Path) -> None:
    """Download all files to a temporary name, check their sizes, then rename."""
    partial = target.with_name(f".{target.name}.partial")
    _remove(partial)
    try:
        for name, version in versions.items():
            file = partial / name if name else partial
            file.parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(f"{root.rstrip('/')}/{name}" if name else root, str(file))
            if version["size"] not in (None, file.stat().st_size):
                raise OSError(f"{name or root} has {file.stat().st_size} of {version['size']} bytes")
        partial.rename(target)
    finally:
        _remove(partial)


def _versions(filesystem: Any, root: str) -> FileVersions:
    """Size and version of a file, or of every file of a folder; empty if nothing exists."""
    if not filesystem.exists(root):
        return {}
    if not filesystem.isdir(root):
        return {"": _version(filesystem.info(root))}
    files = filesystem.find(root, detail=True)
    start = len(str(root).rstrip("/")) + 1
    return {str(path)[start:]: _version(info) for path, info in sorted(files.items())}


def _version(info: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "size": info.get("size"),
        **{name: str(info[name]) for name in VERSION_FIELDS if info.get(name) is not None},
    }


def _local_version(file: Path) -> dict[str, Any]:
    stat = file.stat()
    return {"size": stat.st_size, "mtime": stat.st_mtime_ns}


def _open(url: str, key: str) -> tuple[Any, str]:
    """The file system of a URL, and the path on it."""
    try:
        import fsspec.core
    except ImportError as error:
        problem = "remote paths require fsspec, which is not installed"
        raise UserError(problem, key=key, value=url, hint="pip install burnish[remote]") from error
    filesystem, root = fsspec.core.url_to_fs(os.path.expanduser(url))
    filesystem.invalidate_cache()  # earlier listings may be outdated
    return filesystem, root


@contextmanager
def _user_errors(url: str, key: str) -> Iterator[None]:
    """Raise errors of a file system as UserError. Every library behind fsspec has its own exceptions."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"cannot access it: {type(error).__name__}: {reason}", key=key, value=url) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A lock between processes; the system releases that of a killed process."""
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
