"""Images and videos in messages: parts of structured content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from burnish.media import InvalidMedia, Video, read_image, read_video
from burnish.rollout.chat.forms import Message

MAX_PICTURES = 64  # of one answer of a tool or an environment
KINDS = {"image": "image", "image_url": "image", "input_image": "image", "video": "video", "video_url": "video"}


def content_of(text: str, images: Sequence[Any], videos: Sequence[Video]) -> str | list[dict[str, Any]]:
    """The content of a message with pictures before its text, as verl orders them."""
    if not images and not videos:
        return text
    parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    parts += [{"type": "video", "video": video} for video in videos]
    return [*parts, {"type": "text", "text": text}] if text else parts


def read_pictures(values: Any, kind: str, where: str) -> tuple[Any, ...]:
    """Images or videos that a tool or an environment returned: one or a list of them, in any form but file names.

    InvalidMedia for one that cannot be read.
    """
    values = list(values) if isinstance(values, list | tuple) else [] if values is None else [values]
    if len(values) > MAX_PICTURES:
        raise InvalidMedia(f"{where}: {len(values)} {kind}s; at most {MAX_PICTURES} are allowed")
    if kind == "image":
        return tuple(read_image(value, where, local_files=False) for value in values)
    return tuple(value if isinstance(value, Video) else read_video(value, where, local_files=False) for value in values)


def read_content(content: Any, where: str) -> Any:
    """A message's content with decoded pictures; text as it is."""
    if isinstance(content, str) or content is None or not isinstance(content, Sequence):
        return content
    parts: list[Any] = []
    for part in content:
        kind = KINDS.get(str(part.get("type"))) if isinstance(part, Mapping) else None
        if kind is None:
            parts.append(part)
            continue
        value = next((part[name] for name in (str(part["type"]), kind, "url") if part.get(name) is not None), None)
        parts += [{"type": kind, kind: picture} for picture in read_pictures(value, kind, where)]
    return parts


def pictures_of(messages: Iterable[Message]) -> tuple[list[Any], list[Video]]:
    """The images and the videos of messages, in order."""
    parts = [part for message in messages for part in _parts(message)]
    return tuple([part[kind] for part in parts if part.get(kind) is not None] for kind in ("image", "video"))  # type: ignore[return-value]


def has_pictures(messages: Iterable[Message]) -> bool:
    return any(part.get("type") in ("image", "video") for message in messages for part in _parts(message))


def with_escaped(messages: Sequence[Message], placeholders: Iterable[str]) -> list[Message]:
    """Messages in which text that reads like the placeholder of a picture is not one any more."""

    def escaped(text: str) -> str:
        for placeholder in placeholders:
            text = text.replace(placeholder, f"{placeholder[0]} {placeholder[1:]}")
        return text

    def content(value: Any) -> Any:
        if isinstance(value, str):
            return escaped(value)
        if not isinstance(value, list):
            return value
        texts = [isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in value]
        return [
            {**part, "text": escaped(part["text"])} if is_text else part
            for part, is_text in zip(value, texts, strict=True)
        ]

    return [{**message, "content": content(message.get("content"))} for message in messages]


def _parts(message: Message) -> list[Mapping[str, Any]]:
    content = message.get("content")
    return [part for part in content if isinstance(part, Mapping)] if isinstance(content, list | tuple) else []
