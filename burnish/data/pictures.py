"""Images and videos of a row: which message each belongs to, and how a vision encoder turns both into tokens.

A prompt that is a string, or a message whose content is one, has <image> and <video> where the pictures of the row's
columns belong, as in verl. A content that is a list of parts may hold the pictures itself, as OpenAI and Hugging Face
write them; a part without data takes the next picture of the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from burnish.errors import UserError
from burnish.media import InvalidMedia, Video, read_image, read_video
from burnish.media.source import without_nulls

if TYPE_CHECKING:
    from PIL.Image import Image

Kind = Literal["image", "video"]
KINDS: tuple[Kind, ...] = ("image", "video")
PLACEHOLDERS: dict[str, Kind] = {"<image>": "image", "<video>": "video"}
SPLIT = re.compile("(<image>|<video>)")
MODEL_DATA, MODEL_INPUTS = "multi_modal_data", "multi_modal_inputs"  # of verl's dataset classes
AUDIO = ("audio", "audios")
# Types of the parts of a content.
PART_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
}
TEXT_PARTS = ("text", "input_text", "output_text")
AUDIO_PARTS = ("audio", "audio_url", "input_audio")
DATA_FIELDS = {
    "image": ("image", "image_url", "url", "path", "base64", "bytes"),
    "video": ("video", "video_url", "url", "path", "base64", "bytes", "frames"),
}


class Span(Protocol):
    """A processed picture in a prompt: the tokens offset..offset + num_tokens stand for it."""

    @property
    def kind(self) -> Kind: ...
    @property
    def offset(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    def at(self, offset: int) -> Span: ...


class EncodedInput(Protocol):
    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def media(self) -> Sequence[Any]: ...


class VisionEncoder(Protocol):
    """Tokenizer and processor of a vision-language model."""

    @property
    def placeholders(self) -> Mapping[Kind, str]:
        """The token that the chat template writes for a picture, for each kind that the model takes."""
        ...

    def encode(
        self,
        text: str,
        images: Sequence[Image] = (),
        videos: Sequence[Video] = (),
        *,
        add_special_tokens: bool = False,
        offset: int = 0,
        pixels: bool = True,  # false: for lengths; media need no tensors
    ) -> EncodedInput: ...


@dataclass(frozen=True)
class RawMedia:
    """An image or video of a row, as its file has it. Nothing is decoded before `read`."""

    kind: Kind
    number: int  # among the prompt's pictures of this kind
    value: Any
    folder: str = ""  # of relative paths
    key: str | None = None

    def read(self) -> Any:
        """The picture: a Pillow image or a Video. InvalidMedia names the picture, not the row."""
        read: Any = {"image": read_image, "video": read_video}[self.kind]
        return read(self.value, f"{self.kind} {self.number}", key=self.key, folder=self.folder)


@dataclass(frozen=True)
class MediaColumns:
    """Where a row's pictures are, and how many a prompt may have."""

    image_key: str | None = "images"  # None: none are read
    video_key: str | None = "videos"
    max_images: int | None = None
    expected: bool = True  # whether the data have such columns: then <image> in a text is never mere text

    def keys(self) -> dict[Kind, str | None]:
        return {"image": self.image_key, "video": self.video_key}


@dataclass
class _Placing:
    """The pictures that are not placed yet, and those that are."""

    where: str
    folder: str
    waiting: dict[Kind, Iterator[Any]]  # of the kinds that are read
    placed: list[RawMedia] = field(default_factory=list)
    num_placeholders: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def place(self, kind: Kind, value: Any = None) -> dict[str, Any]:
        """The part of a content that stands for the next picture."""
        if value is None:
            self.num_placeholders[kind] += 1
            value = next(self.waiting.get(kind, iter(())), None)
        number = sum(media.kind == kind for media in self.placed)
        self.placed.append(RawMedia(kind, number, value, self.folder, f"data.{kind}_key"))
        return {"type": kind}


def has_pictures(row: Mapping[str, Any], columns: MediaColumns, messages: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Whether a row has images or videos, in its columns or in its messages."""
    return any(_column(row, name, kind) for kind, name in columns.keys().items()) or any(
        _part_kind(part) is not None for part in _parts(messages)
    )


def refuse_audio(row: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], where: str) -> None:
    """No model takes audio yet."""
    data = row.get(MODEL_DATA)
    names = [name for name in ("audios", "data.audio_key") if _is_filled(row.get(name))]
    names += [f"{MODEL_DATA}.{name}" for name in AUDIO if isinstance(data, Mapping) and _is_filled(data.get(name))]
    names += [part["type"] for part in _parts(messages) if part.get("type") in AUDIO_PARTS]
    if names:
        raise UserError(f"{where} has audio ({names[0]}), which is not supported", key="data.train_files")


def place_pictures(
    messages: Sequence[Mapping[str, Any]], row: Mapping[str, Any], columns: MediaColumns, where: str, folder: str
) -> tuple[list[dict[str, Any]], tuple[RawMedia, ...]]:
    """The messages with a part {"type": "image"} (or video) for every picture, and the pictures in that order.

    InvalidMedia if there are not as many pictures as placeholders, or more than `columns.max_images`.
    """
    given: dict[Kind, list[Any]] = {kind: _column(row, name, kind) for kind, name in columns.keys().items()}
    names = columns.keys()
    waiting: dict[Kind, Iterator[Any]] = {kind: iter(given[kind]) for kind in KINDS if names[kind] is not None}
    placing = _Placing(where, folder, waiting)
    split = columns.expected or any(given.values())
    placed = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str) and split and SPLIT.search(content):
            content = list(_split(content, placing))
        elif isinstance(content, list | tuple):
            content = list(_read_parts(content, placing))
        placed.append({**message, "content": content})
    for kind, values in given.items():
        wanted = placing.num_placeholders[kind]
        if wanted != len(values) and not (wanted == 0 and _is_copy(row, columns, kind, placing)):
            raise InvalidMedia(
                f"{where}: {wanted} <{kind}> in the prompt, but {len(values)} in the column {columns.keys()[kind]!r}",
                key=f"data.{kind}_key",
                hint=f"one <{kind}> for each; a content that is a list of parts may have <{kind}> as text",
            )
    images = sum(media.kind == "image" for media in placing.placed)
    if columns.max_images is not None and images > columns.max_images:
        problem = f"{where}: {images} images, more than data.max_images_per_prompt={columns.max_images}"
        raise InvalidMedia(problem, key="data.max_images_per_prompt")
    return placed, tuple(placing.placed)


def placeholder_text(content: Any, placeholders: Mapping[Kind, str]) -> str:
    """A content as text without a chat template: the model's token for each picture."""
    if not isinstance(content, list):
        return content or ""
    return "".join(placeholders.get(part["type"], "") or part.get("text") or "" for part in content)


def texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """All texts in the contents of messages."""
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            yield content
        elif isinstance(content, list | tuple):
            yield from (part["text"] for part in content if isinstance(part.get("text"), str))


def _split(content: str, placing: _Placing) -> Iterator[dict[str, Any]]:
    for segment in SPLIT.split(content):
        if PLACEHOLDERS.get(segment) in placing.waiting:
            yield placing.place(PLACEHOLDERS[segment])
        elif segment:
            yield {"type": "text", "text": segment}


def _read_parts(content: Sequence[Any], placing: _Placing) -> Iterator[dict[str, Any]]:
    for entry in content:
        part = {"type": "text", "text": entry} if isinstance(entry, str) else entry
        if not isinstance(part, Mapping):
            raise UserError(f"{placing.where}: a part of a content is a {type(part).__name__}, not an object")
        part = without_nulls(part)
        kind = _part_kind(part)
        if kind is not None:
            filled = any(_is_filled(part.get(name)) for name in DATA_FIELDS[kind])
            if not filled and set(part) - {"type", *DATA_FIELDS[kind]}:
                extra = sorted(set(part) - {"type", *DATA_FIELDS[kind]})[0]
                raise UserError(f"{placing.where}: a part of type {part.get('type')!r} has only {extra!r}, no {kind}")
            yield placing.place(kind, {n: v for n, v in part.items() if n != "type"} if filled else None)
        elif part.get("type", "text") in TEXT_PARTS and isinstance(part.get("text"), str):
            yield {**part, "type": "text"}
        else:
            raise UserError(
                f"{placing.where}: a part of a content has the type {part.get('type')!r}",
                key="data.prompt_key",
                allowed=", ".join((*TEXT_PARTS, *PART_KINDS)),
            )


def _part_kind(part: Mapping[str, Any]) -> Kind | None:
    """image or video; None for text and others. A part may lack its type."""
    name = part.get("type")
    if isinstance(name, str):
        return PART_KINDS.get(name)
    return next((kind for kind in KINDS if _is_filled(part.get(kind)) or _is_filled(part.get(f"{kind}_url"))), None)


def _parts(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    contents = (message.get("content") for message in messages)
    lists = (content for content in contents if isinstance(content, list | tuple))
    return (part for content in lists for part in content if isinstance(part, Mapping))


def _column(row: Mapping[str, Any], name: str | None, kind: Kind) -> list[Any]:
    """The pictures of a column: a list, or a single one. Those of verl's dataset classes come in multi_modal_data."""
    if name is None:
        return []
    value = row.get(name)
    data = row.get(MODEL_DATA)
    if not _is_filled(value) and isinstance(data, Mapping):
        value = next((data[n] for n in (kind, f"{kind}s") if _is_filled(data.get(n))), None)
    if not _is_filled(value):
        return []
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_copy(row: Mapping[str, Any], columns: MediaColumns, kind: Kind, placing: _Placing) -> bool:
    """Whether multi_modal_data repeats the pictures that the messages hold themselves, as verl's classes do."""
    name = columns.keys()[kind]
    from_column = name is not None and _is_filled(row.get(name))
    inside = sum(media.kind == kind for media in placing.placed)
    return not from_column and inside == len(_column(row, name, kind))


def _is_filled(value: Any) -> bool:
    """Whether a field has a value: not null, and not empty text or an empty list."""
    if isinstance(value, Mapping):
        return any(entry is not None for entry in value.values())
    return value is not None and (not hasattr(value, "__len__") or len(value) > 0)
