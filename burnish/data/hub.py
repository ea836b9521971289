"""Rows of Hugging Face datasets, from the hub or from a folder. The only file that imports `datasets`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from burnish.data.files import ArrowRows, Rows
from burnish.errors import UserError, install_extra

SAVED = ("dataset_dict.json", "state.json")  # files that save_to_disk writes
TRUST = "HF_DATASETS_TRUST_REMOTE_CODE"


def hub_rows(
    name: str, subset: str | None, split: str, *, data_dir: str | None = None, key: str = "SRC"
) -> Sequence[dict[str, Any]]:
    """One split of a dataset, downloaded or from the local cache."""
    datasets = _library(name, key, "no such local file, and the Hugging Face datasets library is not installed")
    where = {} if data_dir is None else {"data_dir": data_dir}
    try:
        return datasets.load_dataset(name, subset, split=split, **where)
    except Exception as error:  # the library raises its own errors, those of the network and those of the file system
        reason = f"{type(error).__name__}: {error}"
        problem = f"no such local file, and cannot load split {split!r} of the hub dataset: {reason}"
        raise UserError(problem, key=key, value=name) from error


def is_saved(folder: Path) -> bool:
    """Whether save_to_disk wrote this folder."""
    return any((folder / name).is_file() for name in SAVED)


def saved_rows(folder: Path, split: str, *, key: str, name: str) -> Rows:
    """The rows of a folder that save_to_disk wrote; `split` applies to a folder with several splits."""
    datasets = _library(name, key, "a Hugging Face dataset, but the datasets library is not installed")
    try:
        dataset = datasets.load_from_disk(str(folder))
    except Exception as error:  # as above
        raise UserError(f"cannot load the dataset: {type(error).__name__}: {error}", key=key, value=name) from error
    if isinstance(dataset, dict):
        if split not in dataset:
            split_key = f"{key.removesuffix('_files')}_split"
            raise UserError(
                f"no such split in {name}",
                key=split_key,
                value=split,
                allowed=list(dataset),
                hint=f"{split_key}={next(iter(dataset))}",
            )
        dataset = dataset[split]
    return arrow_rows(dataset, name)


def arrow_rows(dataset: Any, name: str) -> Rows:
    """The rows of a dataset; the fingerprint is a hash of the content."""
    table = dataset.with_format("arrow")[:]
    if table.num_rows == 0:
        raise UserError(f"{name}: the dataset has no rows")
    return ArrowRows(table, name, _fingerprint(table))


def _fingerprint(table: pa.Table) -> str:
    digest = hashlib.blake2b(digest_size=6)

    class Sink:
        closed = False

        def write(self, content: bytes) -> int:
            digest.update(content)
            return len(content)

        def flush(self) -> None:
            """Does nothing."""

    with pa.ipc.new_stream(pa.PythonFile(Sink(), mode="w"), table.schema) as stream:
        stream.write_table(table)
    return digest.hexdigest()


def _library(name: str, key: str, problem: str) -> ModuleType:
    try:
        import datasets
        import datasets.config
    except ImportError as error:
        raise UserError(problem, key=key, value=name, hint=install_extra("datasets")) from error
    if getattr(datasets.config, TRUST, False) is None:  # some versions ask on stdin whether to run a dataset's code
        setattr(datasets.config, TRUST, False)
    return datasets
