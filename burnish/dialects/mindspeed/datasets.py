"""Preprocessing YAMLs (configs/datasets/*.yaml): the raw file and its handler, read without packing it first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from burnish.config.names import HANDLERS, PROMPT_TYPES
from burnish.dialects.report import CONVERTED, INERT, KEPT, REFUSED, Item, Translation
from burnish.errors import nearest

_KEPT = {
    "handler_name": "data.handler.name",
    "map_keys": "data.handler.map_keys",
    "tokenizer_name_or_path": "actor_rollout_ref.model.path",
}
_PACKED = "nothing is packed: raw rows are read, templated and tokenised as the run goes"
_INERT = {
    **dict.fromkeys(("output_prefix", "workers", "log_interval", "dataset_impl", "n_subs", "json_keys"), _PACKED),
    **dict.fromkeys(("overwrite_cache", "cache_dir", "streaming", "seed", "tokenizer_type", "vocab_file"), _PACKED),
    **dict.fromkeys(("merge_file", "make_vocab_size_divisible_by", "pad_vocab_size_to", "script_data_dir"), _PACKED),
    **dict.fromkeys(("split_sentences", "keep_newlines", "prompt_type_path", "tokenizer_not_use_fast"), _PACKED),
    **dict.fromkeys(("placeholder_token", "reward_tokens"), "only process reward models read it"),
    "seq_length": "the run's max_prompt_length decides which prompts are too long",
}
# Of these, anything but off asks for another kind of data.
_OFF = {
    **dict.fromkeys(("pack", "neat_pack"), "several rows in one are data of fine-tuning, not of RL"),
    "append_eod": "a prompt that ends a document leaves nothing to answer",
    "merge_group_keys": "name the files one by one: data.train_files=[a.jsonl,b.jsonl]",
}
_OTHER = ("input", "prompt_type", "dataset_additional_keys", "enable_thinking", "interleave_probs")
KNOWN = (*_KEPT, *_INERT, *_OFF, *_OTHER)
_NAMES = {"handler_name": HANDLERS, "prompt_type": PROMPT_TYPES}
_PAIRS = ("AlpacaStylePairwiseHandler", "AlpacaStyleProcessRewardHandler")


def is_preprocessing(config: Mapping[str, Any]) -> bool:
    return "handler_name" in config and "input" in config


def read_preprocessing(config: Mapping[str, Any]) -> Translation:
    """What the YAML says about the data, as keys to put beside a run's own."""
    translation = Translation("mindspeed", "train")
    for written, value in config.items():
        key = str(written).replace("-", "_")
        translation.put(_item(str(written), key, value))
    if "prompt_type" not in config:
        default = Item("prompt_type", "empty", KEPT, "data.handler.prompt_type", "empty", given=False)
        translation.put(default)
    return translation


def _item(written: str, key: str, value: Any) -> Item:
    if key in _NAMES and value not in (*_NAMES[key], *_PAIRS):
        meant = nearest(str(value), _NAMES[key])
        hint = f" Did you mean {meant!r}?" if meant else ""
        return Item(written, value, REFUSED, why=f"is none that is read here.{hint} There are {', '.join(_NAMES[key])}")
    if key in _KEPT and value not in _PAIRS:
        return Item(written, value, KEPT, _KEPT[key], value)
    if key in _KEPT:
        return Item(
            written, value, REFUSED, why="pairs and step labels are data of DPO and of reward models, not of RL"
        )
    if key in _INERT:
        return Item(written, value, INERT, why=_INERT[key])
    if key in _OFF:
        return Item(written, value, REFUSED if value else INERT, why=_OFF[key] if value else "off")
    if key in _OTHER:
        return _other(written, key, value)
    meant = nearest(key, KNOWN)
    return Item(written, value, REFUSED, why="no such key." + (f" Did you mean {meant}?" if meant else ""))


def _other(written: str, key: str, value: Any) -> Item:
    if key == "input":
        files = [part.strip() for part in str(value).split(",") if part.strip()]
        return Item(written, value, CONVERTED, "data.train_files", files, "the raw file itself, in place of data_path")
    if key == "prompt_type":
        return Item(written, value, KEPT, "data.handler.prompt_type", value)
    if key == "interleave_probs" and value:
        parts = [part.strip() for part in str(value).split(",")]
        if not all(re.fullmatch(r"\d*\.?\d+", part) for part in parts):
            return Item(written, value, REFUSED, why="must be shares, as 0.25,0.75")
        return Item(written, value, CONVERTED, "data.train_probs", [float(part) for part in parts])
    if key == "enable_thinking":
        return Item(written, value, KEPT, "data.apply_chat_template_kwargs.enable_thinking", value)
    if key == "dataset_additional_keys" and list(value or []) in ([], ["labels"]):
        return Item(written, value, INERT, why="the handler's answer is the ground truth; no further field is packed")
    if key == "dataset_additional_keys":
        return Item(written, value, INERT, why="raw rows keep all their columns, in extra_info.row")
    return Item(written, value, INERT, why="off")
