"""Validation: refuses the sections, keys and types at which MindSpeed RL itself raises an error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from burnish.dialects.mindspeed.profiling import role_sections
from burnish.dialects.mindspeed.schema import MISNAMED, RESOURCES, SAMPLING, SECTIONS
from burnish.dialects.mindspeed.translator import plain_key
from burnish.dialects.report import INERT, REFUSED, Item, Translation
from burnish.errors import nearest

_INERT_SECTIONS = {"model": "the config file of a vision model", "hydra": "settings of Hydra, not of the run"}
_SPLIT_BY_ROLE = ("profiler_config", "msprobe_config")
# Keys whose default is null and that take a number.
_NUMBERS = frozenset(
    {
        *("global_batch_size", "seq_length", "train_iters", "save_interval", "micro_batch_size", "lr"),
        *("lr_warmup_fraction", "recompute_num_layers", "actor_forward_micro_batch_size"),
        "ref_forward_micro_batch_size",
    }
)
_UNCHECKED = frozenset({"max_packing_token_size"})  # without effect, so that any value is accepted
_MAPPINGS = frozenset({*RESOURCES, "sampling_config"})
# Keys whose default is null or text and that may be lists or mappings.
_STRUCTURED = frozenset(
    {
        *("integrated_mode_config", "spec", "moe_layer_freq", "noop_layers", "num_layer_list", "lora_target_modules"),
        "profile_ranks",
    }
)
_FRACTIONS = frozenset({"lr", "lr_warmup_fraction", "num_cpus_for_local_task", "lora_alpha"})


def drop_invalid(config: Mapping[str, Any], translation: Translation) -> dict[str, dict[str, Any]]:
    """The valid keys of all known sections. Everything else becomes an item, mostly refused."""
    valid: dict[str, dict[str, Any]] = {}
    for name, values in config.items():
        if name in SECTIONS and (isinstance(values, Mapping) or values is None):
            valid[name] = _valid_keys(name, values or {}, translation)
        elif name in SECTIONS:
            translation.add(Item(name, values, REFUSED, why="a section, so it must be a mapping of keys to values"))
        elif name in _INERT_SECTIONS:
            translation.add(Item(name, values, INERT, why=_INERT_SECTIONS[name]))
        else:
            translation.add(Item(name, values, REFUSED, why=_unknown(name, SECTIONS, "section")))
    return valid


def drop_invalid_model_keys(name: str, entry: Mapping[str, Any], translation: Translation) -> dict[str, Any]:
    """The valid keys of a model library entry."""
    schema = SECTIONS["megatron_training"]
    return {key: value for key, value in entry.items() if _is_valid(f"model.{name}", key, value, schema, translation)}


def _valid_keys(section: str, values: Mapping[str, Any], translation: Translation) -> dict[str, Any]:
    schema = SECTIONS[section]
    if section in _SPLIT_BY_ROLE:
        for name, role_values in role_sections(values, section, schema):
            for key, value in role_values.items():
                _is_valid(name, key, value, schema, translation)
        return dict(values)
    schema = schema if "model" in schema else {**schema, "model": None}  # selects an entry of the model library
    valid = {key: _whole(value) for key, value in values.items() if _is_valid(section, key, value, schema, translation)}
    sampling = valid.get("sampling_config")
    if section == "generate_config" and isinstance(sampling, Mapping):
        name = f"{section}.sampling_config"
        valid["sampling_config"] = {
            key: value for key, value in sampling.items() if _is_valid(name, key, value, SAMPLING, translation)
        }
    return valid


def _whole(value: Any) -> Any:
    """64.0 as 64: sizes are whole numbers however they are written."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_valid(section: str, key: str, value: Any, schema: Mapping[str, Any], translation: Translation) -> bool:
    """Check one key; add a refused item if it is invalid."""
    problem = next(_problems(plain_key(key), value, schema), None)
    if problem is not None:
        translation.add(Item(f"{section}.{key}", value, REFUSED, why=problem))
    return problem is None


def _problems(key: str, value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    if key not in schema:
        yield _unknown(key, schema, "key")
        return
    default = schema[key]
    if key in _UNCHECKED or (value is None and (default is None or key == "seed")):
        return
    if isinstance(default, bool) and not isinstance(value, bool):
        yield "must be true or false"
    is_number = not isinstance(default, bool) and isinstance(default, int | float)
    if is_number or key in _NUMBERS:
        yield from _number_problems(key, value, default)
    if isinstance(value, Mapping | list) and not (
        isinstance(default, list | Mapping) or key in _MAPPINGS | _STRUCTURED
    ):
        yield "must be a single value"
    if key in _MAPPINGS and not isinstance(value, Mapping):
        yield "must be a mapping" + (", such as num_npus: 8" if key in RESOURCES else "")
    if isinstance(default, list) and not isinstance(value, list):
        yield "must be a list"


def _number_problems(key: str, value: Any, default: Any) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield "must be a number"
    elif not math.isfinite(value):
        yield "must be a finite number"
    elif value != int(value) and not isinstance(default, float) and key not in _FRACTIONS:
        yield "must be a whole number"


def _unknown(name: str, schema: Mapping[str, Any], noun: str) -> str:
    suggestion = MISNAMED.get(name) or nearest(plain_key(name), schema)
    return f"unknown {noun}; MindSpeed RL rejects it." + (f" Did you mean {suggestion}?" if suggestion else "")
