"""The encoded bytes of an image or video: from memory, a file, a URL, remote storage, base64 or a mapping of these.

Values come from data files, tools and environments, so every way is bounded in bytes and time, and only regular files
are opened.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from burnish.errors import UserError
from burnish.http import Client, ResponseTooLong
from burnish.storage import LOCAL_SCHEMES, is_remote, read_remote
from burnish.untrusted import read_bytes

BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}\s*")
SHORTEST_BASE64 = 64  # characters of the smallest picture; paths are shorter, or have other characters
MAX_PATH = 4096
MAX_WRAPPERS = 4  # mappings inside one another
GONE = (404, 410)  # HTTP statuses that say that a picture does not exist


class InvalidMedia(UserError):
    """A fault of one image or video: missing, corrupt, empty, too large, too many. The row can be dropped."""


@dataclass(frozen=True)
class MediaLimits:
    """What a picture may cost before it is refused."""

    image_bytes: int = 64 * 2**20  # encoded
    video_bytes: int = 2**30  # encoded
    pixels: int = 64 * 2**20  # of an image, or of one frame
    frames: int = 768  # of a video after sampling
    decoded_frames: int = 200_000  # of a video file
    animation_pixels: int = 2**33  # of all frames of an animated image, of which each is decoded
    video_pixels: int = 2**29  # of all frames of a video
    seconds: float = 4 * 3600.0  # of a video file
    timeout: float = 120.0  # of a download, in seconds


LIMITS = MediaLimits()


@dataclass(frozen=True)
class Origin:
    """Where a picture comes from: for messages, and for what its value refers to."""

    where: str  # "train.parquet, row 3"
    key: str | None = None  # config key, for messages
    folder: str = ""  # of relative paths, local or remote; "" is the working directory
    limits: MediaLimits = LIMITS
    local_files: bool = True  # whether a value may name files and URLs; false for what models and tools write

    def invalid(self, problem: str) -> InvalidMedia:
        return InvalidMedia(f"{self.where}: {problem}", key=self.key)

    def failed(self, problem: str) -> UserError:
        """An error that is not the picture's fault."""
        return UserError(f"{self.where}: {problem}", key=self.key)

    def check_pixels(self, width: int, height: int) -> None:
        if width < 1 or height < 1:
            raise self.invalid(f"{width}x{height} pixels")
        if width * height > self.limits.pixels:
            raise self.invalid(f"{width}x{height} pixels; the limit is {self.limits.pixels:,}")


def without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fields that parquet adds for other rows."""
    return {str(name): entry for name, entry in value.items() if entry is not None}


def unwrap(value: Any, kind: str, origin: Origin) -> tuple[Any, dict[str, Any]]:
    """What a mapping such as {"image": ...}, {"url": ...} or {"bytes": ..., "path": ...} holds, and its options."""
    names = (kind, f"{kind}_url", "bytes", "base64", "url", "path", "uri", "frames")
    options: dict[str, Any] = {}
    for _ in range(MAX_WRAPPERS):
        if not isinstance(value, Mapping):
            return value, options
        fields = without_nulls(value)
        name = next((name for name in names if name in fields), None)
        if name is None:
            has = ", ".join(fields) or "nothing"
            raise origin.invalid(f"the {kind} is a mapping of {has}; one of {', '.join(names[:-1])} is needed")
        value = fields.pop(name)
        if name == "bytes":
            fields.pop("path", None)  # the name that the file once had
        elif name == "base64" and isinstance(value, str):
            value = _decoded_base64(value, origin)
        options |= fields
    raise origin.invalid(f"the {kind} is a mapping inside {MAX_WRAPPERS} others")


def encoded_bytes(value: Any, kind: str, origin: Origin) -> bytes:
    """The content that a value holds or refers to."""
    limit = origin.limits.video_bytes if kind == "video" else origin.limits.image_bytes
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        content = _from_text(value, limit, origin)
    elif isinstance(value, bytes | bytearray | memoryview):
        content = bytes(value)
    else:
        raise origin.invalid(f"the {kind} is a {type(value).__name__}; expected bytes, a path, a URL or a mapping")
    if not content:
        raise origin.invalid(f"the {kind} has no bytes")
    if len(content) > limit:
        raise origin.invalid(f"the {kind} has {len(content):,} bytes; the limit is {limit:,}")
    return content


def _from_text(text: str, limit: int, origin: Origin) -> bytes:
    if text[:5].lower() == "data:":
        return _from_data_url(text, origin)
    content = _as_base64(text)
    if content is not None:
        return content
    if not text.strip() or len(text) > MAX_PATH:
        raise origin.invalid("the path or URL is empty" if not text.strip() else "neither a path, a URL nor base64")
    if not origin.local_files:
        raise origin.invalid(f"{text!r} is a path or URL; only the picture itself is taken here, as bytes or base64")
    name = _located(text, origin.folder)
    if name[:8].lower().startswith(("http://", "https://")):
        return _downloaded(name, limit, origin)
    if is_remote(name):
        remote = read_remote(name, key=origin.key or "", limit=limit)
        if remote is None:
            raise origin.invalid(f"no such file: {name}")
        return remote
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):  # before it is opened, which alone moves some devices
            raise origin.invalid(f"{name} is not a regular file")
        return read_bytes(name, limit=limit)
    except InvalidMedia:
        raise
    except UserError as error:
        raise origin.invalid(error.problem) from error
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise origin.invalid(f"cannot read {name!r}: {getattr(error, 'strerror', None) or error}") from error


def _located(text: str, folder: str) -> str:
    """The URL, or the path below the folder of relative paths."""
    for scheme in LOCAL_SCHEMES:
        text = text.removeprefix(scheme)
    if is_remote(text):
        return text
    if is_remote(folder):
        return text if text.startswith(("/", "~")) else f"{folder.rstrip('/')}/{text}"
    return str(Path(folder) / os.path.expanduser(text))


def _from_data_url(text: str, origin: Origin) -> bytes:
    head, comma, body = text.partition(",")
    if not comma:
        raise origin.invalid("a data: URL without a comma")
    return _decoded_base64(body, origin) if head.lower().endswith(";base64") else unquote_to_bytes(body)


def _as_base64(text: str) -> bytes | None:
    """The content, if this is base64 of a picture; None if it is a path or URL."""
    if len(text) < SHORTEST_BASE64 or not BASE64.fullmatch(text[:SHORTEST_BASE64]):
        return None
    if sniffed(_base64(text[:SHORTEST_BASE64])) is None or not BASE64.fullmatch(text):
        return None
    return _base64(text)


def _decoded_base64(text: str, origin: Origin) -> bytes:
    try:
        return _base64(text)
    except (binascii.Error, ValueError) as error:
        raise origin.invalid(f"invalid base64: {error}") from error


def _base64(text: str) -> bytes:
    text = "".join(text.split()).replace("-", "+").replace("_", "/")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


# Where a format's first bytes stand, and what they are.
_SIGNATURES = {
    "png": ((0, b"\x89PNG\r\n\x1a\n"),),
    "jpeg": ((0, b"\xff\xd8\xff"),),
    "gif": ((0, b"GIF8"),),
    "webp": ((0, b"RIFF"), (8, b"WEBP")),
    "avi": ((0, b"RIFF"), (8, b"AVI ")),
    "bmp": ((0, b"BM"),),
    "mp4": ((4, b"ftyp"),),
    "matroska": ((0, b"\x1aE\xdf\xa3"),),
    "ogg": ((0, b"OggS"),),
    "mpegts": ((0, b"G"), (188, b"G")),
    "mpeg": ((0, b"\x00\x00\x01\xba"),),
}


def sniffed(content: bytes) -> str | None:
    """The format by the first bytes."""
    for name, parts in _SIGNATURES.items():
        if all(content[at : at + len(mark)] == mark for at, mark in parts):
            return name
    return None


def _downloaded(url: str, limit: int, origin: Origin) -> bytes:
    """A network that fails is not the picture's fault: rows must not depend on it."""
    try:
        client = Client(url, use_proxy=True)
    except ValueError as error:
        raise origin.invalid(str(error)) from error
    try:
        response = client.call("GET", "", b"", timeout=origin.limits.timeout, max_bytes=limit)
    except ResponseTooLong as error:
        raise origin.invalid(f"{url}: {error}") from error
    except TimeoutError as error:
        raise origin.failed(f"{url}: no complete response within {origin.limits.timeout:g} s") from error
    except (OSError, EOFError, ValueError) as error:
        raise origin.failed(f"cannot download {url}: {error or type(error).__name__}") from error
    if response.status == 200:
        return response.body
    if response.status in GONE:
        raise origin.invalid(f"{url}: HTTP status {response.status}")
    redirects = "; redirects are not followed" if 300 <= response.status < 400 else ""
    raise origin.failed(f"{url}: HTTP status {response.status}{redirects}")
