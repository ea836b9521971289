"""Checkpoints of other systems: which system wrote them, where their Hugging Face weights are, or how to get some.

verl        global_step_N/{actor,critic}/huggingface, beside model_world_size_W_rank_R.pt (FSDP) or dist_ckpt (Megatron)
OpenRLHF    global_stepN_hf (Hugging Face), _actor/global_stepN/mp_rank_* (DeepSpeed)

verl's FSDP files hold one rank's part of every weight each; `join_verl_shards` puts them together.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from burnish.errors import UserError
from burnish.folders import is_inside
from burnish.training.checkpoint import MANIFEST, TRAINER
from burnish.training.state import HUB, HUB_WEIGHTS
from burnish.untrusted import read_text

NEW = "NEW_FOLDER"
VERL_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


@dataclass(frozen=True)
class ExternalCheckpoint:
    """Folders with Hugging Face weights; `critic` is None where there is none."""

    system: str
    actor: Path
    critic: Path | None = None


def find_external_checkpoint(folder: Path, *, key: str) -> ExternalCheckpoint | None:
    """What another system wrote there, or None. UserError where it must be converted first."""
    if not folder.is_dir() or (folder / MANIFEST).is_file() or (folder / TRAINER).is_file():
        return None
    for actor in (folder / "actor", folder):
        if has_hub_weights(actor / HUB) or has_hub_weights(actor):
            critic = folder / "critic"
            has_critic = actor != folder and (has_hub_weights(critic / HUB) or has_hub_weights(critic))
            system = "verl" if actor != folder or (actor / HUB).is_dir() else "Hugging Face"
            return ExternalCheckpoint(system, actor, critic if has_critic else None)
    for problem, hint in _conversions(folder):
        raise UserError(problem, key=key, value=str(folder), hint=hint)
    return None


def has_hub_weights(folder: Path) -> bool:
    """Whether `from_pretrained` can load a full model from the folder."""
    return (folder / "config.json").is_file() and any(any(folder.glob(pattern)) for pattern in HUB_WEIGHTS)


def _conversions(folder: Path) -> Iterator[tuple[str, str]]:
    """What the folder is, and the command that converts it to Hugging Face weights."""
    actor = folder / "actor" if (folder / "actor").is_dir() else folder
    then = f"then trainer.resume_from_path={NEW}"
    if any(VERL_SHARD.fullmatch(path.name) for path in actor.iterdir()):
        yield "a verl checkpoint without Hugging Face weights", f"burnish export {folder} {NEW}, {then}"
    if (actor / "dist_ckpt").is_dir():
        merge = f"python -m verl.model_merger merge --backend megatron --local_dir {actor} --target_dir {NEW}"
        yield "a verl checkpoint of Megatron", f"{merge}, {then}"
    if (state := _deepspeed(folder)) is not None:
        hub = state.parent.parent / f"{state.name}_hf"
        if has_hub_weights(hub):
            yield f"a DeepSpeed checkpoint of OpenRLHF; its weights are in {hub}", f"trainer.resume_from_path={hub}"
        script = f"python {state.parent}/zero_to_fp32.py {state.parent} {NEW} --tag {state.name} --safe_serialization"
        rest = "the model's config.json and tokenizer beside them"
        yield "a DeepSpeed checkpoint of OpenRLHF without Hugging Face weights", f"{script}, {rest}, {then}"
    if any(folder.glob("mp_rank_*/model_optim_rng.pt")):
        yield "a checkpoint of Megatron", f"the converter of the system that wrote it, to Hugging Face, {then}"


def _deepspeed(folder: Path) -> Path | None:
    """The folder with DeepSpeed's states: this one, or the newest in it, or in OpenRLHF's _actor."""
    if any(folder.glob("*mp_rank_*_states.pt")):
        return folder
    if (folder / "latest").is_file():
        name = read_text(folder / "latest", limit=1000).strip()
        return _deepspeed(folder / name) if is_inside(name) and (folder / name).is_dir() else None
    return _deepspeed(folder / "_actor") if (folder / "_actor").is_dir() else None


def verl_shard_files(folder: Path) -> list[Path]:
    """The files of all ranks in rank order; [] where the folder has none."""
    matches = {path: VERL_SHARD.fullmatch(path.name) for path in folder.glob("model_world_size_*_rank_*.pt")}
    by_rank = {int(match.group(2)): path for path, match in matches.items() if match}
    if not by_rank:
        return []
    sizes = {int(match.group(1)) for match in matches.values() if match}
    if len(sizes) > 1 or set(by_rank) != set(range(max(sizes))):
        missing = sorted(set(range(max(sizes))) - set(by_rank))
        mixed = f"files of runs with {sorted(sizes)} ranks are mixed"
        problem = f"the files of ranks {missing} are missing" if missing else mixed
        raise UserError(problem, key="CHECKPOINT", value=str(folder))
    return [by_rank[rank] for rank in sorted(by_rank)]


def join_verl_shards(files: list[Path], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Full weights. `shapes` are those of the model's config."""
    parts = [_load_shard(file) for file in files]
    names = list(parts[0])
    if any(".lora_" in name for name in names):
        raise UserError(
            "these shards hold LoRA adapters; verl writes them in peft's format to a folder `lora_adapter` too",
            key="CHECKPOINT",
            value=str(files[0].parent),
        )
    return {
        name: _join_parts(name, [part[name] for part in parts], shapes.get(name), files[0].parent) for name in names
    }


def _load_shard(file: Path) -> dict[str, Any]:
    """`weights_only`: nothing in the file can run code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling may raise anything
        text = str(error).strip().splitlines()
        raise UserError(
            f"cannot be read as plain tensors ({text[0] if text else type(error).__name__});"
            " shards of FSDP1's ShardedTensor need verl's own merger",
            key="CHECKPOINT",
            value=str(file),
        ) from error


def _join_parts(name: str, parts: list[Any], shape: torch.Size | None, folder: Path) -> Tensor:
    if isinstance(parts[0], DTensor):
        full = _join_dtensors(name, parts, folder)
        shape = full.shape if shape is None else shape
    elif shape is not None and parts[0].shape == shape and all(part.shape == shape for part in parts):
        full = parts[0]  # replicated
    else:
        full = torch.cat(parts)
    if shape is not None and full.shape != shape:
        problem = f"the shards of {name} join to {list(full.shape)}, the config asks for {list(shape)}"
        raise UserError(problem, key="CHECKPOINT", value=str(folder))
    return full


def _join_dtensors(name: str, parts: list[DTensor], folder: Path) -> Tensor:
    """Along the one dimension that is sharded; of replicas the first is taken."""
    first = parts[0]
    split = [placement for placement in first.placements if not isinstance(placement, Replicate)]
    shards = [placement for placement in split if isinstance(placement, Shard)]
    if len(split) > 1 or len(shards) < len(split):
        problem = f"{name} has placements {list(first.placements)}; only one sharded dimension is supported"
        raise UserError(problem, key="CHECKPOINT", value=str(folder))
    if not shards:
        return first.to_local()
    axis = first.placements.index(shards[0])
    chosen = [part for rank, part in enumerate(parts) if _is_first_replica(part, rank, axis)]
    full = torch.cat([part.to_local() for part in chosen], dim=shards[0].dim)
    if full.shape != first.shape:
        problem = f"the shards of {name} join to {list(full.shape)} instead of {list(first.shape)}"
        raise UserError(problem, key="CHECKPOINT", value=str(folder))
    return full


def _is_first_replica(part: DTensor, rank: int, axis: int) -> bool:
    """Whether this rank is the first along every mesh dimension but the sharded one."""
    coordinates = (part.device_mesh.mesh == rank).nonzero().flatten().tolist()
    return all(number == 0 for dimension, number in enumerate(coordinates) if dimension != axis)
