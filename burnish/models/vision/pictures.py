"""Pictures: images and videos -> tensors, and the tokens that stand for them. One class per family implements it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor
from transformers import AutoImageProcessor
from transformers.utils import cached_file

from burnish.errors import UserError, nearest
from burnish.media import Video
from burnish.models.load import load_error, quiet_transformers
from burnish.models.model_input import MediaKind
from burnish.untrusted import read_json_object

if TYPE_CHECKING:
    from PIL.Image import Image

PROCESSOR_KEY = "data.mm_processor_kwargs"
# Overrides that are about videos alone, which image processors do not know.
VIDEO_OVERRIDES = ("fps",)
MAX_FRAMES = 768  # of one video, as in transformers' processors
# transformers' own files beside a model; engines that process pictures themselves read them.
VIDEO_FILE, PROCESSOR_FILE = "video_preprocessor_config.json", "processor_config.json"
PROCESSOR_FILES = ("preprocessor_config.json", VIDEO_FILE, PROCESSOR_FILE)
QUIET: dict[str, Any] = {
    "_raise_exceptions_for_missing_entries": False,
    "_raise_exceptions_for_connection_errors": False,
}


@dataclass(frozen=True)
class Processed:
    """A picture as the model takes it.

    `pieces` replace its placeholder: text, and numbers of tokens that features replace. `items` share out these numbers
    evenly: most pictures are one media item, one with crops of its own is several.
    """

    pieces: tuple[str | int, ...]
    items: tuple[Mapping[str, Tensor], ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for item in self.items for tensor in item.values())


class Pictures(Protocol):
    placeholders: Mapping[MediaKind, str]  # what the chat template writes for a picture, by kind
    feature_ids: Mapping[MediaKind, int]  # the token that is repeated, once for each feature
    description: str  # of all that decides what becomes of a picture, for cache keys

    def image(self, image: Image) -> Processed:
        """An RGB image. ValueError where the processor refuses it."""
        ...

    def image_pieces(self, width: int, height: int) -> tuple[str | int, ...] | None:
        """The pieces of an image of this size, if they can be told without processing one, in one media item."""
        ...

    def video(self, video: Video) -> Processed:
        """Frames in RGB, of one size."""
        ...


def load_image_processor(folder: str, overrides: Mapping[str, Any]) -> Any:
    """The checkpoint's image processor with overrides.

    Always the one that computes with Pillow: it needs no torchvision, and gives the same pixels on every machine.
    """
    image_overrides = {name: value for name, value in overrides.items() if name not in VIDEO_OVERRIDES}
    try:
        with quiet_transformers():
            processor = AutoImageProcessor.from_pretrained(folder, backend="pil", trust_remote_code=False)
        _check_names(processor, image_overrides)
        return type(processor).from_dict(processor.to_dict(), **image_overrides)
    except UserError:
        raise
    except Exception as error:  # odd files make transformers raise anything
        raise load_error("the image processor", error, key="actor_rollout_ref.model.path", value=folder) from error


def load_frame_processor(folder: str, overrides: Mapping[str, Any]) -> Any:
    """An image processor with the checkpoint's settings for videos, from a file of their own or the processor's."""
    images = load_image_processor(folder, overrides)
    file, whole = (cached_file(folder, name, **QUIET) for name in (VIDEO_FILE, PROCESSOR_FILE))
    settings = None
    if file is not None:
        settings = read_json_object(Path(file))
    elif whole is not None:
        settings = read_json_object(Path(whole)).get("video_processor")
    if not isinstance(settings, dict):
        return images
    known = {name: value for name, value in settings.items() if name in images.valid_kwargs.__annotations__}
    own = {name: value for name, value in overrides.items() if name not in VIDEO_OVERRIDES}
    try:
        return type(images).from_dict(images.to_dict() | known, **own)
    except Exception as error:  # odd files make transformers raise anything
        raise load_error("the video processor", error, key="actor_rollout_ref.model.path", value=folder) from error


def _check_names(processor: Any, overrides: Mapping[str, Any]) -> None:
    known = sorted(processor.valid_kwargs.__annotations__)
    for name, value in overrides.items():
        if name not in known:
            closest = nearest(name, known)
            raise UserError(
                f"the image processor of this model ({type(processor).__name__}) has no such setting",
                key=f"{PROCESSOR_KEY}.{name}",
                value=value,
                allowed=known,
                hint=f"+{PROCESSOR_KEY}.{closest}={value}" if closest else None,
            )


def runs_between(texts: Sequence[str], tokens: int) -> tuple[str | int, ...]:
    """Pieces of text with a run of this many tokens between each two of them."""
    pieces: list[str | int] = [texts[0]]
    for text in texts[1:]:
        pieces += [tokens, text]
    return tuple(pieces)


def has_file(folder: str, name: str) -> bool:
    """Whether a model's folder, or its hub name, has this file."""
    return cached_file(folder, name, **QUIET) is not None


def copy_processor_files(model: str, folder: Path) -> None:
    """Copy the files about pictures of a model's folder (or hub name) beside its trained weights."""
    for name in PROCESSOR_FILES:
        file = cached_file(model, name, **QUIET)
        if file is not None and not (folder / name).exists():
            shutil.copyfile(file, folder / name)


def describe(*processors: Any, **more: Any) -> str:
    """All settings of processors, as text."""
    return json.dumps([processor.to_dict() for processor in processors] + [more], sort_keys=True, default=str)
