"""The state of one taught role on disk: DCP shards, counters, and a Hugging Face folder beside them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from transformers import PreTrainedTokenizerBase

from burnish.errors import UserError
from burnish.train.backend import Backend
from burnish.train.optim import Optimizer

EXTRA = "extra.json"


def save_role(
    folder: Path,
    backend: Backend,
    optimizer: Optimizer,
    contents: Collection[str],
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Write what `contents` names; the config and tokenizer always, so that the folder explains itself."""
    state = _state(backend, optimizer, contents)
    if state:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DCP says that one process is one process
            dcp.save(state, checkpoint_id=folder, no_dist=True)
    if "extra" in contents:
        counters = {"steps": optimizer.steps, "updates": optimizer.updates, "skipped": optimizer.skipped}
        (folder / EXTRA).write_text(json.dumps(counters))
    hub = folder / "huggingface"
    if "hf_model" in contents:
        backend.model.save_pretrained(hub)
    else:
        backend.model.config.save_pretrained(hub)
        if backend.model.can_generate() and backend.model.generation_config is not None:
            backend.model.generation_config.save_pretrained(hub)
    if tokenizer is not None:
        tokenizer.save_pretrained(hub)


def load_role(folder: Path, backend: Backend, optimizer: Optimizer, contents: Collection[str]) -> None:
    """Read back what `contents` names into the live objects."""
    if not folder.is_dir():
        raise UserError("the checkpoint has no such role", key="trainer.resume_from_path", value=str(folder))
    state = _state(backend, optimizer, contents)
    if state:
        saved = set(dcp.FileSystemReader(folder).read_metadata().state_dict_metadata)
        missing = [part for part in state if not any(name.startswith(f"{part}.") for name in saved)]
        if missing:
            key = "actor_rollout_ref.actor.checkpoint.load_contents"
            raise UserError(f"the checkpoint {folder} was saved without {missing}", key=key, value=sorted(contents))
        dcp.load(state, checkpoint_id=folder, no_dist=True)
        if "model" in state:
            set_model_state_dict(backend.model, state["model"])
        if "optimizer" in state:
            set_optimizer_state_dict(backend.model, optimizer.adamw, state["optimizer"])
    if "extra" in contents:
        for name, value in json.loads((folder / EXTRA).read_text()).items():
            setattr(optimizer, name, value)


def _state(backend: Backend, optimizer: Optimizer, contents: Collection[str]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if "model" in contents:
        state["model"] = get_model_state_dict(backend.model)
    if "optimizer" in contents:
        state["optimizer"] = get_optimizer_state_dict(backend.model, optimizer.adamw)
    return state
