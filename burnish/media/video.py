"""Videos: files, animated images and lists of frames -> frames and their times. The only file that imports PyAV.

The frames are sampled here, as qwen_vl_utils does: a processor takes all of them.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from burnish.errors import UserError, install_extra
from burnish.media.image import SIZES, Sizing, image_of, open_image, positive, read_sizing, rgb
from burnish.media.source import LIMITS, MediaLimits, Origin, encoded_bytes, sniffed, unwrap

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_FPS = 2.0
MIN_FRAMES = 4
FRAME_PIXELS = 768 * 28 * 28  # frames of a file are scaled down to this, unless the row has max_pixels
# Names of PyAV's readers. A reader is always named: playlists, which refer to other files, have none here.
CONTAINERS = {"mp4": "mp4", "matroska": "matroska", "avi": "avi", "ogg": "ogg", "mpegts": "mpegts", "mpeg": "mpeg"}
ANIMATIONS = ("gif", "webp", "png")
FRAME_MS = 100  # of an animation that gives none
SAMPLING = ("fps", "nframes", "min_frames", "max_frames", "video_start", "video_end")
OPTIONS = (*SAMPLING, *SIZES, "total_pixels", "timestamps", "sample_fps", "raw_fps")


@dataclass(frozen=True)
class Video:
    """Decoded frames, and the seconds at which they were taken."""

    frames: Sequence[Image]
    timestamps: Sequence[float] | None = None  # None: not known, the family's processor assumes a rate


@dataclass(frozen=True)
class Sampling:
    """Which frames of a video are kept."""

    fps: float = DEFAULT_FPS
    nframes: int | None = None  # exactly so many
    min_frames: int = MIN_FRAMES
    max_frames: int = LIMITS.frames
    start: float = 0.0  # seconds
    end: float | None = None

    def choose(self, times: Sequence[float], origin: Origin) -> list[int]:
        """Indices of the frames to keep: evenly spaced, an even number of them unless `nframes` is given."""
        first = times[0] if times else 0.0
        until = float("inf") if self.end is None else self.end
        inside = [index for index, time in enumerate(times) if self.start <= time - first <= until]
        if not inside:
            raise origin.invalid(f"no frame between second {self.start:g} and {until:g}")
        total = len(inside)
        if self.nframes is not None:
            if self.nframes > total:
                raise origin.invalid(f"nframes={self.nframes}, but the video has {total} frames")
            count = self.nframes
        else:
            span = times[inside[-1]] - times[inside[0]]
            seconds = span * total / (total - 1) if total > 1 else 0.0  # the last frame is shown too
            count = min(max(round(seconds * self.fps), self.min_frames), self.max_frames, total)
            count -= count % 2 if count > 1 else 0
        if count > origin.limits.frames:
            raise origin.invalid(f"{count} frames; the limit is {origin.limits.frames}")
        return [inside[round(position)] for position in np.linspace(0, total - 1, count)]


def read_video(
    value: Any,
    where: str,
    *,
    key: str | None = None,
    folder: str = "",
    limits: MediaLimits = LIMITS,
    local_files: bool = True,
) -> Video:
    """A video from a file (bytes, path, URL, base64), a list or array of frames, or a mapping of one of these.

    A mapping may also say which frames are kept (fps, nframes, min_frames, max_frames, video_start, video_end) and
    their size. Parameters and errors are those of `read_image`.
    """
    origin = Origin(where, key, folder, limits, local_files)
    value, options = unwrap(value, "video", origin)
    times = options.get("timestamps")
    rate = positive(options, "sample_fps", float, origin) or positive(options, "raw_fps", float, origin)
    total_pixels = positive(options, "total_pixels", int, origin)
    sizing = read_sizing({n: v for n, v in options.items() if n not in OPTIONS or n in SIZES}, "video", origin)
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 4):
        rate = rate or positive(options, "fps", float, origin)
        return _from_frames(value, _frame_times(times, rate, len(value), origin), options, sizing, total_pixels, origin)
    if times is not None:
        raise origin.failed("timestamps belong to a list of frames; a video file has its own")
    content = encoded_bytes(value, "video", origin)
    sizing = sizing if sizing.is_set else Sizing(max_pixels=FRAME_PIXELS)
    sampling, form = _sampling(options, origin), sniffed(content)
    if form in ANIMATIONS:
        return _from_animation(content, sampling, sizing, total_pixels, origin)
    if form not in CONTAINERS:
        known = ", ".join((*CONTAINERS, *ANIMATIONS))
        raise origin.invalid(f"not a video in a known format ({known}), or a list of frames")
    return _from_file(content, CONTAINERS[form], sampling, sizing, total_pixels, origin)


def _sampling(options: Mapping[str, Any], origin: Origin) -> Sampling:
    start = options.get("video_start")
    chosen = {
        "fps": positive(options, "fps", float, origin),
        "nframes": positive(options, "nframes", int, origin),
        "min_frames": positive(options, "min_frames", int, origin),
        "max_frames": positive(options, "max_frames", int, origin),
        "start": positive(options, "video_start", float, origin) if start else None,
        "end": positive(options, "video_end", float, origin),
    }
    sampling = Sampling(**{name: value for name, value in chosen.items() if value is not None})
    return replace(sampling, max_frames=min(sampling.max_frames, origin.limits.frames))


def _frame_times(times: Any, rate: float | None, count: int, origin: Origin) -> list[float] | None:
    if times is None:
        return None if rate is None else [number / rate for number in range(count)]
    try:
        seconds = [float(time) for time in times]
    except (TypeError, ValueError) as error:
        raise origin.invalid(f"timestamps must be numbers: {error}") from error
    if len(seconds) != count:
        raise origin.invalid(f"{len(seconds)} timestamps for {count} frames")
    if not all(before <= after for before, after in itertools.pairwise(seconds)) or seconds[0] < 0:
        raise origin.invalid("timestamps must not be negative or decrease")
    return seconds


def _from_frames(
    values: Any,
    times: list[float] | None,
    options: Mapping[str, Any],
    sizing: Sizing,
    total_pixels: int | None,
    origin: Origin,
) -> Video:
    """Frames that are given one by one are all kept, unless the row says how many."""
    if len(values) == 0:
        raise origin.invalid("a video without frames")
    chosen = list(range(len(values)))
    most = positive(options, "nframes", int, origin) or positive(options, "max_frames", int, origin)
    window = [name for name in ("video_start", "video_end", "min_frames") if options.get(name) is not None]
    if window:
        raise origin.failed(f"{window[0]} needs a video file, not a list of frames")
    if most is not None and most < len(chosen):
        chosen = [round(position) for position in np.linspace(0, len(values) - 1, most)]
    if len(chosen) > origin.limits.frames:
        raise origin.invalid(f"{len(chosen)} frames; the limit is {origin.limits.frames}")
    sizing = _per_frame(sizing, total_pixels, len(chosen))
    frames: list[Image] = []
    for index in chosen:
        frame = image_of(values[index], replace(origin, where=f"{origin.where}, frame {index}"))
        frames.append(_checked(sizing.apply(frame, origin), frames, len(chosen), origin))
    return Video(frames, None if times is None else [times[index] for index in chosen])


def _per_frame(sizing: Sizing, total_pixels: int | None, count: int) -> Sizing:
    """The sizing of each of `count` frames that together have at most `total_pixels`."""
    if total_pixels is None:
        return sizing
    share = max(1, total_pixels // count)
    return replace(sizing, max_pixels=min(share, sizing.max_pixels or share))


def _checked(frame: Image, frames: Sequence[Image], count: int, origin: Origin) -> Image:
    """The frame, if it has the size of the others, and all together are within the limit."""
    if frames and frame.size != frames[0].size:
        raise origin.invalid(f"its frames have several sizes: {frames[0].size} and {frame.size}")
    if not frames and frame.width * frame.height * count > origin.limits.video_pixels:
        problem = f"{count} frames of {frame.width}x{frame.height} pixels; together at most"
        raise origin.invalid(f"{problem} {origin.limits.video_pixels:,} are read (max_pixels, max_frames)")
    return frame


def _from_animation(
    content: bytes, sampling: Sampling, sizing: Sizing, total_pixels: int | None, origin: Origin
) -> Video:
    """GIF, WebP or APNG, through Pillow."""
    image: Any = open_image(content, origin)
    frames: list[Image] = []
    try:
        count = int(getattr(image, "n_frames", 1))
        limits = origin.limits
        if count > limits.decoded_frames // 10 or count * image.width * image.height > limits.animation_pixels:
            problem = f"{count:,} frames of {image.width}x{image.height} pixels; the limit is"
            raise origin.invalid(
                f"{problem} {limits.decoded_frames // 10:,} frames, {limits.animation_pixels:,} pixels together"
            )
        times = [0.0]
        for number in range(count):
            image.seek(number)
            image.load()  # WebP knows a frame's duration once it is decoded
            times.append(times[-1] + max(float(image.info.get("duration", FRAME_MS)), 1.0) / 1000)
        _check_seconds(times[-1], origin)
        chosen = sampling.choose(times[:-1], origin)
        sizing = _per_frame(sizing, total_pixels, len(chosen))
        for number in chosen:
            image.seek(number)
            frames.append(_checked(sizing.apply(rgb(image, origin), origin), frames, len(chosen), origin))
    except UserError:
        raise
    except Exception as error:  # a decoder may raise anything on a file that is made to break it
        raise origin.invalid(f"corrupt animation: {type(error).__name__}: {error}") from error
    return Video(frames, [times[number] for number in chosen])


def _check_seconds(seconds: float, origin: Origin) -> None:
    if seconds > origin.limits.seconds:
        raise origin.invalid(f"{seconds:.0f} seconds long; the limit is {origin.limits.seconds:.0f}")


def _from_file(
    content: bytes, form: str, sampling: Sampling, sizing: Sizing, total_pixels: int | None, origin: Origin
) -> Video:
    """A video file, through PyAV: the times of all packets are read first, then the chosen frames are decoded."""
    try:
        import av
    except ImportError as error:
        problem = f"{origin.where}: video files require PyAV; lists of frames, GIF and WebP do not"
        raise UserError(problem, key=origin.key, hint=install_extra("video")) from error
    frames: list[Image] = []
    kept: list[float] = []
    try:
        with av.open(io.BytesIO(content), mode="r", format=form, metadata_errors="ignore") as container:
            times = _packet_times(container, origin)
        seconds = [float(time) for time in times]
        _check_seconds(seconds[-1] - seconds[0], origin)
        chosen = sampling.choose(seconds, origin)
        wanted = {times[index] for index in chosen}
        sizing = _per_frame(sizing, total_pixels, len(chosen))
        with av.open(io.BytesIO(content), mode="r", format=form, metadata_errors="ignore") as container:
            for frame in container.decode(video=0):
                if frame.pts is None or frame.time_base is None:
                    continue
                if (time := frame.pts * frame.time_base) in wanted:
                    origin.check_pixels(frame.width, frame.height)
                    picture = sizing.apply(_upright(frame), origin)
                    frames.append(_checked(picture, frames, len(chosen), origin))
                    kept.append(float(time) - seconds[0])
                if len(frames) == len(wanted):
                    break
    except UserError:
        raise
    except Exception as error:  # PyAV has an exception for each of FFmpeg's errors
        raise origin.invalid(f"corrupt video: {type(error).__name__}: {error}") from error
    if len(frames) < len(wanted):
        raise origin.invalid(f"corrupt video: only {len(frames)} of {len(wanted)} frames can be decoded")
    return Video(frames, kept)


def _upright(frame: Any) -> Image:
    """The picture of a PyAV frame, turned as the file says: phones store what they filmed sideways."""
    from PIL.Image import Transpose

    turns = {90: Transpose.ROTATE_90, 180: Transpose.ROTATE_180, 270: Transpose.ROTATE_270}  # counterclockwise, as its
    turn = turns.get(round(getattr(frame, "rotation", 0)) % 360)
    return frame.to_image() if turn is None else frame.to_image().transpose(turn)


def _packet_times(container: Any, origin: Origin) -> list[Fraction]:
    """When each frame is shown, in order, without decoding any."""
    if not container.streams.video:
        raise origin.invalid("the file has no video stream")
    stream = container.streams.video[0]
    origin.check_pixels(stream.codec_context.width, stream.codec_context.height)
    times: set[Fraction] = set()
    for packet in container.demux(stream):
        if packet.pts is not None and not getattr(packet, "is_discard", False):  # cut away by the file's edit list
            times.add(packet.pts * packet.time_base)
        if len(times) > origin.limits.decoded_frames:
            raise origin.invalid(f"more than {origin.limits.decoded_frames:,} frames")
    if not times:
        raise origin.invalid("a video without frames")
    return sorted(times)
