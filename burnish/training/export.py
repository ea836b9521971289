"""Convert a checkpoint to a Hugging Face model folder: `burnish export`, and model paths that name a run."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from burnish.config.adapters import AdapterSettings
from burnish.errors import UserError
from burnish.folders import file_lock
from burnish.models.device import DTYPES
from burnish.models.fourbit import four_bits
from burnish.models.load import (
    ModelSource,
    check_model_files,
    load_causal_lm,
    load_error,
    load_value_model,
    model_class,
    quiet_transformers,
)
from burnish.models.lora import BASE_INFO, adapter_dtype, add_adapters
from burnish.models.plain import build_model
from burnish.storage import (
    FINAL_MODEL,
    cache_folder,
    content_hash,
    has_weights,
    is_remote,
    local_path,
    model_folder,
    short_hash,
)
from burnish.training.checkpoint import MANIFEST, PREFIX, Checkpoints, damage
from burnish.training.external_checkpoints import join_verl_shards, verl_shard_files
from burnish.training.state import ADAPTER, HUB, has_adapter, read_average, read_shards, read_weights, swapped_weights
from burnish.untrusted import read_json_object

logger = logging.getLogger(__name__)

WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "config.json")
VALUE_HEAD = "score"


@dataclass(frozen=True)
class ExportOptions:
    """What to export from a checkpoint, and in which format."""

    critic: bool = False
    best: bool = False  # the checkpoint of a run folder with the best validation
    adapter: bool = False  # only the adapter, in PEFT format
    average: bool = False  # the moving average (EMA) of the weights
    dtype: str | None = None  # None: as stored
    base: str | None = None  # the base model of an adapter, if it has moved
    trust_remote_code: bool = False


def export(checkpoint: Path, out: Path, options: ExportOptions = ExportOptions()) -> Path:
    """Write the folder; returns the folder that was exported. OUT is created atomically."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError("the folder exists and is not empty", key="OUT", value=str(out))
    source = best_checkpoint(checkpoint) if options.best else checkpoint
    final = _final_model(source) if options == ExportOptions() else None
    folder = final or role_folder(source, "critic" if options.critic else "actor")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if final is not None:
            _refuse_links(final)
            shutil.copytree(final, partial)
        elif options.adapter:
            _copy_adapter(folder, partial)
        else:
            with quiet_transformers():
                _load_model(folder, options).save_pretrained(partial)
            _copy_tokenizer(folder / HUB, partial)
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def loadable_path(path: str, key: str) -> str:
    """The path of a model's weights: itself, or of a run folder or checkpoint its Hugging Face folder.

    A checkpoint that keeps its weights in shards only is exported once, to the cache folder.
    """
    if is_remote(path):
        return path
    folder = Path(local_path(path, key=key)).expanduser()
    model = model_folder(folder)
    if model is None:
        return path
    if has_weights(model):
        return str(model)
    try:
        role = role_folder(folder, "actor")
        manifest = role.parent / MANIFEST
        identity = short_hash(f"{role.resolve()}{manifest.read_text() if manifest.is_file() else content_hash(role)}")
        out = cache_folder() / "models" / identity
        with file_lock(out.with_suffix(".lock")):
            if not out.is_dir():
                logger.info("exporting %s to %s", role, out)
                export(role, out)
    except UserError as error:
        raise UserError(f"cannot load its weights: {error.problem}", key=key, value=path, hint=error.hint) from error
    return str(out)


def best_checkpoint(run: Path) -> Path:
    """The best checkpoint of a run folder, by trainer.best_metric_key."""
    checkpoints = Checkpoints(run.expanduser())
    best = checkpoints.best()
    if best is None:
        problem = f"{run} has no best checkpoint; a run keeps one only if trainer.best_metric_key is set"
        raise UserError(problem, key="--best", hint="omit --best to export the newest checkpoint")
    return checkpoints.path(best)


def _final_model(run: Path) -> Path | None:
    """The model of a finished run that has no checkpoint to convert (trainer.save_freq=-1)."""
    model = run.expanduser() / FINAL_MODEL
    has_model = (model / "config.json").is_file() and has_weights(model)
    return model if has_model and not Checkpoints(run.expanduser()).steps() else None


def role_folder(checkpoint: Path, role: str) -> Path:
    """The role's folder in a run (newest complete checkpoint) or a checkpoint; or `checkpoint` itself if it is one."""
    folder = checkpoint.expanduser()
    if not folder.is_dir():
        raise UserError("no such folder", key="CHECKPOINT", value=str(checkpoint))
    if (folder / HUB).is_dir():
        return folder
    if not folder.name.startswith(PREFIX) and Checkpoints(folder).steps():
        newest, damaged = Checkpoints(folder).latest_good()
        if newest is None and not damaged:
            raise UserError("the folder contains no checkpoint", key="CHECKPOINT", value=str(checkpoint))
        # verl writes no manifest: use the newest checkpoint unverified.
        folder = newest or Checkpoints(folder).path(Checkpoints(folder).own_steps()[-1])
    elif (folder / "manifest.json").is_file() and (problem := damage(folder)):
        raise UserError(f"the checkpoint is damaged: {problem}", key="CHECKPOINT", value=str(folder))
    if not (folder / role / HUB).is_dir():
        roles = sorted(path.parent.name for path in folder.glob(f"*/{HUB}"))
        problem = f"the checkpoint has no {role}" if roles else f"not a checkpoint: {role}/{HUB}/config.json not found"
        raise UserError(problem, key="CHECKPOINT", value=str(folder), allowed=roles or None)
    return folder / role


def _load_model(folder: Path, options: ExportOptions) -> PreTrainedModel:
    config = _config(folder, options)
    if has_adapter(folder):
        weights = _merge_adapter(folder, options)
    else:
        weights = _read_weights(folder, config, options)
    if options.dtype is not None:
        weights = _cast(weights, options.dtype)
    generation = folder / HUB / "generation_config.json"
    return build_model(
        config,
        weights,
        values=options.critic,
        generation=generation if generation.is_file() else None,
        trust_remote_code=options.trust_remote_code,
    )


def _config(folder: Path, options: ExportOptions) -> PretrainedConfig:
    check_model_files(folder / HUB, "CHECKPOINT")
    try:
        config = AutoConfig.from_pretrained(folder / HUB, trust_remote_code=options.trust_remote_code)
    except Exception as error:  # an odd config makes transformers raise anything
        raise load_error("the config of the checkpoint", error, key="CHECKPOINT", value=str(folder)) from error
    if options.critic:
        config.num_labels = 1
    return config


def _read_weights(folder: Path, config: PretrainedConfig, options: ExportOptions) -> dict[str, Tensor]:
    files = verl_shard_files(folder)
    if files:
        if options.average:
            raise UserError("verl checkpoints have no moving average", key="--ema")
        empty = build_model(config, None, values=options.critic, trust_remote_code=options.trust_remote_code)
        return join_verl_shards(files, {name: tensor.shape for name, tensor in empty.state_dict().items()})
    if not options.average and not read_shards(folder) and any((folder / HUB).glob("*.safetensors")):
        family = model_class(config, values=options.critic, key="CHECKPOINT")
        kwargs = {"config": config, "dtype": "auto", "trust_remote_code": options.trust_remote_code}
        return family.from_pretrained(folder / HUB, **kwargs).state_dict()
    return read_weights(folder, options.average)


def _merge_adapter(folder: Path, options: ExportOptions) -> dict[str, Tensor]:
    """Merge the adapter into the base model, exactly as the run did for its engine."""
    adapter = folder / ADAPTER
    facts = read_json_object(adapter / BASE_INFO) if (adapter / BASE_INFO).is_file() else {}
    path = options.base or read_json_object(adapter / "adapter_config.json").get("base_model_name_or_path")
    if not isinstance(path, str) or not path:
        raise UserError("the base model of the adapter is not known", key="--base", hint="--base /path/to/model")
    source = ModelSource(path, key="--base", trust_remote_code=options.trust_remote_code)
    if (dtype_name := facts.get("dtype", "float32")) not in DTYPES:
        raise UserError("unknown dtype of the adapter's base model", key=BASE_INFO, value=dtype_name, allowed=DTYPES)
    dtype = DTYPES[dtype_name]
    kwargs = {}
    if facts.get("load_in_4bit"):
        kwargs = {"quantization_config": four_bits(dtype, ("lm_head", VALUE_HEAD), "model"), "device_map": {"": "cpu"}}
    if options.critic:
        model = load_value_model(source, dtype, None, **kwargs)
    else:
        model = load_causal_lm(source, None, dtype, **kwargs)
    settings = AdapterSettings(
        "--base", 0, 0, 0.0, None, None, str(adapter), dora=False, dtype=None, init_a=None, init_b=None
    )
    heads = (VALUE_HEAD,) if options.critic else ()
    adapters = add_adapters(model, settings, dtype=adapter_dtype(model, None), heads=heads)
    with swapped_weights(model, read_average(folder) if options.average else {}):
        return {name: tensor.to(dtype) for name, tensor in adapters.merged(torch.device("cpu"))}


def _cast(weights: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    if dtype not in DTYPES:
        raise UserError("unknown dtype", key="--dtype", value=dtype, allowed=DTYPES)
    cast: dict[int, Tensor] = {}  # by id, so that tied weights stay tied
    for tensor in weights.values():
        if id(tensor) not in cast:
            cast[id(tensor)] = tensor.to(DTYPES[dtype]) if tensor.is_floating_point() else tensor
    return {name: cast[id(tensor)] for name, tensor in weights.items()}


def _copy_adapter(folder: Path, out: Path) -> None:
    if not has_adapter(folder):
        raise UserError("the checkpoint has full weights, no adapter", key="--adapter", hint="omit --adapter")
    _refuse_links(folder / ADAPTER)
    shutil.copytree(folder / ADAPTER, out)


def _refuse_links(folder: Path) -> None:
    """A link could copy a private file into a folder that the user gives to others."""
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise UserError(f"{path} is a link; a checkpoint has none", key="CHECKPOINT", value=str(folder))


def _copy_tokenizer(hub: Path, out: Path) -> None:
    """Copy the files other than weights, such as tokenizer and chat template."""
    _refuse_links(hub)
    for path in sorted(hub.iterdir()):
        if (
            path.is_file()
            and not any(path.match(pattern) for pattern in WEIGHT_FILES)
            and not (out / path.name).exists()
        ):
            shutil.copy2(path, out / path.name)
