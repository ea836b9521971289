"""The state of one taught role on disk: DCP shards, counters, and a Hugging Face folder beside them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from transformers import PreTrainedTokenizerBase

from burnish.errors import UserError
from burnish.models.load import quiet_transformers
from burnish.train.backend import Backend
from burnish.train.optim import Optimizer

EXTRA = "extra.json"
HUB = "huggingface"


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
        with _quiet_dcp(), _disk_errors():
            dcp.save(state, checkpoint_id=folder, no_dist=True)
    if "extra" in contents:
        counters = {"steps": optimizer.steps, "updates": optimizer.updates, "skipped": optimizer.skipped}
        (folder / EXTRA).write_text(json.dumps(counters))
    hub = folder / HUB
    if "hf_model" in contents:
        with _disk_errors(), quiet_transformers():
            backend.model.save_pretrained(hub)
    else:
        backend.model.config.save_pretrained(hub)
        if backend.model.can_generate() and backend.model.generation_config is not None:
            backend.model.generation_config.save_pretrained(hub)
    if tokenizer is not None:
        tokenizer.save_pretrained(hub)


def load_role(folder: Path, backend: Backend, optimizer: Optimizer, contents: Collection[str], *, key: str) -> None:
    """Read back what `contents` names into the live objects. `key` is the config key that says what to load."""
    if not folder.is_dir():
        raise UserError("the checkpoint has no such role", key="trainer.resume_from_path", value=str(folder))
    # A Hugging Face folder is another copy of the weights: read only where it is the only one asked for.
    wanted = [part for part in contents if part != "hf_model" or "model" not in contents]
    missing = sorted(set(wanted) - _saved_parts(folder))
    if missing:
        problem = f"the checkpoint {folder} was saved without {', '.join(missing)}"
        raise UserError(problem, key=key, value=list(contents))
    state = _state(backend, optimizer, wanted)
    if state:
        with _quiet_dcp():
            dcp.load(state, checkpoint_id=folder, no_dist=True)
        if "model" in state:
            set_model_state_dict(backend.model, state["model"])
        if "optimizer" in state:
            set_optimizer_state_dict(backend.model, optimizer.adamw, state["optimizer"])
    if "hf_model" in wanted:
        backend.model.load_state_dict(type(backend.model).from_pretrained(folder / HUB).state_dict())
    if "extra" in wanted:
        for name, value in json.loads((folder / EXTRA).read_text()).items():
            setattr(optimizer, name, value)


def _saved_parts(folder: Path) -> set[str]:
    """What save_contents was when this was written."""
    parts = {"extra"} if (folder / EXTRA).is_file() else set()
    if any((folder / HUB).glob("*.safetensors")):
        parts.add("hf_model")
    if (folder / ".metadata").is_file():
        names = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        parts |= {name.partition(".")[0] for name in names}
    return parts


@contextmanager
def _quiet_dcp() -> Iterator[None]:
    """DCP warns that one process is one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _disk_errors() -> Iterator[None]:
    """DCP and safetensors wrap what the disk said in exceptions of their own."""
    try:
        yield
    except CheckpointException as error:
        first, _ = next(iter(error.failures.values()))
        raise OSError(str(first)) from error
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _state(backend: Backend, optimizer: Optimizer, contents: Collection[str]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if "model" in contents:
        state["model"] = get_model_state_dict(backend.model)
    if "optimizer" in contents:
        state["optimizer"] = get_optimizer_state_dict(backend.model, optimizer.adamw)
    return state
