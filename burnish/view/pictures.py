"""Pictures of a run, pictures/{digest}.png, as the pages may show them: PNG files of a bounded size, and nothing else.

A browser decodes what it is given, so name, signature and dimensions are checked here.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burnish.log.pictures import MAX_FRAMES
from burnish.view.json_lines import open_regular
from burnish.view.samples import listed

MAX_BYTES = 16 * 2**20  # of a file
MAX_PIXELS = 2**25
MAX_MEDIA = 64  # of a trajectory
_NAME = re.compile(r"[0-9a-f]{8,64}(-[0-9]{1,6})?\.png")
_HEADER = struct.Struct(">8sI4sII")  # signature, length and name of the first chunk, width, height
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def media_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The images and videos of a trajectory: kind, place among its tokens, and files. Values may be of any type."""
    items = [item for item in listed(record.get("media")) if isinstance(item, Mapping)]
    return [
        {
            "kind": "video" if item.get("kind") == "video" else "image",
            **{name: _count(item.get(name)) for name in ("offset", "num_tokens")},
            "files": [name for name in listed(item.get("files")) if is_name(name)][:MAX_FRAMES],
        }
        for item in items[:MAX_MEDIA]
    ]


def is_name(name: Any) -> bool:
    """Whether this is the name of a picture's file."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def read_picture(path: Path) -> dict[str, Any] | None:
    """Size and content of a PNG file; None if it is no such file, or too large."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError:
        return None
    if len(content) > MAX_BYTES or len(content) < _HEADER.size:
        return None
    signature, _, chunk, width, height = _HEADER.unpack_from(content)
    if signature != _SIGNATURE or chunk != b"IHDR" or not 0 < width * height <= MAX_PIXELS:
        return None
    return {"width": width, "height": height, "png": base64.b64encode(content).decode()}


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None
