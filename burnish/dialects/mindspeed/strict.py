"""Strictness: sections, keys and types that MindSpeed RL stops at are refused, with what was probably meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from burnish.dialects.mindspeed.observe import parts
from burnish.dialects.mindspeed.reading import plain_key
from burnish.dialects.mindspeed.sections import MISNAMED, RESOURCES, SAMPLING, SECTIONS
from burnish.dialects.report import INERT, REFUSED, Item, Translation
from burnish.errors import nearest

_BESIDE = {"model": "the file of a vision model", "hydra": "settings of Hydra itself, which has no part in a run"}
_ROLES = ("profiler_config", "msprobe_config")
# Keys whose default is null but that hold a number; and one whose value may be anything, for it changes nothing.
_NUMBERS = frozenset(
    {
        *("global_batch_size", "seq_length", "train_iters", "save_interval", "micro_batch_size", "lr"),
        *("lr_warmup_fraction", "recompute_num_layers", "actor_forward_micro_batch_size"),
        "ref_forward_micro_batch_size",
    }
)
_ANYTHING = frozenset({"max_packing_token_size"})
_MAPPINGS = frozenset({*RESOURCES, "sampling_config"})


def keep_known(config: Mapping[str, Any], translation: Translation) -> dict[str, dict[str, Any]]:
    """The sections with the keys that exist; the others become refused items."""
    kept: dict[str, dict[str, Any]] = {}
    for name, values in config.items():
        if name in SECTIONS and (isinstance(values, Mapping) or values is None):
            known = _known_keys(name, values or {}, translation)
            kept[name] = known
        elif name in _BESIDE:
            translation.put(Item(name, values, INERT, why=_BESIDE[name]))
        else:
            translation.put(Item(name, values, REFUSED, why=_unknown(name, SECTIONS, "section")))
    return kept


def known_model(name: str, entry: Mapping[str, Any], translation: Translation) -> dict[str, Any]:
    """The same for an entry of the model library."""
    known = SECTIONS["megatron_training"]
    return {key: value for key, value in entry.items() if not _refused(f"model.{name}", key, value, known, translation)}


def _known_keys(section: str, values: Mapping[str, Any], translation: Translation) -> dict[str, Any]:
    known = SECTIONS[section]
    if section in _ROLES:
        for name, part in parts(values, section, known):
            for key, value in part.items():
                _refused(name, key, value, known, translation)
        return dict(values)
    kept = {
        key: value
        for key, value in values.items()
        if plain_key(key) == "model" or not _refused(section, key, value, known, translation)
    }
    sampling = kept.get("sampling_config")
    if section == "generate_config" and isinstance(sampling, Mapping):
        where = f"{section}.sampling_config"
        kept["sampling_config"] = {
            key: value for key, value in sampling.items() if not _refused(where, key, value, SAMPLING, translation)
        }
    return kept


def _refused(section: str, key: str, value: Any, known: Mapping[str, Any], translation: Translation) -> bool:
    problem = next(_problems(plain_key(key), value, known), None)
    if problem is not None:
        translation.put(Item(f"{section}.{key}", value, REFUSED, why=problem))
    return problem is not None


def _problems(key: str, value: Any, known: Mapping[str, Any]) -> Iterator[str]:
    if key not in known:
        yield _unknown(key, known, "key")
        return
    default = known[key]
    if key in _ANYTHING or (value is None and (default is None or key == "seed")):
        return
    if isinstance(default, bool) and not isinstance(value, bool):
        yield "must be true or false"
    number = not isinstance(default, bool) and isinstance(default, int | float)
    if (number or key in _NUMBERS) and (isinstance(value, bool) or not isinstance(value, int | float)):
        yield "must be a number"
    if key in _MAPPINGS and not isinstance(value, Mapping):
        yield "must have keys of its own" + (", as num_npus: 8" if key in RESOURCES else "")
    if isinstance(default, list) and not isinstance(value, list):
        yield "must be a list"


def _unknown(name: str, known: Mapping[str, Any], noun: str) -> str:
    meant = MISNAMED.get(name) or nearest(plain_key(name), known)
    return f"no such {noun} in MindSpeed RL, which stops at it." + (f" Did you mean {meant}?" if meant else "")
