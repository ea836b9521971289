"""Tensors of all ranks on disk: torch's distributed checkpoint (DCP) over safetensors files and JSON, without pickle.

role folder/
  shards-00000-000.safetensors   tensors that rank 0 wrote; more files where they are large
  shards.json                    dtype and shape of every tensor, where its chunks are, and all other values

A chunk is a whole tensor under its own name, or a part of one under its name and offset. Folders of earlier versions
have DCP's own format instead (`legacy_shards`).
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from burnish.errors import UserError
from burnish.json_values import from_json, to_json
from burnish.untrusted import parse_json, read_json_object

INDEX = "shards.json"
FORMAT, VERSION = "burnish shards", 1
FILE = re.compile(r"shards-\d{5}-\d{3}\.safetensors")
FILE_BYTES = 2**30  # a file is complete when it has this many; bounds what a save needs in CPU memory
MAX_INDEX_BYTES = 2**30
_NAMES = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"),
)
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES}


class Chunk(NamedTuple):
    """A part of a tensor, and the file that holds it."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str

    def key(self, name: str, whole: Sequence[int]) -> str:
        """The chunk's name in its file."""
        return name if self.shape == tuple(whole) else f"{name}@{','.join(map(str, self.offsets))}"


class ShardWriter(StorageWriter):
    """Every rank writes its chunks; the coordinator writes the index."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        if checkpoint_id is not None:
            self.folder = Path(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [dataclasses.replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = [
            WriteResult(item.index, -1, _bytes(planner, item).decode())
            for item in plan.items
            if item.type == WriteItemType.BYTE_IO
        ]
        items = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        for number, bucket in enumerate(_buckets(items)):
            file = f"shards-{plan.storage_data:05}-{number:03}.safetensors"
            self._write_file(file, bucket, planner)
            results += [WriteResult(item.index, _num_bytes(item), _chunk(item, file)) for item in bucket]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _write_file(self, file: str, items: list[WriteItem], planner: SavePlanner) -> None:
        tensors: dict[str, Tensor] = {}
        storages: set[int] = set()
        for item in items:
            data = planner.resolve_data(item)
            assert isinstance(data, Tensor) and item.tensor_data is not None
            tensor = data.detach().cpu().contiguous()
            storage = tensor.untyped_storage()
            # safetensors refuses tensors that share memory: tied weights, views of a larger buffer.
            if storage.data_ptr() in storages or storage.nbytes() != tensor.nbytes:
                tensor = tensor.clone()
            storages.add(tensor.untyped_storage().data_ptr())
            tensors[_chunk(item, file).key(item.index.fqn, item.tensor_data.size)] = tensor
        assert len(tensors) == len(items), "two chunks have the same name"
        save_file(tensors, self.folder / file, metadata={"format": "pt"})
        with open(self.folder / file, "rb") as written:
            os.fsync(written.fileno())  # the main rank may be on another machine

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        tensors: dict[str, dict[str, Any]] = {
            name: {"dtype": str(entry.properties.dtype).removeprefix("torch."), "shape": list(entry.size), "chunks": []}
            for name, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        values: dict[str, Any] = {}
        for result in (result for rank in results for result in rank):
            if isinstance(result.storage_data, Chunk):
                tensors[result.index.fqn]["chunks"].append(result.storage_data)
            else:
                values[result.index.fqn] = json.loads(result.storage_data)
        index = {"format": FORMAT, "version": VERSION, "tensors": tensors, "values": values}
        (self.folder / INDEX).write_text(json.dumps(index, allow_nan=False))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return isinstance(checkpoint_id, Path)


def _bytes(planner: SavePlanner, item: WriteItem) -> bytes:
    data = planner.resolve_data(item)
    assert isinstance(data, io.BytesIO)
    return data.getvalue()


def _chunk(item: WriteItem, file: str) -> Chunk:
    assert item.tensor_data is not None
    return Chunk(tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes), file)


def _num_bytes(item: WriteItem) -> int:
    assert item.tensor_data is not None
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize


def _buckets(items: list[WriteItem]) -> Iterator[list[WriteItem]]:
    """Items of about FILE_BYTES together, in order."""
    bucket: list[WriteItem] = []
    size = 0
    for item in items:
        bucket.append(item)
        size += _num_bytes(item)
        if size >= FILE_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


class ShardSavePlanner(DefaultSavePlanner):
    """Values that are no tensors become JSON."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if write_item.type != WriteItemType.BYTE_IO:
            return object
        return io.BytesIO(json.dumps(to_json(object), allow_nan=False).encode())


class ShardLoadPlanner(DefaultLoadPlanner):
    """Values that are no tensors come from JSON."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        load_value(super().load_bytes, read_item, from_json(parse_json(value.getvalue(), read_item.dest_index.fqn)))


def load_value(load_bytes: Any, read_item: ReadItem, value: Any) -> None:
    """Give DCP's planner a value. It takes pickled ones only; this pickle is of this process, from plain values."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    load_bytes(read_item, buffer)


class ShardReader(StorageReader):
    """Reads the chunks that this rank needs. The index is not trusted: every entry is checked against the files."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        index = read_json_object(folder / INDEX, limit=MAX_INDEX_BYTES)
        try:
            self.metadata, self.chunks, self.values = _parse_index(index)
            _check_files(folder, self.metadata, self.chunks)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{folder / INDEX} is not an index of shards: {error}") from error

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        pass

    def read_metadata(self) -> Metadata:
        return self.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(json.dumps(self.values[item.storage_index.fqn]).encode()))
            else:
                by_file.setdefault(self._find(item).file, []).append(item)
        for file, items in by_file.items():
            with safe_open(self.folder / file, framework="pt") as tensors:
                for item in items:
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(self._part(tensors, item))
                    planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _find(self, item: ReadItem) -> Chunk:
        offset = item.storage_index.offset
        return self.chunks[item.storage_index.fqn, tuple(offset or ())]

    def _part(self, tensors: Any, item: ReadItem) -> Tensor:
        """What the request asks for of its chunk."""
        name, chunk = item.storage_index.fqn, self._find(item)
        entry = self.metadata.state_dict_metadata[name]
        assert isinstance(entry, TensorStorageMetadata)
        key = chunk.key(name, entry.size)
        if tuple(item.lengths) == chunk.shape:
            tensor = tensors.get_tensor(key)
        else:
            window = tuple(slice(a, a + n) for a, n in zip(item.storage_offsets, item.lengths, strict=True))
            tensor = tensors.get_slice(key)[window]
        if tensor.shape != item.lengths or tensor.dtype != entry.properties.dtype:
            raise ValueError(f"{key} in {chunk.file} is {tensor.dtype} of shape {list(tensor.shape)}")
        return tensor

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return isinstance(checkpoint_id, Path)


Chunks = dict[tuple[str, tuple[int, ...]], Chunk]


def _parse_index(index: dict[str, Any]) -> tuple[Metadata, Chunks, dict[str, Any]]:
    if index.get("format") != FORMAT:
        raise ValueError(f"its format is {index.get('format')!r}")
    if index.get("version") != VERSION:
        raise ValueError(f"its version is {index.get('version')!r}; this Burnish reads {VERSION}")
    chunks: Chunks = {}
    entries: dict[str, Any] = {}
    for name, entry in index["tensors"].items():
        shape = _sizes(entry["shape"])
        parts = [Chunk(_sizes(offsets), _sizes(sizes), _file(file)) for offsets, sizes, file in entry["chunks"]]
        check_chunks(name, shape, [(part.offsets, part.shape) for part in parts])
        chunks |= {(name, part.offsets): part for part in parts}
        boxes = [ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.shape)) for part in parts]
        entries[name] = TensorStorageMetadata(TensorProperties(DTYPES[entry["dtype"]]), torch.Size(shape), boxes)
    values = dict(index["values"])
    return Metadata(entries | {name: BytesStorageMetadata() for name in values}), chunks, values


def _sizes(numbers: Any) -> tuple[int, ...]:
    if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
        raise ValueError(f"{numbers!r} is not a shape")
    return tuple(numbers)


def _file(name: Any) -> str:
    if not isinstance(name, str) or not FILE.fullmatch(name):
        raise ValueError(f"{name!r} is not a file of shards")
    return name


def check_chunks(name: str, shape: Sequence[int], chunks: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
    """ValueError unless the chunks are inside the tensor and have its size together."""
    for offsets, sizes in chunks:
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise ValueError(f"a chunk of {name} has another number of dimensions")
        if any(a < 0 or n < 0 or a + n > whole for a, n, whole in zip(offsets, sizes, shape, strict=True)):
            raise ValueError(f"a chunk of {name} is outside of the tensor")
    if sum(math.prod(sizes) for _, sizes in chunks) != math.prod(shape):
        raise ValueError(f"the chunks of {name} are not the whole tensor")


def _check_files(folder: Path, metadata: Metadata, chunks: Chunks) -> None:
    """ValueError where files are missing, no regular files, or too small for what the index says."""
    needed: dict[str, int] = {}
    for (name, _), chunk in chunks.items():
        entry = metadata.state_dict_metadata[name]
        assert isinstance(entry, TensorStorageMetadata)
        size = math.prod(chunk.shape) * entry.properties.dtype.itemsize
        needed[chunk.file] = needed.get(chunk.file, 0) + size
    check_sizes(folder, needed)


def check_sizes(folder: Path, needed: dict[str, int]) -> None:
    """ValueError unless each file is a regular one with at least these bytes."""
    for file, size in needed.items():
        try:
            status = os.lstat(folder / file)
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{file} is not a regular file")
        if status.st_size < size:
            raise ValueError(f"{file} has {status.st_size:,} bytes, and the index describes {size:,}")
