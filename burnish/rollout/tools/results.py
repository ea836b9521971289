"""Return values of users' tools as results: text within bounds, a finite reward, numeric metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from burnish.media import Video
from burnish.rollout.chat.pictures import read_pictures
from burnish.rollout.tools.tool import ToolResult

MAX_CHARACTERS = 1_000_000  # of a structure's JSON; the model is given far less


PICTURES = ("image", "images", "video", "videos")
WHERE = "a tool's answer"


def plain_result(value: Any) -> ToolResult:
    """What a Python function returned: a ToolResult, an image, a mapping or a list with images and videos, text, or
    anything that has a text."""
    if isinstance(value, ToolResult):
        images, videos = _pictures(value.images, value.videos)
        return replace(value, images=images, videos=videos) if images or videos else value
    if isinstance(value, Video) or _is_image(value):
        value = {"video" if isinstance(value, Video) else "image": value}
    if isinstance(value, list | tuple) and any(map(shows_pictures, value)):
        return _joined([plain_result(entry) for entry in value])
    if isinstance(value, Mapping) and shows_pictures(value):
        return _response(value)
    return ToolResult(as_text(value))


def _is_image(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("tobytes", "mode", "size", "convert"))  # of Pillow


def shows_pictures(value: Any) -> bool:
    """Whether a value has pictures."""
    if isinstance(value, Mapping):
        known = value.keys() <= {*PICTURES, "text", "type", "image_url", "video_url"}
        return known and any(value.get(name) is not None for name in (*PICTURES, "image_url", "video_url"))
    return isinstance(value, Video) or _is_image(value)


def _response(fields: Mapping[str, Any]) -> ToolResult:
    """{"text", "image", "images", "video", "videos"}; one picture or a list of them under each name."""
    text = "" if fields.get("text") is None else as_text(fields["text"])
    shown = [[fields.get(f"{kind}{end}") for end in ("", "s", "_url")] for kind in ("image", "video")]
    images, videos = ([entry for value in values for entry in _listed(value)] for values in shown)
    images, videos = _pictures(images, videos)
    return ToolResult(text, images=images, videos=videos)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def _pictures(images: Iterable[Any], videos: Iterable[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return read_pictures(list(images), "image", WHERE), read_pictures(list(videos), "video", WHERE)


def _joined(results: Sequence[ToolResult]) -> ToolResult:
    text = "\n".join(result.text for result in results if result.text)
    images, videos = ([p for result in results for p in getattr(result, name)] for name in ("images", "videos"))
    return ToolResult(text, images=tuple(images), videos=tuple(videos))


def verl_result(value: Any) -> ToolResult:
    """What a tool written for verl returned: a response, or (response[, reward[, metrics]]).

    A response is a ToolResponse, text, or a dict: {"text": ...} before 0.5, else a structure to be shown as JSON.
    """
    if not isinstance(value, tuple):
        return _verl_response(value)
    if not 1 <= len(value) <= 3:
        raise TypeError(f"expected (response, reward, metrics), not a tuple of {len(value)}")
    response, reward, metrics = [*value, None, None][:3]
    return replace(_verl_response(response), reward=finite(reward), metrics=numbers(metrics))


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


def _verl_response(response: Any) -> ToolResult:
    names = ("image", "video", "text")
    if isinstance(response, Mapping) and response.keys() <= set(names):
        return _response(response)
    if all(hasattr(response, name) for name in names):
        return _response({name: getattr(response, name) for name in names})
    return ToolResult(as_text(response))


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
