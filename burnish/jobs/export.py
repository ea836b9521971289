"""Export: a checkpoint becomes a Hugging Face folder that transformers loads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from burnish.config.adapters import AdapterSettings
from burnish.errors import UserError
from burnish.models.device import DTYPES
from burnish.models.fourbit import four_bits
from burnish.models.load import ModelSource, first_line, load_causal_lm, load_value_model, quiet_transformers
from burnish.models.lora import BASE_INFO, adapter_dtype, add_adapters
from burnish.models.plain import build_model
from burnish.training.checkpoint import PREFIX, Checkpoints, damage
from burnish.training.external_checkpoints import join_verl_shards, verl_shard_files
from burnish.training.state import ADAPTER, HUB, has_adapter, read_average, read_shards, read_weights, swapped_weights

WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "config.json")
VALUE_HEAD = "score"


@dataclass(frozen=True)
class ExportOptions:
    """What to take from a checkpoint, and how to write it."""

    critic: bool = False
    best: bool = False  # of a run folder, the checkpoint whose validation was best
    adapter: bool = False  # the adapter alone, in peft's format
    average: bool = False  # the moving average instead of the weights
    dtype: str | None = None  # None: as they are stored
    base: str | None = None  # the model under an adapter, where it is not where it was
    trust_remote_code: bool = False


def export(checkpoint: Path, out: Path, options: ExportOptions = ExportOptions()) -> Path:  # noqa: B008
    """Write the folder; what was read is returned. OUT appears whole or not at all."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError("is there already, and not empty", key="OUT", value=str(out))
    chosen = best_checkpoint(checkpoint) if options.best else checkpoint
    folder = role_folder(chosen, "critic" if options.critic else "actor")
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if options.adapter:
            _copy_adapter(folder, partial)
        else:
            with quiet_transformers():
                _plain_model(folder, options).save_pretrained(partial)
            _copy_the_rest(folder / HUB, partial)
        if out.exists():
            out.rmdir()
        partial.rename(out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def best_checkpoint(run: Path) -> Path:
    """The checkpoint of a run folder that trainer.best_metric_key kept."""
    checkpoints = Checkpoints(run.expanduser())
    best = checkpoints.best()
    if best is None:
        problem = f"{run} has no best checkpoint: a run keeps one where trainer.best_metric_key asks for it"
        raise UserError(problem, key="--best", hint="leave --best out for the newest")
    return checkpoints.path(best)


def role_folder(checkpoint: Path, role: str) -> Path:
    """The role's folder of a run (its newest whole checkpoint), of a checkpoint, or the folder itself."""
    where = checkpoint.expanduser()
    if not where.is_dir():
        raise UserError("no such folder", key="CHECKPOINT", value=str(checkpoint))
    if (where / HUB).is_dir():
        return where
    if not where.name.startswith(PREFIX) and Checkpoints(where).steps():
        newest, damaged = Checkpoints(where).latest_good()
        if newest is None and not damaged:
            raise UserError("holds no checkpoint", key="CHECKPOINT", value=str(checkpoint))
        # verl writes no manifest: then the newest folder is taken as it is.
        where = newest or Checkpoints(where).path(Checkpoints(where).own_steps()[-1])
    elif (where / "manifest.json").is_file() and (problem := damage(where)):
        raise UserError(f"the checkpoint is damaged: {problem}", key="CHECKPOINT", value=str(where))
    if not (where / role / HUB).is_dir():
        held = sorted(path.parent.name for path in where.glob(f"*/{HUB}"))
        problem = f"holds no {role}" if held else f"is no checkpoint: a role's folder holds {HUB}/config.json"
        raise UserError(problem, key="CHECKPOINT", value=str(where), allowed=held or None)
    return where / role


def _plain_model(folder: Path, options: ExportOptions) -> PreTrainedModel:
    config = _config(folder, options)
    if has_adapter(folder):
        weights = _merged(folder, options)
    else:
        weights = _read(folder, config, options)
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
    try:
        config = AutoConfig.from_pretrained(folder / HUB, trust_remote_code=options.trust_remote_code)
    except (OSError, ValueError) as error:
        problem = f"its config cannot be read: {first_line(error)}"
        raise UserError(problem, key="CHECKPOINT", value=str(folder)) from error
    if options.critic:
        config.num_labels = 1
    return config


def _read(folder: Path, config: PretrainedConfig, options: ExportOptions) -> dict[str, Tensor]:
    files = verl_shard_files(folder)
    if files:
        if options.average:
            raise UserError("verl's checkpoints hold no moving average", key="--ema")
        empty = build_model(config, None, values=options.critic, trust_remote_code=options.trust_remote_code)
        return join_verl_shards(files, {name: tensor.shape for name, tensor in empty.state_dict().items()})
    if not options.average and not read_shards(folder) and any((folder / HUB).glob("*.safetensors")):
        family = AutoModelForTokenClassification if options.critic else AutoModelForCausalLM
        how = {"config": config, "dtype": "auto", "trust_remote_code": options.trust_remote_code}
        return family.from_pretrained(folder / HUB, **how).state_dict()
    return read_weights(folder, options.average)


def _merged(folder: Path, options: ExportOptions) -> dict[str, Tensor]:
    """Base and adapter as one, exactly as the run sent them to its engine."""
    where = folder / ADAPTER
    facts = json.loads((where / BASE_INFO).read_text()) if (where / BASE_INFO).is_file() else {}
    path = options.base or json.loads((where / "adapter_config.json").read_text()).get("base_model_name_or_path")
    if not path:
        raise UserError("which model is under the adapter?", key="--base", hint="--base /path/to/model")
    source = ModelSource(path, key="--base", trust_remote_code=options.trust_remote_code)
    kept = DTYPES[facts.get("dtype", "float32")]
    how = {}
    if facts.get("load_in_4bit"):
        how = {"quantization_config": four_bits(kept, ("lm_head", VALUE_HEAD), "model"), "device_map": {"": "cpu"}}
    if options.critic:
        model = load_value_model(source, kept, None, **how)
    else:
        model = load_causal_lm(source, None, kept, **how)
    settings = AdapterSettings(
        "--base", 0, 0, 0.0, None, None, str(where), dora=False, dtype=None, init_a=None, init_b=None
    )
    heads = (VALUE_HEAD,) if options.critic else ()
    adapters = add_adapters(model, settings, dtype=adapter_dtype(model, None), heads=heads)
    with swapped_weights(model, read_average(folder) if options.average else {}):
        return {name: tensor.to(kept) for name, tensor in adapters.merged(torch.device("cpu"))}


def _cast(weights: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    if dtype not in DTYPES:
        raise UserError("no such number format", key="--dtype", value=dtype, allowed=DTYPES)
    cast: dict[int, Tensor] = {}  # tied weights stay one
    for tensor in weights.values():
        if id(tensor) not in cast:
            cast[id(tensor)] = tensor.to(DTYPES[dtype]) if tensor.is_floating_point() else tensor
    return {name: cast[id(tensor)] for name, tensor in weights.items()}


def _copy_adapter(folder: Path, out: Path) -> None:
    if not has_adapter(folder):
        raise UserError("the checkpoint holds whole weights, no adapter", key="--adapter", hint="leave --adapter out")
    shutil.copytree(folder / ADAPTER, out)


def _copy_the_rest(hub: Path, out: Path) -> None:
    """Tokenizer and chat template as they lie there."""
    for path in sorted(hub.iterdir()):
        if (
            path.is_file()
            and not any(path.match(pattern) for pattern in WEIGHT_FILES)
            and not (out / path.name).exists()
        ):
            shutil.copy2(path, out / path.name)
