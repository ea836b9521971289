"""Rows of Hugging Face datasets, from the hub or saved in a folder. The only file that imports `datasets`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from burnish.data.files import ArrowRows, Rows
from burnish.errors import UserError

SAVED = ("dataset_dict.json", "state.json")  # what save_to_disk leaves in a folder


def hub_rows(
    name: str, subset: str | None, split: str, *, data_dir: str | None = None, key: str = "SRC"
) -> Sequence[dict[str, Any]]:
    """One split of a dataset, downloaded or from the local cache."""
    datasets = _library(name, key, "no such file here, and Hugging Face datasets need a library that is not installed")
    where = {} if data_dir is None else {"data_dir": data_dir}
    try:
        return datasets.load_dataset(name, subset, split=split, **where)
    except Exception as error:  # the library raises its own errors, those of the network and those of the file system
        told = f"{type(error).__name__}: {error}"
        problem = f"no such file here, and cannot load split {split!r} of a dataset of this name: {told}"
        raise UserError(problem, key=key, value=name) from error


def is_saved(folder: Path) -> bool:
    """Was this folder made by save_to_disk?"""
    return any((folder / name).is_file() for name in SAVED)


def saved_rows(folder: Path, split: str, *, key: str, name: str) -> Rows:
    """The rows of a folder made by save_to_disk; the split counts where it holds several."""
    datasets = _library(name, key, "this folder holds a Hugging Face dataset; it needs a library that is not installed")
    try:
        found = datasets.load_from_disk(str(folder))
    except Exception as error:  # as above
        raise UserError(f"cannot load it: {type(error).__name__}: {error}", key=key, value=name) from error
    if isinstance(found, dict):
        if split not in found:
            switch = f"{key.removesuffix('_files')}_split"
            raise UserError(
                f"{name} has no such split",
                key=switch,
                value=split,
                allowed=list(found),
                hint=f"{switch}={next(iter(found))}",
            )
        found = found[split]
    return arrow_rows(found, name)


def arrow_rows(dataset: Any, name: str) -> Rows:
    """A dataset as rows; its fingerprint is that of its content."""
    table = dataset.with_format("arrow")[:]
    if table.num_rows == 0:
        raise UserError(f"{name} has no rows")
    return ArrowRows(table, name, _fingerprint(table))


def _fingerprint(table: pa.Table) -> str:
    digest = hashlib.blake2b(digest_size=6)

    class Sink:
        closed = False

        def write(self, content: bytes) -> int:
            digest.update(content)
            return len(content)

        def flush(self) -> None:
            """Nothing is kept back."""

    with pa.ipc.new_stream(pa.PythonFile(Sink(), mode="w"), table.schema) as stream:
        stream.write_table(table)
    return digest.hexdigest()


def _library(name: str, key: str, problem: str) -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise UserError(problem, key=key, value=name, hint="pip install burnish[datasets]") from error
    return datasets
