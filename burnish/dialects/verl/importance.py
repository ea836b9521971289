"""The importance weights of verl 0.6 (algorithm.rollout_is*), written as the rollout_correction of later versions."""

from __future__ import annotations

from typing import Any

from burnish.config.overrides import Entry
from burnish.config.values import written_as
from burnish.dialects.report import CONVERTED, INERT, REFUSED, Item, Translation

_NAMES = ("", "_level", "_mode", "_threshold", "_threshold_lower", "_veto_threshold")
_KEYS = tuple(f"algorithm.rollout_is{name}" for name in _NAMES)
_NEW = "algorithm.rollout_correction"
_OFF = "off: algorithm.rollout_is_threshold is null"
_LOWER = "weights are truncated above; the lower bound is that of rollout_is_mode=mask"
_METRICS = "the weights are logged and not applied (algorithm.rollout_is=false)"


def is_importance_key(key: str) -> bool:
    """Whether the key belongs to verl 0.6's importance weights."""
    return key in _KEYS


def convert_importance(entries: list[Entry], translation: Translation) -> None:
    """Add an item for each of these entries; they only have a meaning together."""
    values = {entry.key: entry.value for entry in entries}
    for entry in entries:
        translation.add(_item(entry.key, entry.value, values))


def _item(key: str, value: Any, values: dict[str, Any]) -> Item:
    level, mode = values.get(_KEYS[1], "token"), values.get(_KEYS[2], "truncate")
    if key == _KEYS[5] and value is not None:
        ours = f"{_NEW}.rollout_token_veto_threshold"
        return Item(key, value, CONVERTED, ours, value, "renamed in verl 0.7")
    if values.get(_KEYS[3]) is None:
        return Item(key, value, INERT, why=_OFF)
    if values.get(_KEYS[0], False) is not True and mode == "truncate":
        return Item(key, value, INERT, why=_METRICS)
    if key == _KEYS[0]:
        return Item(key, value, CONVERTED, f"{_NEW}.rollout_is", level, "rollout_is_level is the value")
    if key == _KEYS[3]:
        return Item(key, value, CONVERTED, f"{_NEW}.rollout_is_threshold", written_as(value), "renamed in verl 0.7")
    if (key, mode) == (_KEYS[4], "truncate"):
        return Item(key, value, INERT, why=_LOWER)
    if (key == _KEYS[2] and mode != "truncate") or (key == _KEYS[1] and level == "geometric"):
        instead = f"{_NEW}.rollout_rs=token_k1 {_NEW}.rollout_rs_threshold=LOW_HIGH"
        return Item(key, value, REFUSED, why=f"masks what is outside the thresholds. Type: {instead}")
    return Item(key, value, CONVERTED, why=f"{_NEW}.rollout_is={level} truncates the weights")
