"""The state of one trained role on disk: shards, counters, and a Hugging Face folder beside them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from burnish.errors import UserError
from burnish.models.load import quiet_transformers
from burnish.models.plain import plain_config, plain_model
from burnish.models.vision.family import vision_family
from burnish.models.vision.pictures import copy_processor_files
from burnish.training.backend import Backend
from burnish.training.dtensor import full_tensor, local_part
from burnish.training.legacy_shards import INDEX as LEGACY_INDEX
from burnish.training.legacy_shards import LegacyLoadPlanner, LegacyReader
from burnish.training.optim import Optimizer
from burnish.training.shards import INDEX, ShardLoadPlanner, ShardReader, ShardSavePlanner, ShardWriter
from burnish.untrusted import read_json_object

EXTRA = "extra.json"
HUB = "huggingface"
HUB_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
ADAPTER = "adapter"  # peft's files, in place of the weights of a role that trains adapters
MODEL, AVERAGE = "model", "average"  # parts of the shards
COUNTERS = ("steps", "updates", "skipped")  # of the optimizer, in EXTRA
LOSS_SCALE, SCHEDULE = "loss_scale", "schedule_steps"  # there too


def role_writer(
    backend: Backend,
    contents: Collection[str],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    copy: bool = False,
) -> Callable[[Path], None]:
    """Writes the parts that `contents` names, and always config and tokenizer, so that the folder explains itself. With
    `copy` it writes the state of now, else that of when it is called.

    All ranks write their shards; the main rank also writes what exists once.
    """
    parallel, optimizer, adapters = backend.parallel, _optimizer(backend), backend.adapters
    state: dict[str, Any] = {"shards": backend.state_dict(contents)}
    if "hf_model" in contents:
        state["weights"] = hub_weights(backend)
    if "model" in contents and adapters is not None:
        entries = ((name, full_tensor(tensor)) for name, tensor in adapters.state().items())
        state["adapter"] = dict(backend.all_stages(entries))
    counters: dict[str, Any] = {name: getattr(optimizer, name) for name in (*COUNTERS, SCHEDULE)}
    if optimizer.scale.enabled:
        counters[LOSS_SCALE] = optimizer.loss_scale
    if copy:
        state = copy_to_cpu(state, {})

    def write(folder: Path) -> None:
        if state["shards"]:
            with quiet_dcp(), _as_os_errors():
                dcp.save(
                    state["shards"],
                    storage_writer=ShardWriter(folder),
                    planner=ShardSavePlanner(),
                    no_dist=not parallel.is_distributed,
                    process_group=parallel.checkpoint_group,
                )
        if not parallel.is_main:
            return
        if adapters is not None and "adapter" in state:
            with _as_os_errors():
                adapters.write(folder / ADAPTER, state["adapter"])
        if "extra" in contents:
            (folder / EXTRA).write_text(json.dumps(counters))
        write_hub(folder / HUB, backend, tokenizer, state.get("weights"))

    return write


def write_hub(
    folder: Path, backend: Backend, tokenizer: PreTrainedTokenizerBase | None, weights: Mapping[str, Tensor] | None
) -> None:
    """Write a Hugging Face folder; without weights, only config and tokenizer."""
    if weights is not None:
        with _as_os_errors(), quiet_transformers():
            plain_model(backend.model, weights).save_pretrained(folder)
    else:
        plain_config(backend.model).save_pretrained(folder)
        if backend.model.can_generate() and backend.model.generation_config is not None:
            backend.model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    if vision_family(backend.model.config) is not None:
        copy_processor_files(backend.model.name_or_path, folder)


def hub_weights(backend: Backend) -> dict[str, Tensor]:
    """Full weights under Hugging Face names: the moving average where there is one, adapters merged."""
    average = _optimizer(backend).average
    if backend.adapters is None:
        state = (average or backend.model).state_dict()
        return dict(backend.all_stages((name, full_tensor(tensor)) for name, tensor in state.items()))
    dtype = next(backend.model.parameters()).dtype
    with swapped_weights(backend.model, {} if average is None else average.weights):
        return {name: tensor.to(dtype) for name, tensor in backend.weights()}


@contextmanager
def swapped_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give the module these weights, by parameter name, inside the context."""
    parameters = dict(module.named_parameters())
    saved = {name: parameters[name].data for name in weights}
    for name, tensor in weights.items():
        parameters[name].data = tensor.to(parameters[name].device, parameters[name].dtype)
    try:
        yield
    finally:
        for name, tensor in saved.items():
            parameters[name].data = tensor


def copy_to_cpu(state: Any, copies: dict[tuple, Tensor]) -> Any:
    """Copy every tensor to CPU memory. Tensors that share memory (tied weights) share their copy."""
    if isinstance(state, Tensor):
        key = (local_part(state).data_ptr(), state.shape, state.dtype, type(state))
        if key not in copies:
            copies[key] = state.detach().to("cpu", copy=True)
        return copies[key]
    if isinstance(state, Mapping):
        return {name: copy_to_cpu(entry, copies) for name, entry in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(copy_to_cpu(entry, copies) for entry in state)
    return state


def load_role(folder: Path, backend: Backend, contents: Collection[str], *, key: str) -> None:
    """Load the parts that `contents` names into the live objects. `key` is the config key that names them."""
    if not folder.is_dir():
        raise UserError(
            f"the checkpoint {folder.parent} has no {folder.name}: the run that saved it had none",
            key=key,
            hint="the settings of that run, or trainer.resume_mode=disable to start anew",
        )
    # hf_model is another copy of the weights: loaded only where "model" is not requested too.
    parts = [part for part in contents if part != "hf_model" or "model" not in contents]
    saved = _saved_parts(folder)
    missing = sorted(set(parts) - saved)
    if missing:
        problem = f"the checkpoint {folder} was saved without {', '.join(missing)}"
        raise UserError(problem, key=key, value=list(contents))
    _check_adapters(folder, backend, parts, key)
    optimizer, parallel = _optimizer(backend), backend.parallel
    state = backend.state_dict(parts)
    if AVERAGE not in saved:
        state.pop(AVERAGE, None)
    if state:
        with quiet_dcp(), _as_user_errors(folder, key):
            reader, planner = _shards(folder)
            dcp.load(
                state,
                storage_reader=reader,
                planner=planner,
                no_dist=not parallel.is_distributed,
                process_group=parallel.checkpoint_group,
            )
        backend.load_state_dict(state)
    if "model" in parts and backend.adapters is not None:
        backend.adapters.load(folder / ADAPTER, key)
    if "hf_model" in parts:
        weights: dict[str, Any] = _load_hub(hub_folder(folder), type(backend.model), key)
        options = StateDictOptions(full_state_dict=parallel.is_distributed)
        if parallel.pipeline_size > 1:
            weights = {name: weights[name] for name in backend.model.state_dict()}
        set_model_state_dict(backend.model, weights, options=options)
    if optimizer.average is not None and AVERAGE not in state:
        optimizer.average.reset()
    if "extra" in parts:
        _load_counters(folder / EXTRA, optimizer)


def _load_counters(file: Path, optimizer: Optimizer) -> None:
    for name, value in read_json_object(file).items():
        is_scale = name == LOSS_SCALE and isinstance(value, list) and all(type(n) in (int, float) for n in value)
        if not is_scale and not (name in (*COUNTERS, SCHEDULE) and type(value) is int):
            allowed = (*COUNTERS, SCHEDULE, LOSS_SCALE)
            raise UserError(f"{file}: {name}={value!r} is not a counter of the optimizer", allowed=allowed)
        if name != SCHEDULE or optimizer.config.use_checkpoint_opt_param_scheduler:
            setattr(optimizer, name, value)


def _has_shards(folder: Path) -> bool:
    return (folder / INDEX).is_file() or (folder / LEGACY_INDEX).is_file()


def _shards(folder: Path) -> tuple[ShardReader | LegacyReader, ShardLoadPlanner | LegacyLoadPlanner]:
    """The reader of a folder's shards, and the planner that understands its values."""
    if (folder / INDEX).is_file():
        return ShardReader(folder), ShardLoadPlanner()
    return LegacyReader(folder), LegacyLoadPlanner()


def hub_folder(folder: Path) -> Path:
    """A role's Hugging Face folder; a checkpoint of another system may be one itself."""
    return folder / HUB if (folder / HUB).is_dir() else folder


def _optimizer(backend: Backend) -> Optimizer:
    assert backend.optimizer is not None
    return backend.optimizer


def _load_hub(folder: Path, family: type[PreTrainedModel], key: str) -> dict[str, Any]:
    """All weights of the model; missing ones are an error, because transformers would initialize them at random."""
    with quiet_transformers():
        loaded: Any = family.from_pretrained(folder, output_loading_info=True)
    model, info = loaded
    wrong = sorted({*info["missing_keys"], *info["unexpected_keys"], *(str(one) for one in info["mismatched_keys"])})
    if wrong:
        problem = f"its weights are not those of this model ({family.__name__}): {', '.join(wrong[:3])}"
        raise UserError(problem, key=key, value=str(folder))
    return model.state_dict()


def _check_adapters(folder: Path, backend: Backend, parts: Collection[str], key: str) -> None:
    """Adapters resume from adapters, full weights from full weights."""
    adapted = backend.adapters is not None
    if "model" in parts and (folder / ADAPTER).is_dir() != adapted:
        saved, trained = ("full weights", "LoRA adapters") if adapted else ("LoRA adapters", "full weights")
        problem = f"the checkpoint {folder} holds {saved}, but this run trains {trained}"
        raise UserError(problem, key=key, hint="the lora keys of the run that saved it, or trainer.resume_mode=disable")
    if "hf_model" in parts and adapted:
        hint = "a run without adapters, or actor_rollout_ref.model.path=... of that folder to train adapters over it"
        raise UserError("full weights cannot be split into a base model and adapters", key=key, hint=hint)


def _saved_parts(folder: Path) -> set[str]:
    """The `save_contents` with which the folder was written."""
    parts = {"extra"} if (folder / EXTRA).is_file() else set()
    if has_adapter(folder):
        parts.add("model")
    if any(any(hub_folder(folder).glob(pattern)) for pattern in HUB_WEIGHTS):
        parts.add("hf_model")
    if _has_shards(folder):
        parts |= {name.partition(".")[0] for name in _shards(folder)[0].metadata.state_dict_metadata}
    return parts


# Weights read without the model that wrote them


def has_adapter(folder: Path) -> bool:
    return (folder / ADAPTER).is_dir()


def read_shards(folder: Path, part: str = MODEL) -> dict[str, Tensor]:
    """The tensors of one part of the role's shards, by name; {} where the folder has no such part."""
    if not _has_shards(folder):
        return {}
    reader, planner = _shards(folder)
    state = {
        name.removeprefix(f"{part}."): torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.metadata.state_dict_metadata.items()
        if name.startswith(f"{part}.") and isinstance(entry, TensorStorageMetadata)
    }
    if state:
        with quiet_dcp(), _as_user_errors(folder, "CHECKPOINT"):
            dcp.load({part: state}, storage_reader=reader, planner=planner, no_dist=True)
    return state


def read_weights(folder: Path, average: bool = False) -> dict[str, Tensor]:
    """A role's weights, or with `average` their moving average."""
    weights = read_shards(folder)
    if not weights:
        raise UserError("the checkpoint was saved without its model", key="CHECKPOINT", value=str(folder))
    if not average:
        return weights
    averages = read_average(folder)  # a tied weight has one name here; the model ties it again
    return weights | {name: tensor.to(weights[name].dtype) for name, tensor in averages.items()}


def read_average(folder: Path) -> dict[str, Tensor]:
    averages = read_shards(folder, AVERAGE)
    if not averages:
        problem = "the checkpoint holds no moving average (actor_rollout_ref.actor.ema_beta)"
        raise UserError(problem, key="--ema", hint="leave --ema out")
    return averages


@contextmanager
def quiet_dcp() -> Iterator[None]:
    """DCP warns when it runs in a single process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _as_user_errors(folder: Path, key: str) -> Iterator[None]:
    """What DCP raises where the checkpoint has other tensors than the model or its optimizer."""
    try:
        yield
    except UserError as error:
        raise UserError(error.problem, key=key, value=str(folder)) from error
    except (CheckpointException, SafetensorError, RuntimeError, ValueError, KeyError) as error:
        first = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
        problem = f"the checkpoint {folder} is of another model or optimizer: {str(first).splitlines()[0]}"
        hint = "the settings of the run that saved it, or trainer.resume_mode=disable"
        raise UserError(problem, key=key, hint=hint) from error


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """DCP and safetensors wrap disk errors in exceptions of their own; raise OSError instead."""
    try:
        yield
    except CheckpointException as error:
        first, _ = next(iter(error.failures.values()))
        raise OSError(str(first)) from error
    except SafetensorError as error:
        raise OSError(str(error)) from error
