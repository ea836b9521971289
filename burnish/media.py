"""Images and videos as data files, tools and environments give them: bounded readers that return decoded pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Video:
    """Decoded frames, and the seconds at which they were taken."""

    frames: Sequence[Image]
    timestamps: Sequence[float] | None = None  # None: not known, the family's processor assumes a rate
