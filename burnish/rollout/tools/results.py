"""Return values of users' tools as results: text within bounds, a finite reward, numeric metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from burnish.errors import NotSupportedYet
from burnish.rollout.tools.tool import ToolResult

MAX_CHARACTERS = 1_000_000  # of a structure's JSON; the model is given far less


def plain_result(value: Any) -> ToolResult:
    """What a Python function returned: a ToolResult, text, or anything that has a text."""
    return value if isinstance(value, ToolResult) else ToolResult(as_text(value))


def verl_result(value: Any) -> ToolResult:
    """What a tool written for verl returned: a response, or (response[, reward[, metrics]]).

    A response is a ToolResponse, text, or a dict: {"text": ...} before 0.5, else a structure to be shown as JSON.
    """
    if not isinstance(value, tuple):
        return ToolResult(_response_text(value))
    if not 1 <= len(value) <= 3:
        raise TypeError(f"expected (response, reward, metrics), not a tuple of {len(value)}")
    response, reward, metrics = [*value, None, None][:3]
    return ToolResult(_response_text(response), finite(reward), numbers(metrics))


def finite(reward: Any) -> float:
    """A reward as float. None is 0; a NaN would spoil a whole batch."""
    number = 0.0 if reward is None else float(reward)
    if not math.isfinite(number):
        raise ValueError(f"the tool returned the reward {number}")
    return number


def numbers(metrics: Any) -> dict[str, float]:
    """The entries of a tool's metrics that are finite numbers."""
    if not isinstance(metrics, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def as_text(value: Any) -> str:
    """Text as it is, a mapping as JSON, anything else as Python prints it."""
    if isinstance(value, Mapping):
        return json.dumps(_Clip().structure(value), ensure_ascii=False, default=str)
    return value if isinstance(value, str) else str(value)


def _response_text(response: Any) -> str:
    media = {"image", "video"}
    if isinstance(response, Mapping) and response.keys() <= media | {"text"}:
        fields = dict(response)
    elif all(hasattr(response, name) for name in (*media, "text")):
        fields = {name: getattr(response, name) for name in (*media, "text")}
    else:
        return as_text(response)
    if any(fields.get(name) for name in media):
        raise NotSupportedYet("a tool returned images or videos: not supported yet (vision models)", key="tool_schema")
    return "" if fields.get("text") is None else as_text(fields["text"])


class _Clip:
    """Cuts a structure so that its JSON is not a second copy of 100 MB."""

    def __init__(self) -> None:
        self.left = MAX_CHARACTERS

    def structure(self, value: Any) -> Any:
        if isinstance(value, str):
            text = value[: self.left]
            self.left -= len(text)
            return text
        if isinstance(value, Mapping):
            return {str(key): self.structure(entry) for key, entry in self._while_left(value.items())}
        if isinstance(value, list | tuple):
            return [self.structure(entry) for entry in self._while_left(value)]
        return value

    def _while_left(self, entries: Iterable[Any]) -> Iterable[Any]:
        for entry in islice(entries, MAX_CHARACTERS):
            self.left -= 1
            if self.left <= 0:
                return
            yield entry
