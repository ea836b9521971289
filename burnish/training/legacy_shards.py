"""Shards of earlier versions: DCP's own files, whose index is a pickle. Read-only, through a restricted unpickler.

role folder/
  __0_0.distcp   tensors and values, each in torch's format, read with `weights_only`
  .metadata      the pickled index
"""

from __future__ import annotations

import io
import math
import os
import pathlib
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from burnish.errors import UserError
from burnish.training.shards import DTYPES, MAX_INDEX_BYTES, check_chunks, check_sizes, load_value
from burnish.untrusted import read_bytes

INDEX = ".metadata"
FILE = re.compile(r"__\d+_\d+\.distcp")
_StorageInfo: Any = filesystem._StorageInfo
# All that the index of a checkpoint contains.
_ALLOWED: dict[tuple[str, str], Any] = {
    **{
        (metadata.__name__, name): getattr(metadata, name)
        for name in ("Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties")
    },
    **{
        (metadata.__name__, name): getattr(metadata, name)
        for name in ("BytesStorageMetadata", "StorageMeta", "_MEM_FORMAT_ENCODING")
    },
    (filesystem.__name__, "_StorageInfo"): _StorageInfo,
    ("torch.serialization", "_get_layout"): lambda name: torch.strided,
    ("torch", "Size"): torch.Size,
    **{("torch", name): dtype for name, dtype in DTYPES.items()},
    **{(module, "PosixPath"): pathlib.PurePosixPath for module in ("pathlib", "pathlib._local")},
    ("collections", "OrderedDict"): dict,
}


class _IndexUnpickler(pickle.Unpickler):
    """Builds nothing but DCP's own descriptions."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}") from None

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to an object elsewhere")


class LegacyReader(FileSystemReader):
    """DCP's reader, with an index that is unpickled restrictedly and then checked against the files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        content = read_bytes(folder / INDEX, limit=MAX_INDEX_BYTES)
        try:
            self.metadata = _checked(_IndexUnpickler(io.BytesIO(content)).load(), folder)
        except Exception as error:  # a broken pickle may raise anything
            raise UserError(f"{folder / INDEX} is not an index of shards: {error}") from error

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self.metadata


class LegacyLoadPlanner(DefaultLoadPlanner):
    """Values that are no tensors are plain ones in torch's format."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        load_value(super().load_bytes, read_item, torch.load(value, map_location="cpu", weights_only=True))


def _checked(index: Any, folder: Path) -> Metadata:
    """A new index with nothing but what was checked; ValueError if anything is wrong."""
    if type(index) is not Metadata:
        raise ValueError("another object is in its place")
    entries = {str(name): _entry(str(name), entry) for name, entry in index.state_dict_metadata.items()}
    places: dict[MetadataIndex, Any] = {}
    needed: dict[str, int] = {}
    for key, place in index.storage_data.items():
        name, offset = str(key.fqn), None if key.offset is None else torch.Size(key.offset)
        file, start, length = place.relative_path, place.offset, place.length
        if not isinstance(file, str) or not FILE.fullmatch(file):
            raise ValueError(f"{file!r} is not a file of shards")
        if type(start) is not int or type(length) is not int or start < 0 or length < 0:
            raise ValueError(f"{name} has no place in {file}")
        if length < _num_bytes(entries[name], offset):
            raise ValueError(f"{name} is larger than its part of {file}")
        if place.transform_descriptors:
            raise ValueError(f"{name} is encoded with {place.transform_descriptors}")
        needed[file] = max(needed.get(file, 0), start + length)
        places[MetadataIndex(name, offset)] = _StorageInfo(file, start, length)
    check_sizes(folder, needed)
    return Metadata(entries, storage_data=places, storage_meta=StorageMeta())


def _entry(name: str, entry: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if type(entry) is BytesStorageMetadata:
        return entry
    shape, dtype = torch.Size(entry.size), entry.properties.dtype
    if dtype not in DTYPES.values():
        raise ValueError(f"{name} has the dtype {dtype}")
    chunks = [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in entry.chunks]
    check_chunks(name, shape, [(chunk.offsets, chunk.sizes) for chunk in chunks])
    return TensorStorageMetadata(TensorProperties(dtype), shape, chunks)


def _num_bytes(entry: TensorStorageMetadata | BytesStorageMetadata, offset: torch.Size | None) -> int:
    """Bytes of the chunk at this offset."""
    if isinstance(entry, BytesStorageMetadata):
        return 0
    chunk = next(chunk for chunk in entry.chunks if chunk.offsets == offset)
    return math.prod(chunk.sizes) * entry.properties.dtype.itemsize
