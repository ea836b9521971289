"""Pictures of a tool that runs in a process of its own, as JSON: base64 of PNG files."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

from burnish.media import Video, read_image
from burnish.rollout.tools.tool import ToolResult

WHERE = "an isolated tool's answer"


def packed(result: ToolResult) -> dict[str, Any]:
    """The images and videos of a result."""
    videos = [{"frames": [_text(f) for f in video.frames], "timestamps": video.timestamps} for video in result.videos]
    return {"images": [_text(image) for image in result.images], "videos": videos}


def unpacked(fields: Mapping[str, Any]) -> ToolResult:
    """The result again; the process may have been taken over by what it ran, so that its pictures are read anew."""
    images = tuple(_image(text) for text in fields["images"])
    videos = tuple(Video([_image(f) for f in video["frames"]], video["timestamps"]) for video in fields["videos"])
    return ToolResult(**{**fields, "images": images, "videos": videos})


def _text(image: Any) -> str:
    content = io.BytesIO()
    image.save(content, format="PNG")
    return base64.b64encode(content.getvalue()).decode()


def _image(text: str) -> Any:
    return read_image(base64.b64decode(text, validate=True), WHERE)
