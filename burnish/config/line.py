"""Line: a text of the documentation in English and Chinese."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """A text in English and Chinese."""

    en: str
    zh: str
