"""Preprocessing YAMLs (configs/datasets/*.yaml): Burnish reads the raw file with the same handler, without packing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from burnish.config.names import HANDLERS, PROMPT_TYPES
from burnish.config.tree import tree
from burnish.config.values import convert
from burnish.dialects.report import CONVERTED, INERT, KEPT, REFUSED, Item, Translation
from burnish.errors import UserError, nearest

_KEPT = {
    "handler_name": "data.handler.name",
    "map_keys": "data.handler.map_keys",
    "tokenizer_name_or_path": "actor_rollout_ref.model.path",
}
_PACKED = "an option of packing; Burnish reads, templates and tokenizes raw rows during the run"
_INERT = {
    **dict.fromkeys(("output_prefix", "workers", "log_interval", "dataset_impl", "n_subs", "json_keys"), _PACKED),
    **dict.fromkeys(("overwrite_cache", "cache_dir", "streaming", "seed", "tokenizer_type", "vocab_file"), _PACKED),
    **dict.fromkeys(("merge_file", "make_vocab_size_divisible_by", "pad_vocab_size_to", "script_data_dir"), _PACKED),
    **dict.fromkeys(("split_sentences", "keep_newlines", "prompt_type_path", "tokenizer_not_use_fast"), _PACKED),
    **dict.fromkeys(("placeholder_token", "reward_tokens"), "only process reward models use it"),
    "seq_length": "the run's max_prompt_length limits prompts",
}
# Switches that must be off.
_MUST_BE_OFF = {
    **dict.fromkeys(("pack", "neat_pack"), "packing several rows into one is for fine-tuning, not for RL"),
    "append_eod": "an end-of-document token after the prompt is not useful for RL",
    "merge_group_keys": "list the files instead: data.train_files=[a.jsonl,b.jsonl]",
}
_CHOICES = {"handler_name": HANDLERS, "prompt_type": PROMPT_TYPES}
_NON_RL_HANDLERS = ("AlpacaStylePairwiseHandler", "AlpacaStyleProcessRewardHandler")


def is_preprocessing(config: Mapping[str, Any]) -> bool:
    return "handler_name" in config and "input" in config


def translate_preprocessing(config: Mapping[str, Any]) -> Translation:
    """Translate a preprocessing YAML into data keys to add to a run's own."""
    translation = Translation("mindspeed", "train")
    for written, value in config.items():
        key = str(written).replace("-", "_")
        translation.add(_checked(_item(str(written), key, value)))
    if "prompt_type" not in config:
        default = Item("prompt_type", "empty", KEPT, "data.handler.prompt_type", "empty", explicit=False)
        translation.add(default)
    return translation


def _checked(item: Item) -> Item:
    """The item, refused if its key does not take the value."""
    match = tree("train").find(item.ours) if item.ours is not None and item.status != REFUSED else None
    if match is None or match[1]:
        return item
    try:
        return replace(item, ours_value=convert(match[0], item.ours_value))
    except UserError as error:
        return Item(item.theirs, item.value, REFUSED, why=error.problem)


def _item(written: str, key: str, value: Any) -> Item:
    if key in _CHOICES and value not in (*_CHOICES[key], *_NON_RL_HANDLERS):
        suggestion = nearest(str(value), _CHOICES[key])
        hint = f" Did you mean {suggestion!r}?" if suggestion else ""
        return Item(written, value, REFUSED, why=f"not supported.{hint} Allowed: {', '.join(_CHOICES[key])}")
    if key in _KEPT and value not in _NON_RL_HANDLERS:
        return Item(written, value, KEPT, _KEPT[key], value)
    if key in _KEPT:
        return Item(written, value, REFUSED, why="preference pairs and step labels are not RL data")
    if key in _INERT:
        return Item(written, value, INERT, why=_INERT[key])
    if key in _MUST_BE_OFF:
        return Item(written, value, REFUSED if value else INERT, why=_MUST_BE_OFF[key] if value else "off")
    if key in _CONVERSIONS:
        return _CONVERSIONS[key](written, value)
    suggestion = nearest(key, KNOWN)
    return Item(written, value, REFUSED, why="unknown key." + (f" Did you mean {suggestion}?" if suggestion else ""))


def _input(written: str, value: Any) -> Item:
    files = [part.strip() for part in str(value).split(",") if part.strip()]
    return Item(written, value, CONVERTED, "data.train_files", files, "the raw file, instead of data_path")


def _prompt_type(written: str, value: Any) -> Item:
    return Item(written, value, KEPT, "data.handler.prompt_type", value)


def _interleave_probs(written: str, value: Any) -> Item:
    if not value:
        return Item(written, value, INERT, why="off")
    parts = [part.strip() for part in str(value).split(",")]
    if not all(re.fullmatch(r"\d*\.?\d+", part) for part in parts):
        return Item(written, value, REFUSED, why="must be probabilities, such as 0.25,0.75")
    return Item(written, value, CONVERTED, "data.train_probs", [float(part) for part in parts])


def _enable_thinking(written: str, value: Any) -> Item:
    return Item(written, value, KEPT, "data.apply_chat_template_kwargs.enable_thinking", value)


def _additional_keys(written: str, value: Any) -> Item:
    if value in (None, [], ["labels"], "labels"):
        return Item(written, value, INERT, why="the handler's answer is the ground truth; there are no other fields")
    return Item(written, value, INERT, why="raw rows keep all columns in extra_info.row")


_CONVERSIONS: dict[str, Callable[[str, Any], Item]] = {
    "input": _input,
    "prompt_type": _prompt_type,
    "interleave_probs": _interleave_probs,
    "enable_thinking": _enable_thinking,
    "dataset_additional_keys": _additional_keys,
}
KNOWN = (*_KEPT, *_INERT, *_MUST_BE_OFF, *_CONVERSIONS)
