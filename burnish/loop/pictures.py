"""Pictures and processed media as files: PNG and safetensors by digest, nothing to unpickle."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save

from burnish.media import Video, read_image
from burnish.models.model_input import Media

IMAGE, VIDEO = "burnish_image", "burnish_video"  # keys of a reference in JSON
FEATURES = "features"  # beside the tensors of a media item, under this name
TENSORS = "tensors."


def write_once(path: Path, content: Callable[[], bytes]) -> None:
    """Write a file whose name says what is in it, unless it exists."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# pictures in JSON values


def is_picture(value: Any) -> bool:
    return isinstance(value, Video) or (hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "size"))


def with_references(value: Any, folder: Path) -> Any:
    """A value whose pictures are replaced by references to files of this folder, which are written."""
    if isinstance(value, Video):
        return {VIDEO: [_put(frame, folder) for frame in value.frames], "timestamps": value.timestamps}
    if is_picture(value):
        return {IMAGE: _put(value, folder)}
    if isinstance(value, Mapping):
        return {name: with_references(entry, folder) for name, entry in value.items()}
    if isinstance(value, list | tuple) and not _is_flat(value):
        return [with_references(entry, folder) for entry in value]
    return value


def with_pictures(value: Any, folder: Path) -> Any:
    """The value again: references become the pictures of the files."""
    if isinstance(value, Mapping):
        if value.keys() == {IMAGE}:
            return _get(value[IMAGE], folder)
        if value.keys() == {VIDEO, "timestamps"}:
            return Video([_get(digest, folder) for digest in value[VIDEO]], value["timestamps"])
        return {name: with_pictures(entry, folder) for name, entry in value.items()}
    is_nested = isinstance(value, list) and not _is_flat(value)
    return [with_pictures(entry, folder) for entry in value] if is_nested else value


def _is_flat(value: Sequence[Any]) -> bool:
    """A list of tokens or numbers, as far as its first entry tells."""
    return bool(value) and isinstance(value[0], int | float | str)


def digest_of(image: Any) -> str:
    """Of the pixels."""
    return hashlib.blake2b(f"{image.mode}{image.size}".encode() + image.tobytes(), digest_size=16).hexdigest()


def _put(image: Any, folder: Path) -> str:
    digest = digest_of(image)
    write_once(folder / f"{digest}.png", lambda: png(image))
    return digest


def _get(digest: str, folder: Path) -> Any:
    path = folder / f"{int(digest, 16):032x}.png"  # a number: the file may not name another folder
    return read_image(path.read_bytes(), str(path))


def png(image: Any) -> bytes:
    import io

    content = io.BytesIO()
    image.save(content, format="PNG")
    return content.getvalue()


# processed media


def media_records(media: Sequence[Media]) -> list[dict[str, Any]]:
    """What JSON says about media whose tensors are elsewhere."""
    return [
        {"kind": item.kind, "digest": item.digest.hex(), "offset": item.offset, "num_tokens": item.num_tokens}
        for item in media
    ]


def save_media(media: Iterable[Media], folder: Path) -> None:
    """The tensors, one file for each digest."""
    for item in {item.digest: item for item in media}.values():
        tensors = {f"{TENSORS}{name}": tensor.contiguous() for name, tensor in item.tensors.items()}
        if item.features is not None:
            tensors[FEATURES] = item.features
        write_once(_media_path(folder, item.digest), lambda tensors=tensors: save(tensors))


def restore_media(record: Mapping[str, Any], known: Mapping[bytes, Media], folder: Path) -> Media:
    """The media of a record: one of `known`, by its digest, else from its file."""
    digest, offset = bytes.fromhex(record["digest"]), int(record["offset"])
    if digest in known:
        return known[digest].at(offset)
    tensors = load_file(_media_path(folder, digest))
    features = tensors.pop(FEATURES, None)
    named = {name.removeprefix(TENSORS): tensor for name, tensor in tensors.items()}
    return Media(record["kind"], digest, offset, int(record["num_tokens"]), named, features)


def _media_path(folder: Path, digest: bytes) -> Path:
    return folder / f"{digest.hex()}.safetensors"
