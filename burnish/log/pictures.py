"""Pictures that a run's trajectories show, as PNG files: {run folder}/pictures/{digest}.png, each once.

Records of trajectories refer to them by digest. The first pictures of a run are kept, up to a number of files and of
bytes: an epoch may have millions.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from burnish.folders import make_private
from burnish.storage import disk_full

FOLDER = "pictures"
MAX_FILES = 2000
MAX_BYTES = 512 * 2**20
MAX_FRAMES = 8  # of a video, evenly spaced


class Shown(Protocol):
    """A processed image or video in a row of tokens (models.model_input.Media)."""

    @property
    def kind(self) -> Any: ...
    @property
    def digest(self) -> bytes: ...
    @property
    def offset(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def source(self) -> Any:
        """The picture; None for further parts of one."""
        ...


class PictureWriter:
    """Writes each picture once; what was there before counts."""

    def __init__(self, folder: Path, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_files, self.max_bytes = max_files, max_bytes
        self._sizes: dict[str, int] | None = None  # by name of the file
        self._problem: str | None = None

    def take_problem(self) -> str | None:
        """What went wrong since the last call: a viewer's pictures must not stop a run."""
        problem, self._problem = self._problem, None
        return problem

    def record(self, media: Iterable[Shown]) -> list[dict[str, Any]]:
        """What a record says about a row's pictures: their places, and the files that show them."""
        return [
            {
                "kind": item.kind,
                "digest": item.digest.hex(),
                "offset": item.offset,
                "num_tokens": item.num_tokens,
                "files": [name for name, image in _images(item) if self._write(name, image)],
            }
            for item in media
        ]

    def _write(self, name: str, image: Any) -> bool:
        """Whether there is a file of this name now."""
        try:
            return self._write_once(name, image)
        except OSError as error:
            self._problem = f"{disk_full(error)}cannot write pictures to {self.folder}: {error}"
            return False

    def _write_once(self, name: str, image: Any) -> bool:
        if self._sizes is None:
            make_private(self.folder)
            self._sizes = {path.name: path.stat().st_size for path in self.folder.glob("*.png")}
        if name in self._sizes:
            return True
        if len(self._sizes) >= self.max_files or sum(self._sizes.values()) >= self.max_bytes:
            return False
        content = io.BytesIO()
        image.save(content, format="PNG")
        temporary = self.folder / f".{name}.{os.getpid()}.tmp"
        try:
            temporary.write_bytes(content.getvalue())
            os.replace(temporary, self.folder / name)
        finally:
            temporary.unlink(missing_ok=True)
        self._sizes[name] = len(content.getvalue())
        return True


def _images(item: Shown) -> list[tuple[str, Any]]:
    """File names and images: the picture, or some frames of a video."""
    if item.source is None:
        return []
    frames = getattr(item.source, "frames", None)
    if frames is None:
        return [(f"{item.digest.hex()}.png", item.source)]
    step = max(1, -(-len(frames) // MAX_FRAMES))
    return [(f"{item.digest.hex()}-{number}.png", frames[number]) for number in range(0, len(frames), step)]
