"""Images and videos as data files, tools and environments give them: bounded readers that return decoded pictures."""

from __future__ import annotations

from burnish.media.image import read_image
from burnish.media.source import LIMITS, InvalidMedia, MediaLimits
from burnish.media.video import Video, read_video

__all__ = ["LIMITS", "InvalidMedia", "MediaLimits", "Video", "read_image", "read_video"]
