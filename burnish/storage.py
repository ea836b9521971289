"""Paths: remote ones (s3://, hdfs://, gs://, ...), copies in shared memory, models in run folders, content hashes, full
disks. The only file that imports `fsspec`.

cache folder/
  <hash of the path>.lock       held while a copy is written
  <hash of the path>/
    <hash of its files>/        one complete copy; an incomplete one has a temporary name
      train.parquet             the file or folder, under its own name
      copy.json                 the path, and size and time (or etag) of every remote file
"""

from __future__ import annotations

import errno
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

from burnish.errors import UserError, install_extra, nearest
from burnish.folders import file_lock, is_inside, private_folder, remove_tree
from burnish.http import fsspec_options, size_limit
from burnish.untrusted import read_text

logger = logging.getLogger(__name__)

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
LOCAL_SCHEMES = ("file://", "local://")
SHARED_MEMORY = Path("/dev/shm")
METADATA = "copy.json"
# Names that file systems use for the modification time or a hash of the content.
VERSION_FIELDS = ("mtime", "modified", "last_modified", "LastModified", "updated", "created", "ETag", "etag", "md5Hash")

# In a run folder: the trained model, and the record of a finished run.
FINAL_MODEL, FINISHED = "model", "finished.json"
LATEST_STEP, STEP_PREFIX = "latest_checkpointed_iteration.txt", "global_step_"
STEP = re.compile(r"0|[1-9][0-9]{0,17}")  # the rest of a checkpoint's name
HUGGING_FACE, MODEL_CONFIG = "huggingface", "config.json"
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")

SAMPLES, SAMPLE_BYTES = 16, 1 << 16  # of a large file, for its hash

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


def read_remote(url: str, *, key: str, limit: int) -> bytes | None:
    """The content of a remote file, of which no more than `limit` + 1 bytes are read, without a copy in the cache. None
    if there is no such file."""
    with _user_errors(url, key):
        filesystem, root = _open(url, key)
        if not filesystem.isfile(root):
            return None
        with filesystem.open(root, "rb") as file:
            return file.read(limit + 1)


def cache_folder() -> Path:
    """The folder of copies of remote files: BURNISH_CACHE, or ~/.cache/burnish."""
    return Path(os.environ.get("BURNISH_CACHE") or "~/.cache/burnish").expanduser()


def looks_local(name: str) -> bool:
    """Whether a model's name can only be a path: a hub name is `name` or `owner/name`."""
    if name.startswith(("/", "~", ".")) or name.count("/") > 1:
        return True
    return "/" in name and Path(name).parent.is_dir()


def check_exists(name: str, *, key: str, more: str = "") -> None:
    """Refuse a mistyped local path at once, instead of asking a hub for a model of that name.

    `more` is added to what to type.
    """
    for scheme in LOCAL_SCHEMES:
        name = name.removeprefix(scheme)
    path = Path(name).expanduser()
    if path.exists() or is_remote(name) or not looks_local(name):
        return
    similar = similar_path(path)
    problem = "no such folder" if similar is None else f"no such folder; did you mean {similar}?"
    raise UserError(problem, key=key, value=name, hint=f"{key}={similar or '/path/to/a/hugging-face/model'}{more}")


def similar_path(path: Path) -> Path | None:
    """An existing path that differs from this one in one mistyped name."""
    parents = [path, *path.parents]
    missing = next((here for here in reversed(parents) if not here.exists()), None)
    if missing is None or not missing.parent.is_dir():
        return None
    try:
        match = nearest(missing.name, [entry.name for entry in missing.parent.iterdir()])
    except OSError:
        return None
    if match is None:
        return None
    similar = missing.parent / match / path.relative_to(missing)
    return similar if similar.exists() else missing.parent / match


def model_folder(path: Path) -> Path | None:
    """The Hugging Face folder in a run folder, a checkpoint or a role's folder of ours; None if it is none of these.

    Of a run folder: the model of the finished run, else that of the newest checkpoint. It may lack the weights, if
    those are in the checkpoint's shards.
    """
    if not path.is_dir() or (path / MODEL_CONFIG).is_file():
        return None
    final = path / FINAL_MODEL if (path / FINAL_MODEL / MODEL_CONFIG).is_file() else None
    step = _newest_step(path)
    if final is not None and ((path / FINISHED).is_file() or step is None):
        return final
    if step is not None:
        path = step
    folders = (path / "actor" / HUGGING_FACE, path / HUGGING_FACE)
    return next((folder for folder in folders if (folder / MODEL_CONFIG).is_file()), None)


def _newest_step(run: Path) -> Path | None:
    """The newest checkpoint of a run folder."""
    steps = {
        int(number): folder
        for folder in run.glob(f"{STEP_PREFIX}*")
        if STEP.fullmatch(number := folder.name.removeprefix(STEP_PREFIX))
    }
    try:
        last = int(read_text(run / LATEST_STEP, limit=100))
    except (OSError, ValueError, UserError):
        last = None
    return steps.get(last) if last in steps else steps[max(steps)] if steps else None


def has_weights(folder: Path) -> bool:
    """Whether a Hugging Face folder has its weights."""
    return any(any(folder.glob(pattern)) for pattern in WEIGHTS)


def content_hash(path: Path) -> str:
    """A hash of a file, or of all files of a folder; a copy has the same. Of large files only samples are read, so that
    it is cheap for models."""
    digest = hashlib.blake2b(digest_size=6)
    if path.is_file():
        _add_content(digest, path)
        return digest.hexdigest()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        name = file.relative_to(path)
        if file.suffix != ".md" and not any(part.startswith(".") for part in name.parts):
            digest.update(f"{name.as_posix()}\n".encode())
            _add_content(digest, file)
    return digest.hexdigest()


def _add_content(digest: Any, file: Path) -> None:
    size = file.stat().st_size
    digest.update(f"{size}\n".encode())
    with file.open("rb") as stream:
        if size <= SAMPLES * SAMPLE_BYTES:
            digest.update(stream.read())
            return
        for number in range(SAMPLES):
            stream.seek((size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            digest.update(stream.read(SAMPLE_BYTES))


def is_disk_full(error: BaseException | None) -> bool:
    """Whether the error, or one that caused it, is a full disk. Some libraries keep only the system's text."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if os.strerror(errno.ENOSPC) in str(error) or os.strerror(errno.EDQUOT) in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def disk_full(error: BaseException) -> str:
    """ "disk full: " in front of the message of an error that a full disk caused; else nothing."""
    return "disk full: " if is_disk_full(error) and "disk full: " not in str(error) else ""


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
        return _copy(str(source), source.name, versions, private_folder(SHARED_MEMORY / _shared_name()), copy)
    except OSError as error:
        raise UserError(f"cannot copy {path} to shared memory: {error}", **options) from error


def _shared_name() -> str:
    """Every user has a folder of their own: what others may write there could be anything."""
    return f"burnish-cache-{os.geteuid()}"


def _copy(source: str, name: str, versions: FileVersions, cache: Path, write: Callable[[Path], None]) -> str:
    """The path of a complete copy with these file versions, written unless it exists. Removes older copies."""
    folder, name = cache / short_hash(source), name if is_inside(name) else "copy"
    metadata = {"source": source, "files": versions}
    version = folder / short_hash(json.dumps(metadata, sort_keys=True))
    with file_lock(folder.with_suffix(".lock")):
        if not _is_complete(version / name, version / METADATA, versions):
            partial = folder / f".{version.name}.{os.getpid()}"
            remove_tree(partial)
            partial.mkdir(parents=True)
            try:
                write(partial / name)
                (partial / METADATA).write_text(json.dumps(metadata, indent=1))
                remove_tree(version)
                partial.rename(version)
            finally:
                remove_tree(partial)
        for other in folder.iterdir():
            if other != version:
                remove_tree(other)
    return str(version / name)


def _is_complete(copy: Path, metadata: Path, versions: FileVersions) -> bool:
    """Whether the copy exists and its files have the expected sizes."""
    if not metadata.is_file():
        return False
    files = [(copy / name if name else copy, version["size"]) for name, version in versions.items()]
    return all(file.is_file() and size in (None, file.stat().st_size) for file, size in files)


def _download(filesystem: Any, root: str, versions: FileVersions, target: Path) -> None:
    """Download all files to a temporary name, check their sizes, then rename."""
    from fsspec.callbacks import Callback

    partial = target.with_name(f".{target.name}.partial")
    remove_tree(partial)
    try:
        for name, version in versions.items():
            file = partial / name if name else partial
            file.parent.mkdir(parents=True, exist_ok=True)
            source = f"{root.rstrip('/')}/{name}" if name else root
            options = fsspec_options(source, version["size"])
            limit = Callback(hooks={"limit": size_limit(version["size"])})
            (type(filesystem)(**options) if options else filesystem).get_file(source, str(file), callback=limit)
            if version["size"] not in (None, file.stat().st_size):
                raise OSError(f"{name or root} has {file.stat().st_size} of {version['size']} bytes")
        partial.rename(target)
    finally:
        remove_tree(partial)


def _versions(filesystem: Any, root: str) -> FileVersions:
    """Size and version of a file, or of every file of a folder; empty if nothing exists."""
    if not filesystem.exists(root):
        return {}
    if not filesystem.isdir(root):
        return {"": _version(filesystem.info(root))}
    prefix = f"{str(root).rstrip('/')}/"
    versions: FileVersions = {}
    for path, info in sorted(filesystem.find(root, detail=True).items()):
        name = str(path).removeprefix(prefix)
        # The listing comes from the server, and its names become names of local files.
        if not str(path).startswith(prefix) or not is_inside(name):
            raise OSError(f"the listing names {str(path)[:200]!r}, which is not a file in {root}")
        versions[name] = _version(info)
    return versions


def _version(info: Mapping[str, Any]) -> dict[str, Any]:
    size = info.get("size")
    return {
        "size": size if type(size) is int and size >= 0 else None,
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
        raise UserError(problem, key=key, value=url, hint=install_extra("remote")) from error
    filesystem, root = fsspec.core.url_to_fs(os.path.expanduser(url), **fsspec_options(url))
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


def short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
