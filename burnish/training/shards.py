"""verl's FSDP checkpoints: one file per rank, each with its part of every weight, put together again."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from burnish.errors import UserError

FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def shard_files(folder: Path) -> list[Path]:
    """The files of all ranks in order; [] where this is no such checkpoint."""
    found = {path: FILE.fullmatch(path.name) for path in folder.glob("model_world_size_*_rank_*.pt")}
    by_rank = {int(match.group(2)): path for path, match in found.items() if match}
    if not by_rank:
        return []
    sizes = {int(match.group(1)) for match in found.values() if match}
    if len(sizes) > 1 or set(by_rank) != set(range(max(sizes))):
        missing = sorted(set(range(max(sizes))) - set(by_rank))
        mixed = f"files of runs with {sorted(sizes)} ranks are mixed"
        problem = f"the files of ranks {missing} are missing" if missing else mixed
        raise UserError(problem, key="CHECKPOINT", value=str(folder))
    return [by_rank[rank] for rank in sorted(by_rank)]


def join_shards(files: list[Path], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Whole weights. `shapes` are those that the model's config asks for."""
    parts = [_read(file) for file in files]
    names = list(parts[0])
    if any(".lora_" in name for name in names):
        raise UserError(
            "these shards hold LoRA adapters; verl writes them in peft's format to a folder `lora_adapter` too",
            key="CHECKPOINT",
            value=str(files[0].parent),
        )
    return {name: _join(name, [part[name] for part in parts], shapes.get(name), files[0].parent) for name in names}


def _read(file: Path) -> dict[str, Any]:
    """Only tensors are unpickled: nothing in the file can run code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling fails in as many ways as there are pickles
        text = str(error).strip().splitlines()
        raise UserError(
            f"cannot be read as plain tensors ({text[0] if text else type(error).__name__});"
            " shards of FSDP1's ShardedTensor need verl's own merger",
            key="CHECKPOINT",
            value=str(file),
        ) from error


def _join(name: str, parts: list[Any], shape: torch.Size | None, folder: Path) -> Tensor:
    if isinstance(parts[0], DTensor):
        whole = _join_placed(name, parts, folder)
        shape = whole.shape if shape is None else shape
    elif shape is not None and parts[0].shape == shape and all(part.shape == shape for part in parts):
        whole = parts[0]  # every rank has all of it
    else:
        whole = torch.cat(parts)
    if shape is not None and whole.shape != shape:
        problem = f"{name} comes together as {list(whole.shape)}, the config asks for {list(shape)}"
        raise UserError(problem, key="CHECKPOINT", value=str(folder))
    return whole


def _join_placed(name: str, parts: list[DTensor], folder: Path) -> Tensor:
    """DTensors say how they were cut; of copies the first is taken."""
    first = parts[0]
    cuts = [placement for placement in first.placements if not isinstance(placement, Replicate)]
    if len(cuts) > 1 or any(not isinstance(cut, Shard) for cut in cuts):
        problem = f"{name} is placed as {list(first.placements)}; only one cut along one dimension can be undone"
        raise UserError(problem, key="CHECKPOINT", value=str(folder))
    if not cuts:
        return first.to_local()
    axis = first.placements.index(cuts[0])
    chosen = [part for rank, part in enumerate(parts) if _is_first_copy(part, rank, axis)]
    whole = torch.cat([part.to_local() for part in chosen], dim=cuts[0].dim)
    if whole.shape != first.shape:
        problem = f"{name} comes together as {list(whole.shape)}, not as {list(first.shape)}"
        raise UserError(problem, key="CHECKPOINT", value=str(folder))
    return whole


def _is_first_copy(part: DTensor, rank: int, axis: int) -> bool:
    """Is this rank the first along every dimension of the mesh but the one that cuts?"""
    parallel = (part.device_mesh.mesh == rank).nonzero().flatten().tolist()
    return all(number == 0 for dimension, number in enumerate(parallel) if dimension != axis)
