"""The state of one taught role on disk: DCP shards, counters, and a Hugging Face folder beside them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from burnish.errors import UserError
from burnish.models.load import quiet_transformers
from burnish.models.plain import plain_config, plain_model
from burnish.training.backend import Backend
from burnish.training.dtensor import local_part, whole
from burnish.training.optim import Optimizer

EXTRA = "extra.json"
HUB = "huggingface"
HUB_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
ADAPTER = "adapter"  # peft's files, in place of the weights of a role that trains adapters


def save_role(
    folder: Path,
    backend: Backend,
    optimizer: Optimizer,
    contents: Collection[str],
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Write what `contents` names; the config and tokenizer always, so that the folder explains itself."""
    writer_of(backend, optimizer, contents, tokenizer)(folder)


def writer_of(
    backend: Backend,
    optimizer: Optimizer,
    contents: Collection[str],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    copy: bool = False,
) -> Callable[[Path], None]:
    """What save_role does, to be done later. With `copy` the state is that of now, else that of when it is done.

    Where several ranks share the role all of them write their shards, and the first writes what is whole.
    """
    parallel = backend.parallel
    state: dict[str, Any] = {"shards": _state(backend, optimizer, contents)}
    if "hf_model" in contents:
        state["weights"] = hub_weights(backend, optimizer)
    if "model" in contents and backend.adapters is not None:
        state["adapter"] = {name: whole(tensor) for name, tensor in backend.adapters.state().items()}
    counters = {"steps": optimizer.steps, "updates": optimizer.updates, "skipped": optimizer.skipped}
    if optimizer.scale.on:
        counters["loss_scale"] = optimizer.loss_scale
    if copy:
        state = in_memory(state, {})

    def write(folder: Path) -> None:
        if state["shards"]:
            with quiet_dcp(), _disk_errors():
                dcp.save(state["shards"], checkpoint_id=folder, no_dist=parallel.alone, process_group=parallel.saving)
        if not parallel.first:
            return
        if "adapter" in state:
            with _disk_errors():
                backend.adapters.write(folder / ADAPTER, state["adapter"])
        if "extra" in contents:
            (folder / EXTRA).write_text(json.dumps(counters))
        write_hub(folder / HUB, backend, tokenizer, state.get("weights"))

    return write


def write_hub(
    folder: Path, backend: Backend, tokenizer: PreTrainedTokenizerBase | None, weights: Mapping[str, Tensor] | None
) -> None:
    """A Hugging Face folder; without weights, only what explains them."""
    if weights is not None:
        with _disk_errors(), quiet_transformers():
            plain_model(backend.model, weights).save_pretrained(folder)
    else:
        plain_config(backend.model).save_pretrained(folder)
        if backend.model.can_generate() and backend.model.generation_config is not None:
            backend.model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def hub_weights(backend: Backend, optimizer: Optimizer) -> dict[str, Tensor]:
    """The weights as a plain model has them: averaged where an average is kept, adapters merged."""
    if backend.adapters is None:
        held = (optimizer.average or backend.model).state_dict()
        return {name: whole(tensor) for name, tensor in held.items()}
    kept = backend.model.get_input_embeddings().weight.dtype
    with holding(backend.model, {} if optimizer.average is None else optimizer.average.weights):
        return {name: tensor.to(kept) for name, tensor in backend.weights()}


@contextmanager
def holding(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """The module holds these weights, by the names of its parameters, for as long as this lasts."""
    own = dict(module.named_parameters())
    kept = {name: own[name].data for name in weights}
    for name, tensor in weights.items():
        own[name].data = tensor.to(own[name].device, own[name].dtype)
    try:
        yield
    finally:
        for name, tensor in kept.items():
            own[name].data = tensor


def in_memory(state: Any, copies: dict[tuple, Tensor]) -> Any:
    """A copy of every tensor in CPU memory. Tensors that were one (tied weights) stay one."""
    if isinstance(state, Tensor):
        key = (local_part(state).data_ptr(), state.shape, state.dtype)
        if key not in copies:
            copies[key] = state.detach().to("cpu", copy=True)
        return copies[key]
    if isinstance(state, Mapping):
        return {name: in_memory(entry, copies) for name, entry in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(in_memory(entry, copies) for entry in state)
    return state


def load_role(folder: Path, backend: Backend, optimizer: Optimizer, contents: Collection[str], *, key: str) -> None:
    """Read back what `contents` names into the live objects. `key` is the config key that says what to load."""
    if not folder.is_dir():
        raise UserError("the checkpoint has no such role", key="trainer.resume_from_path", value=str(folder))
    # A Hugging Face folder is another copy of the weights: read only where it is the only one asked for.
    wanted = [part for part in contents if part != "hf_model" or "model" not in contents]
    saved = _saved_parts(folder)
    missing = sorted(set(wanted) - saved)
    if missing:
        problem = f"the checkpoint {folder} was saved without {', '.join(missing)}"
        raise UserError(problem, key=key, value=list(contents))
    _check_adapters(folder, backend, wanted, key)
    state = _state(backend, optimizer, wanted)
    if "average" not in saved:
        state.pop("average", None)
    if state:
        with quiet_dcp():
            dcp.load(state, checkpoint_id=folder, no_dist=backend.parallel.alone, process_group=backend.parallel.saving)
        if "model" in state:
            set_model_state_dict(backend.model, state["model"])
        if "optimizer" in state:
            set_optimizer_state_dict(backend.model, optimizer.adamw, state["optimizer"])
            optimizer.settle()
    if "model" in wanted and backend.adapters is not None:
        backend.adapters.load(folder / ADAPTER, key)
    if "hf_model" in wanted:
        read = _read_hub(hub_folder(folder), type(backend.model), key)
        set_model_state_dict(backend.model, read, options=StateDictOptions(full_state_dict=not backend.parallel.alone))
    if optimizer.average is not None and "average" not in state:
        optimizer.average.restart()
    if "extra" in wanted:
        for name, value in json.loads((folder / EXTRA).read_text()).items():
            setattr(optimizer, name, value)


def hub_folder(folder: Path) -> Path:
    """A role's Hugging Face folder; a folder of another system may be one itself."""
    return folder / HUB if (folder / HUB).is_dir() else folder


def _read_hub(folder: Path, family: type[PreTrainedModel], key: str) -> dict[str, Tensor]:
    """All weights of the model: transformers would make up those that are not there."""
    with quiet_transformers():
        model, found = family.from_pretrained(folder, output_loading_info=True)
    wrong = sorted({*found["missing_keys"], *found["unexpected_keys"], *(str(one) for one in found["mismatched_keys"])})
    if wrong:
        problem = f"its weights are not those of this model ({family.__name__}): {', '.join(wrong[:3])}"
        raise UserError(problem, key=key, value=str(folder))
    return model.state_dict()


def _check_adapters(folder: Path, backend: Backend, wanted: Collection[str], key: str) -> None:
    """Adapters go on from adapters, and whole weights from whole weights."""
    adapted = backend.adapters is not None
    if "model" in wanted and (folder / ADAPTER).is_dir() != adapted:
        problem = f"the checkpoint {folder} holds {'whole weights' if adapted else 'LoRA adapters'}, this run the other"
        raise UserError(problem, key=key, hint="the lora keys of the run that saved it, or trainer.resume_mode=disable")
    if "hf_model" in wanted and adapted:
        hint = "a run without adapters, or actor_rollout_ref.model.path=... of that folder to train adapters over it"
        raise UserError("whole weights cannot be taken apart into a model and its adapters", key=key, hint=hint)


def _saved_parts(folder: Path) -> set[str]:
    """What save_contents was when this was written."""
    parts = {"extra"} if (folder / EXTRA).is_file() else set()
    if (folder / ADAPTER).is_dir():
        parts.add("model")
    if any(any(hub_folder(folder).glob(pattern)) for pattern in HUB_WEIGHTS):
        parts.add("hf_model")
    if (folder / ".metadata").is_file():
        names = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
        parts |= {name.partition(".")[0] for name in names}
    return parts


@contextmanager
def quiet_dcp() -> Iterator[None]:
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
        if backend.adapters is None:
            state["model"] = get_model_state_dict(backend.model)
        if optimizer.average is not None:
            state["average"] = optimizer.average.weights
    if "optimizer" in contents:
        state["optimizer"] = get_optimizer_state_dict(backend.model, optimizer.adamw)
    return state
