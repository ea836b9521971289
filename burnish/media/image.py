"""Images: any form that data files, tools and environments use -> an RGB picture, upright and within limits.

The only file of the package, besides `video`, that imports Pillow.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.media.source import LIMITS, MediaLimits, Origin, encoded_bytes, unwrap

if TYPE_CHECKING:
    from PIL.Image import Image

# Not among them: formats that run other programs (EPS) or that no data set of pictures uses.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")
DESCRIPTIONS = frozenset({"type", "width", "height", "format", "mode", "name", "file_name", "id"})  # no instructions
SIZES = ("min_pixels", "max_pixels", "resized_width", "resized_height")
BACKGROUND = (255, 255, 255)  # behind transparent pixels


@dataclass(frozen=True)
class Sizing:
    """The size that a row gives its picture, with the names of qwen_vl_utils."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    resized_width: int | None = None
    resized_height: int | None = None

    @property
    def is_set(self) -> bool:
        return any(vars(self).values())

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height with the same aspect ratio, unless both sides are given."""
        if self.resized_width and self.resized_height:
            return self.resized_width, self.resized_height
        area = width * height
        if self.max_pixels and area > self.max_pixels:
            scale = math.sqrt(self.max_pixels / area)
            return max(1, math.floor(width * scale)), max(1, math.floor(height * scale))
        if self.min_pixels and area < self.min_pixels:
            scale = math.sqrt(self.min_pixels / area)
            return math.ceil(width * scale), math.ceil(height * scale)
        return width, height

    def apply(self, image: Image, origin: Origin) -> Image:
        from PIL.Image import Resampling

        size = self.size(*image.size)
        if size == image.size:
            return image
        origin.check_pixels(*size)
        return image.resize(size, Resampling.BICUBIC)


def read_image(
    value: Any,
    where: str,
    *,
    key: str | None = None,
    folder: str = "",
    limits: MediaLimits = LIMITS,
    local_files: bool = True,
) -> Image:
    """An RGB image from encoded bytes, a path, a URL, base64, a Pillow image, an array, or a mapping of one of these.

    `where` names the row in errors; `folder` is that of relative paths. InvalidMedia for a fault of the image. With
    `local_files=False`, paths and URLs are refused: for values that a model or a tool wrote.
    """
    return image_of(value, Origin(where, key, folder, limits, local_files))


def image_of(value: Any, origin: Origin) -> Image:
    value, options = unwrap(value, "image", origin)
    sizing = read_sizing(options, "image", origin)
    return sizing.apply(_read(value, origin), origin)


def image_bytes(value: Any, where: str, folder: str = "") -> bytes:
    """An image as a file: its own bytes if it has any, else PNG. It is decoded once, so that a bad one is found."""
    origin = Origin(where, folder=folder)
    inner, options = unwrap(value, "image", origin)
    picture = _read(inner, origin)
    if isinstance(inner, str | bytes | bytearray | memoryview) and not read_sizing(options, "image", origin).is_set:
        return encoded_bytes(inner, "image", origin)
    buffer = io.BytesIO()
    read_sizing(options, "image", origin).apply(picture, origin).save(buffer, "PNG")
    return buffer.getvalue()


def read_sizing(options: Mapping[str, Any], kind: str, origin: Origin) -> Sizing:
    """The options of a picture. One that is not understood is an error, because it would be ignored."""
    if str(options.get("detail", "auto")) != "auto":
        problem = f"the {kind} asks for detail={options['detail']!r}, which is not supported (max_pixels is)"
        raise origin.failed(problem)
    unknown = sorted(options.keys() - DESCRIPTIONS - {"detail", *SIZES})
    if unknown:
        raise origin.failed(f"the {kind} has {unknown[0]!r}, which is not supported; {', '.join(SIZES)} are")
    sizes = {name: positive(options, name, int, origin) for name in SIZES}
    if (sizes["resized_width"] is None) != (sizes["resized_height"] is None):
        raise origin.failed(f"the {kind} has only one of resized_width and resized_height")
    return Sizing(**sizes)


def positive(options: Mapping[str, Any], name: str, kind: type, origin: Origin) -> Any:
    """A number above 0, or None."""
    value = options.get(name)
    if value is None:
        return None
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):
        number = 0
    if isinstance(value, bool) or not 0 < number < math.inf:
        raise origin.failed(f"{name} must be a number above 0, not {value!r}")
    return number


def _read(value: Any, origin: Origin) -> Image:
    from PIL.Image import Image

    if isinstance(value, Image):
        origin.check_pixels(*value.size)
        return rgb(_loaded(value, origin), origin)
    if isinstance(value, np.ndarray):
        return rgb(_from_array(value, origin), origin)
    return rgb(_loaded(open_image(encoded_bytes(value, "image", origin), origin), origin), origin)


def open_image(content: bytes, origin: Origin) -> Image:
    """An image whose pixels are not decoded yet; its size is within the limits."""
    import PIL.Image

    PIL.Image.init()  # else rarer formats are not registered
    try:
        image = PIL.Image.open(io.BytesIO(content), formats=[name for name in FORMATS if name in PIL.Image.OPEN])
    except PIL.Image.DecompressionBombError as error:  # far beyond the limit below, which holds whatever Pillow's is
        raise origin.invalid(str(error)) from error
    except PIL.UnidentifiedImageError as error:
        raise origin.invalid(f"not an image in a known format ({', '.join(FORMATS)})") from error
    except Exception as error:  # a decoder may raise anything on a file that is made to break it
        raise origin.invalid(f"corrupt image: {type(error).__name__}: {error}") from error
    origin.check_pixels(*image.size)
    return image


def _loaded(image: Image, origin: Origin) -> Image:
    """The image with its pixels decoded, and turned as its EXIF orientation says."""
    try:
        image.load()
    except Exception as error:  # as above
        raise origin.invalid(f"corrupt image: {type(error).__name__}: {error}") from error
    origin.check_pixels(*image.size)
    turn = _orientations().get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _orientation(image: Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # its EXIF is broken, its pixels are not: shown as it is stored, like everywhere else
        return 1


def _orientations() -> dict[int, Any]:
    from PIL.Image import Transpose as T

    turns = (T.FLIP_LEFT_RIGHT, T.ROTATE_180, T.FLIP_TOP_BOTTOM, T.TRANSPOSE, T.ROTATE_270, T.TRANSVERSE, T.ROTATE_90)
    return dict(enumerate(turns, 2))


def _from_array(array: np.ndarray, origin: Origin) -> Image:
    """[height, width], or [height, width, 1, 3 or 4], of uint8."""
    import PIL.Image

    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        shape = "x".join(map(str, array.shape))
        raise origin.invalid(f"an array {shape} of {array.dtype}; expected height x width (x 1, 3 or 4) of uint8")
    origin.check_pixels(array.shape[1], array.shape[0])
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return PIL.Image.fromarray(np.ascontiguousarray(array))


def rgb(image: Image, origin: Origin) -> Image:
    """The same pixels as RGB: transparent ones on white, 16 bits scaled to 8, and no metadata."""
    import PIL.Image

    try:
        if image.mode == "F":
            raise origin.invalid("an image of floats has no defined range")
        if image.mode.startswith("I"):
            image = PIL.Image.fromarray(_eight_bits(np.asarray(image), origin))
        if image.has_transparency_data:
            ground = PIL.Image.new("RGBA", image.size, (*BACKGROUND, 255))
            image = PIL.Image.alpha_composite(ground, image.convert("RGBA"))
        converted = image.copy() if image.mode == "RGB" else image.convert("RGB")
    except (ValueError, OSError, KeyError) as error:
        raise origin.invalid(f"cannot convert an image of mode {image.mode} to RGB: {error}") from error
    converted.info = {}
    return converted


def _eight_bits(array: np.ndarray, origin: Origin) -> np.ndarray:
    """The high byte of 16-bit pixels."""
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 2**16:
        raise origin.invalid("an image with more than 16 bits per pixel has no defined range")
    return (array.astype(np.int32) >> 8).astype(np.uint8)
