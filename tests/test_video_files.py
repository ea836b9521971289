"""Video files as encoders write them, read by PyAV."""

import io

import numpy as np
import pytest

from burnish.media import InvalidMedia, MediaLimits, read_video

pytestmark = pytest.mark.long  # PyAV is installed for `make test-all`

FRAMES, RATE = 24, 8


def film(codec: str, form: str, frames: int = FRAMES) -> bytes:
    """The left half grows blue, the right half red: ten more levels in each frame."""
    import av

    content = io.BytesIO()
    with av.open(content, mode="w", format=form) as container:
        stream = container.add_stream(codec, rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(frames):
            pixels = np.zeros((48, 64, 3), np.uint8)
            pixels[:, :32], pixels[:, 32:] = (0, 0, 10 * number), (10 * number, 0, 0)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return content.getvalue()


FILES = [("libx264", "mp4"), ("mpeg4", "mp4"), ("libvpx-vp9", "webm"), ("libx264", "matroska")]


@pytest.mark.parametrize(("codec", "form"), FILES)
def test_frames_and_times_of_a_file(codec, form):
    video = read_video({"bytes": film(codec, form), "nframes": 6}, "row 1")
    assert video.timestamps == pytest.approx([number / RATE for number in (0, 5, 9, 14, 18, 23)], abs=2e-3)
    for frame, second in zip(video.frames, video.timestamps, strict=True):
        level = 10 * second * RATE
        (*_, blue), (red, *_) = frame.getpixel((8, 24)), frame.getpixel((56, 24))
        assert frame.size == (64, 48) and abs(red - level) < 20 and abs(blue - level) < 20


@pytest.mark.parametrize(("codec", "form"), FILES)
def test_broken_files_are_named(codec, form):
    content = film(codec, form)
    cut, overwritten = content[: len(content) // 2], content[:40] + bytes(len(content) - 40)
    for broken in (cut, overwritten) if form == "mp4" else (overwritten,):
        with pytest.raises(InvalidMedia, match="row 2: "):
            read_video({"bytes": broken, "nframes": 6}, "row 2")


def test_a_webm_that_ends_early_is_a_shorter_one():
    """Its format has no index that must be there."""
    content = film("libvpx-vp9", "webm")
    assert read_video({"bytes": content[: len(content) // 2], "nframes": 2}, "row").timestamps[-1] < (FRAMES - 1) / RATE


def test_limits_hold_for_files():
    content = film("libx264", "mp4")
    for limits, problem in (({"seconds": 2}, "the limit is 2"), ({"decoded_frames": 5}, "more than 5 frames")):
        with pytest.raises(InvalidMedia, match=problem):
            read_video(content, "row 3", limits=MediaLimits(**limits))
