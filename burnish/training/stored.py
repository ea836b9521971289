"""Weights read back from a role's folder without the model that wrote them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from burnish.errors import UserError
from burnish.training.state import ADAPTER, quiet_dcp

MODEL, AVERAGE = "model", "average"


def has_adapter(folder: Path) -> bool:
    return (folder / ADAPTER).is_dir()


def stored_weights(folder: Path, part: str = MODEL) -> dict[str, Tensor]:
    """The tensors of one part of the role's shards, by name; {} where the folder has no such part."""
    if not (folder / ".metadata").is_file():
        return {}
    found = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {
        name.removeprefix(f"{part}."): torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in found.items()
        if name.startswith(f"{part}.") and isinstance(entry, TensorStorageMetadata)
    }
    if state:
        with quiet_dcp():
            dcp.load({part: state}, checkpoint_id=folder, no_dist=True)
    return state


def whole_weights(folder: Path, average: bool = False) -> dict[str, Tensor]:
    """A role's weights, or their moving average where that is asked for."""
    weights = stored_weights(folder)
    if not weights:
        raise UserError("the checkpoint was saved without its model", key="CHECKPOINT", value=str(folder))
    if not average:
        return weights
    averages = stored_average(folder)  # a tied weight is there under one name; the model ties it again
    return weights | {name: tensor.to(weights[name].dtype) for name, tensor in averages.items()}


def stored_average(folder: Path) -> dict[str, Tensor]:
    averages = stored_weights(folder, AVERAGE)
    if not averages:
        problem = "the checkpoint holds no moving average (actor_rollout_ref.actor.ema_beta)"
        raise UserError(problem, key="--ema", hint="leave --ema out")
    return averages
