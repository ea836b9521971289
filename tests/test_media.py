"""Every form of images and videos, and every fault of one, through the bounded readers."""

import base64
import io
import os
import struct
import sys
import threading
import zlib
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import fsspec
import numpy as np
import PIL.Image
import pytest

from burnish.errors import UserError
from burnish.media import InvalidMedia, MediaLimits, read_image, read_video
from burnish.media.source import Origin
from burnish.media.video import Sampling

PIXELS = (np.arange(12 * 20 * 3) % 251).astype(np.uint8).reshape(12, 20, 3)
PICTURE = PIL.Image.fromarray(PIXELS)


def encoded(image=PICTURE, form="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


PNG = encoded()
BASE64 = base64.b64encode(PNG).decode()


def pixels(image):
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize(
    "value",
    [
        PNG,
        bytearray(PNG),
        PICTURE,
        PIXELS,
        BASE64,
        f"data:image/png;base64,{BASE64}",
        {"bytes": PNG, "path": "lost.png"},
        {"image": PNG},
        {"type": "image", "image": f"data:image/png;base64,{BASE64}", "text": None},
        {"base64": BASE64},
        {"url": f"data:image/png;base64,{BASE64}"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}", "detail": "auto"}},
        {"image": {"bytes": PNG, "path": None}},
    ],
)
def test_forms_of_an_image(value):
    assert np.array_equal(pixels(read_image(value, "row 1")), PIXELS)


def test_images_in_files(tmp_path):
    (tmp_path / "pictures").mkdir()
    path = tmp_path / "pictures" / "one.png"
    path.write_bytes(PNG)
    values = (str(path), path, f"file://{path}", {"path": str(path), "bytes": None})
    assert all(np.array_equal(pixels(read_image(value, "row 1")), PIXELS) for value in values)
    relative = read_image("pictures/one.png", "row 1", folder=str(tmp_path))
    assert np.array_equal(pixels(relative), PIXELS)
    with pytest.raises(InvalidMedia, match=r"row 1: cannot read .*nowhere.png.*No such file"):
        read_image("nowhere.png", "row 1", folder=str(tmp_path))


def test_images_on_remote_storage():
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe_file("/pictures/one.png", PNG)
    try:
        assert np.array_equal(pixels(read_image("memory://pictures/one.png", "row 1")), PIXELS)
        assert np.array_equal(pixels(read_image("one.png", "row 1", folder="memory://pictures")), PIXELS)
        with pytest.raises(InvalidMedia, match=r"no such file: memory://pictures/two\.png"):
            read_image("two.png", "row 1", folder="memory://pictures")
        with pytest.raises(InvalidMedia, match="the limit is 10"):
            read_image("memory://pictures/one.png", "row 1", limits=MediaLimits(image_bytes=10))
    finally:
        filesystem.store.clear()


class Pictures(BaseHTTPRequestHandler):
    def do_GET(self):
        status = {"/one.png": 200, "/gone.png": 404, "/moved.png": 302}.get(self.path, 500)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/one.png")
        self.send_header("Content-Length", str(len(PNG) if status == 200 else 0))
        self.end_headers()
        self.wfile.write(PNG if status == 200 else b"")

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pictures)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_images_by_url(url):
    assert np.array_equal(pixels(read_image(f"{url}/one.png", "row 1")), PIXELS)
    assert np.array_equal(pixels(read_image({"image_url": {"url": f"{url}/one.png"}}, "row 1")), PIXELS)
    with pytest.raises(InvalidMedia, match="HTTP status 404"):
        read_image(f"{url}/gone.png", "row 1")
    with pytest.raises(InvalidMedia, match="exceeds"):
        read_image(f"{url}/one.png", "row 1", limits=MediaLimits(image_bytes=10))


@pytest.mark.parametrize(("path", "problem"), [("moved.png", "redirects are not followed"), ("broken", "status 500")])
def test_a_network_that_fails_is_not_the_fault_of_a_row(path, problem, url):
    with pytest.raises(UserError, match=problem) as caught:
        read_image(f"{url}/{path}", "row 1")
    assert not isinstance(caught.value, InvalidMedia)


@pytest.mark.parametrize(
    "value", ["secret.png", "http://127.0.0.1:9/x.png", "s3://bucket/x", {"path": "/etc/hostname"}]
)
def test_models_and_tools_cannot_name_files(value):
    with pytest.raises(InvalidMedia, match="only the picture itself is taken here"):
        read_image(value, "a tool's result", local_files=False)
    assert read_image(BASE64, "a tool's result", local_files=False).size == (20, 12)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"", "the image has no bytes"),
        (b"no picture", "not an image in a known format"),
        (PNG[: len(PNG) // 2], "corrupt image"),
        (encoded(form="JPEG")[:300], "corrupt image"),
        (PNG[:60] + bytes(100) + PNG[160:], "corrupt image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image in a known format"),
        (None, "the image is a NoneType"),
        (7, "the image is a int"),
        ("", "the path or URL is empty"),
        ("a\0b", "null"),
        ("x" * 5000, "neither a path, a URL nor base64"),
        ({"nothing": 1}, "the image is a mapping of nothing"),
        ({"image": {"image": {"image": {"image": PNG}}}}, "a mapping inside 4 others"),
        ({"base64": "!!"}, "invalid base64"),
        ("data:image/png;base64", "a data: URL without a comma"),
        ("data:image/png;base64,@@@@", "invalid base64"),
        (PIXELS.astype(np.float32), "an array 12x20x3 of float32"),
        (PIXELS[:, :, :2], "an array 12x20x2 of uint8"),
        (PIXELS[:0], "20x0 pixels"),
        (PIL.Image.new("F", (4, 4)), "floats"),
        (PIL.Image.new("I", (4, 4), 2**20), "more than 16 bits"),
    ],
)
def test_bad_images_are_named(value, problem):
    with pytest.raises(InvalidMedia, match=f"data.image_key: row 3: .*{problem}"):
        read_image(value, "row 3", key="data.image_key")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_pixel": 4}, "'max_pixel', which is not supported"),
        ({"detail": "low"}, "detail='low'"),
        ({"max_pixels": -1}, "max_pixels must be a number above 0"),
        ({"resized_width": 8}, "only one of resized_width and resized_height"),
    ],
)
def test_options_that_would_be_ignored_are_refused(options, problem):
    with pytest.raises(UserError, match=problem) as caught:
        read_image({"image": PNG} | options, "row 3")
    assert not isinstance(caught.value, InvalidMedia)


def test_sizes_that_a_row_asks_for():
    assert read_image({"image": PNG, "resized_width": 8, "resized_height": 6}, "row").size == (8, 6)
    assert read_image({"image": PNG, "max_pixels": 60}, "row").size == (10, 6)
    assert read_image({"image": PNG, "min_pixels": 960}, "row").size == (40, 24)
    assert read_image({"image": PNG, "max_pixels": 10_000, "min_pixels": 1}, "row").size == (20, 12)
    with pytest.raises(InvalidMedia, match="the limit is"):
        read_image({"image": PNG, "resized_width": 2**20, "resized_height": 2**20}, "row")


def png_of(width, height, rows=b""):
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("width", "height"), [(9000, 9000), (60_000, 60_000), (2**31 - 1, 2)])
def test_decompression_bombs_are_refused_before_decoding(width, height, monkeypatch):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", None)  # Pillow's own limit does not matter
    with pytest.raises(InvalidMedia, match=rf"{width}x{height} pixels; the limit is"):
        read_image(png_of(width, height), "row 1")


def test_the_limits_of_pillow_are_not_changed():
    before = PIL.Image.MAX_IMAGE_PIXELS
    with pytest.raises(InvalidMedia, match=r"decompression bomb|pixels; the limit"):
        read_image(png_of(60_000, 60_000), "row 1")
    read_image(PNG, "row 1")
    assert before == PIL.Image.MAX_IMAGE_PIXELS


def test_an_image_without_pixels():
    with pytest.raises(InvalidMedia, match="row 1"):
        read_image(png_of(0, 5), "row 1")


@pytest.mark.parametrize("name", ["pipe", "folder", "socket", "device"])
def test_only_regular_files_are_opened(name, tmp_path):
    path = tmp_path / name
    if name == "pipe":
        os.mkfifo(path)  # opening it would block
    elif name == "folder":
        path.mkdir()
    elif name == "device":
        path.symlink_to("/dev/zero")
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    with pytest.raises(InvalidMedia, match="not a regular file"):
        read_image(str(path), "row 1")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(orientation):
    stored = PIL.Image.new("RGB", (20, 12), "white")
    stored.paste((255, 0, 0), (0, 0, 10, 6))  # which corner is red tells how it was turned
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    image = read_image(encoded(stored, exif=exif.tobytes()), "row 1")
    assert image.size == ((20, 12) if orientation < 5 else (12, 20))
    corners = {"left top": (1, 1), "right top": (-2, 1), "right bottom": (-2, -2), "left bottom": (1, -2)}
    places = {name: (x % image.width, y % image.height) for name, (x, y) in corners.items()}
    red = [name for name, place in places.items() if image.getpixel(place) == (255, 0, 0)]
    expected = ["left top", "right top", "right bottom", "left bottom"] * 2
    turned = {5: "left top", 6: "right top", 7: "right bottom", 8: "left bottom"}
    assert red == [turned.get(orientation, expected[orientation - 1])]
    assert image.info == {}


def test_broken_exif_does_not_lose_a_picture():
    image = read_image(encoded(form="JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff\1\2\3"), "row 1")
    assert image.size == (20, 12)


def test_other_modes_become_rgb_always_in_the_same_way():
    gray = (np.arange(64) * 1024 % 2**16).astype(np.uint16).reshape(8, 8)
    sixteen = pixels(read_image(encoded(PIL.Image.fromarray(gray)), "row"))
    assert np.array_equal(sixteen, np.repeat((gray >> 8).astype(np.uint8)[:, :, None], 3, axis=2))
    transparent = PIL.Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    transparent.putpixel((1, 0), (255, 0, 0, 0))
    assert pixels(read_image(encoded(transparent), "row")).tolist() == [[[255, 0, 0], [255, 255, 255]]]
    palette = PIL.Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 9, 8, 7])
    palette.putpixel((1, 0), 1)
    assert pixels(read_image(encoded(palette), "row")).tolist() == [[[0, 0, 0], [9, 8, 7]]]
    assert pixels(read_image(encoded(palette, transparency=1), "row")).tolist() == [[[0, 0, 0], [255, 255, 255]]]
    cmyk = PIL.Image.new("CMYK", (1, 1), (255, 0, 0, 0))
    assert pixels(read_image(cmyk, "row")).tolist() == [[[0, 255, 255]]]
    assert pixels(read_image(PIL.Image.new("1", (1, 1), 1), "row")).tolist() == [[[255, 255, 255]]]
    assert pixels(read_image(PIXELS[:, :, 0], "row")).shape == (12, 20, 3)


@pytest.mark.parametrize("form", ["JPEG", "WEBP", "GIF", "BMP", "TIFF", "PNG"])
def test_formats(form):
    image = read_image(encoded(form=form), "row")
    assert image.size == (20, 12)
    assert np.array_equal(pixels(image), pixels(read_image(encoded(form=form), "row")))


FRAMES = [PIL.Image.new("RGB", (8, 6), (20 * number, 0, 0)) for number in range(10)]


def reds(video):
    return [frame.getpixel((0, 0))[0] // 20 for frame in video.frames]


@pytest.mark.parametrize(
    "value",
    [
        FRAMES,
        tuple(FRAMES),
        np.stack([np.asarray(frame) for frame in FRAMES]),
        [encoded(frame) for frame in FRAMES],
        {"video": [{"bytes": encoded(frame), "path": None} for frame in FRAMES], "type": "video"},
        {"frames": FRAMES},
    ],
)
def test_lists_of_frames(value):
    video = read_video(value, "row 1")
    assert reds(video) == list(range(10)) and video.timestamps is None


def test_times_of_listed_frames():
    assert read_video({"video": FRAMES, "fps": 4}, "row").timestamps == [number / 4 for number in range(10)]
    stamps = [0.0, 1.5, 2.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 11.0]
    video = read_video({"video": FRAMES, "timestamps": stamps, "max_frames": 4}, "row")
    assert reds(video) == [0, 3, 6, 9] and video.timestamps == [0.0, 4.0, 7.0, 11.0]


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_animations_need_no_extra(form):
    options = {"save_all": True, "append_images": FRAMES[1:], "duration": 250, "disposal": 1}
    if form == "WEBP":
        options = {"save_all": True, "append_images": FRAMES[1:], "duration": 250, "lossless": True}
    content = encoded(FRAMES[0], form, **options)
    video = read_video({"bytes": content, "fps": 4}, "row")
    assert reds(video) == list(range(10))
    assert video.timestamps == pytest.approx([number / 4 for number in range(10)])
    assert len(read_video(content, "row").frames) == 4  # 2.5 seconds at two frames a second, an even number
    part = read_video({"bytes": content, "video_start": 1.0, "video_end": 1.75, "fps": 4}, "row")
    assert reds(part) == [4, 5, 6, 7]
    assert reds(read_video({"bytes": content, "nframes": 3}, "row")) == [0, 4, 9]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "a video without frames"),
        ([FRAMES[0], PICTURE], "several sizes"),
        ([FRAMES[0], b"x"], "frame 1: not an image"),
        ({"video": FRAMES, "timestamps": [1.0]}, "1 timestamps for 10 frames"),
        ({"video": FRAMES[:2], "timestamps": [2.0, 1.0]}, "must not be negative or decrease"),
        (b"no video", "not a video in a known format"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:9\nfile:///etc/passwd\n", "not a video in a known format"),
        ({"bytes": encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), "nframes": 99}, "nframes=99"),
        (encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:])[:44], "corrupt"),
    ],
)
def test_bad_videos_are_named(value, problem):
    with pytest.raises(InvalidMedia, match=f"row 3.*{problem}"):
        read_video(value, "row 3")


def test_videos_are_bounded():
    with pytest.raises(InvalidMedia, match="10 frames; the limit is 5"):
        read_video(FRAMES, "row", limits=MediaLimits(frames=5))
    with pytest.raises(InvalidMedia, match="together at most 300 are read"):
        read_video(FRAMES, "row", limits=MediaLimits(video_pixels=300))
    slow = encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:], duration=60_000)
    with pytest.raises(InvalidMedia, match="600 seconds long; the limit is 500"):
        read_video(slow, "row", limits=MediaLimits(seconds=500))
    with pytest.raises(InvalidMedia, match="the limit is 20"):
        read_video(slow, "row", limits=MediaLimits(video_bytes=20))
    small = read_video({"video": FRAMES, "max_pixels": 12}, "row")
    assert small.frames[0].size == (4, 3)
    assert read_video({"video": FRAMES, "total_pixels": 120}, "row").frames[0].size == (4, 3)


def test_options_of_a_video_that_would_be_ignored_are_refused():
    for options, problem in [({"fsp": 2}, "'fsp'"), ({"video_start": 1.0}, "video_start needs a video file")]:
        with pytest.raises(UserError, match=problem):
            read_video({"video": FRAMES} | options, "row")


def test_video_files_need_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=r"row 3: video files require PyAV.*\[video\]") as caught:
        read_video(b"\0\0\0\x20ftypisom" + bytes(100), "row 3")
    assert not isinstance(caught.value, InvalidMedia)


def test_sampling_of_a_file():
    origin = Origin("row")
    times = [number / 30 for number in range(300)]  # ten seconds
    assert len(Sampling().choose(times, origin)) == 20
    assert len(Sampling(fps=0.1).choose(times, origin)) == 4
    assert len(Sampling(max_frames=7).choose(times, origin)) == 6
    assert Sampling(nframes=3).choose(times, origin) == [0, 150, 299]
    assert Sampling(start=2.0, end=3.0, nframes=31).choose(times, origin) == list(range(60, 91))
    assert Sampling().choose([5.0], origin) == [0]
    with pytest.raises(InvalidMedia, match="no frame between second 20"):
        Sampling(start=20.0).choose(times, origin)


class StandInFrame:
    """A frame as PyAV decodes it."""

    def __init__(self, number):
        self.pts, self.time_base = number * 512 + 1024, Fraction(1, 15360)  # 30 a second, from second 1/15 on
        self.width, self.height = 16, 12
        self.number, self.rotation, self.is_discard = number, self.turned, number < self.num_cut

    turned, num_cut = 0, 0

    def to_image(self):
        image = PIL.Image.new("RGB", (self.width, self.height), (self.number, 0, 0))
        image.putpixel((self.width - 1, 0), (self.number, 255, 0))
        return image


class StandInContainer:
    """PyAV is not installed everywhere: its container, with frames that come in decoding order."""

    num_frames, num_decoded, opened = 90, 90, ()

    def __init__(self, file, **options):
        assert file.read(12)[4:8] == b"ftyp"
        type(self).opened = (*self.opened, options["format"])
        codec = SimpleNamespace(width=16, height=12)
        self.streams = SimpleNamespace(video=[SimpleNamespace(codec_context=codec)] if self.num_frames else [])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def demux(self, stream):
        for number in sorted(range(self.num_frames), key=lambda number: number ^ 1):
            yield StandInFrame(number)
        yield SimpleNamespace(pts=None)  # the packet that flushes

    def decode(self, video):
        yield from map(StandInFrame, range(self.num_decoded))


MP4 = bytes(4) + b"ftypisom" + bytes(50)


@pytest.fixture
def av(monkeypatch):
    container = type("Container", (StandInContainer,), {})
    monkeypatch.setitem(sys.modules, "av", SimpleNamespace(open=container))
    return container


def test_frames_of_a_file_are_chosen_by_time(av):
    video = read_video({"bytes": MP4, "path": "x.mp4"}, "row 1")
    assert [frame.getpixel((0, 0))[0] for frame in video.frames] == [0, 18, 36, 53, 71, 89]
    assert video.timestamps == pytest.approx([number / 30 for number in (0, 18, 36, 53, 71, 89)])
    assert set(av.opened) == {"mp4"}  # never guessed from the content
    assert len(read_video({"video": MP4, "nframes": 1}, "row").frames) == 1
    assert read_video({"video": MP4, "max_pixels": 48}, "row").frames[0].size == (8, 6)


@pytest.mark.parametrize(
    ("turned", "size", "corner"),
    [(0, (16, 12), (15, 0)), (90, (12, 16), (0, 0)), (-90, (12, 16), (11, 15)), (180, (16, 12), (0, 11))],
)
def test_frames_are_upright(turned, size, corner, av, monkeypatch):
    monkeypatch.setattr(StandInFrame, "turned", turned)  # degrees, counterclockwise
    frame = read_video(MP4, "row").frames[0]
    assert frame.size == size and frame.getpixel(corner)[1] == 255


def test_frames_that_are_cut_away_are_not_chosen(av, monkeypatch):
    monkeypatch.setattr(StandInFrame, "num_cut", 30)
    video = read_video({"video": MP4, "nframes": 2}, "row")
    assert [frame.getpixel((0, 0))[0] for frame in video.frames] == [30, 89] and video.timestamps[0] == 0


@pytest.mark.parametrize(
    ("change", "limits", "problem"),
    [
        ({"num_frames": 0}, {}, "the file has no video stream"),
        ({"num_decoded": 40}, {}, "only 3 of 6 frames can be decoded"),
        ({}, {"decoded_frames": 50}, "more than 50 frames"),
        ({}, {"seconds": 2}, "3 seconds long; the limit is 2"),
        ({}, {"pixels": 100}, "16x12 pixels"),
        ({}, {"video_pixels": 500}, "together at most 500"),
    ],
)
def test_bad_video_files_are_named(change, limits, problem, av):
    for name, value in change.items():
        setattr(av, name, value)
    with pytest.raises(InvalidMedia, match=f"row 3: .*{problem}"):
        read_video(MP4, "row 3", limits=MediaLimits(**limits))
