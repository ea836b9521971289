"""Images and videos that are made to exhaust memory, to hang a reader, or to make it open other files."""

from __future__ import annotations

import io
import os
import random
import resource
import struct
import zlib

import PIL.Image
import pytest

from burnish.errors import UserError
from burnish.media import InvalidMedia, read_image, read_video

from .attacks import attack

KIND = "checkpoints and files"


def png(width: int, height: int, pixels: bytes = b"", *more: tuple[bytes, bytes]) -> bytes:
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), *more]
    chunks += [(b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
    packed = (struct.pack(">I", len(b)) + name + b + struct.pack(">I", zlib.crc32(name + b)) for name, b in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


@attack(KIND, "an image of a few bytes that says it has billions of pixels")
@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF", "TIFF"])
def test_decompression_bombs(form):
    buffer = io.BytesIO()
    PIL.Image.new("1", (4, 4)).save(buffer, form)
    content = buffer.getvalue()
    if form == "PNG":
        content = png(200_000, 200_000)
    elif form == "BMP":
        content = content[:18] + struct.pack("<ii", 200_000, 200_000) + content[26:]
    elif form == "GIF":
        content = content[:6] + struct.pack("<HH", 65535, 65535) + content[10:]
    else:
        for tag, number in ((256, 200_000), (257, 200_000)):  # ImageWidth, ImageLength
            at = next(at for at in range(8, len(content), 2) if struct.unpack_from("<H", content, at)[0] == tag)
            content = content[: at + 2] + struct.pack("<HII", 4, 1, number) + content[at + 12 :]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidMedia, match=r"row 1: .*pixels"):
        read_image(content, "row 1")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@attack(KIND, "an image with compressed text that expands without end")
def test_text_chunks_are_bounded():
    bomb = (b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2**28)))
    with pytest.raises(InvalidMedia, match="row 1: corrupt image"):
        read_image(png(1, 1, b"\0\0\0\0", bomb), "row 1")


@attack(KIND, "a video whose frames together have no bound")
def test_animations_without_end():
    frames = [PIL.Image.new("RGB", (2, 2), (90 * number, 0, 0)) for number in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=10)
    content = buffer.getvalue()
    frame = content[content.rindex(b"\x21\xf9\x04") : -1]
    with pytest.raises(InvalidMedia, match=r"row 1: 25,003 frames of 2x2 pixels; the limit is"):
        read_video(content[:-1] + frame * 25_000 + b";", "row 1")
    large = content[:6] + struct.pack("<HH", 8000, 8000) + content[10:-1] + frame * 300 + b";"
    with pytest.raises(InvalidMedia, match=r"row 1: 303 frames of 8000x8000 pixels; the limit is"):
        read_video(large, "row 1")


@attack(KIND, "a row that names a pipe, a device or a folder as its image")
def test_only_regular_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(InvalidMedia, match=r"row 1: .*not a regular file"):
            read_image(str(name), "row 1")


@attack(KIND, "an image or video in a format that runs programs or opens other files")
@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(/etc/passwd) run\n",
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    ],
)
def test_formats_that_refer_to_others(content):
    for read in (read_image, read_video):
        with pytest.raises(InvalidMedia, match=r"row 1: not an? (image|video) in a known format"):
            read(content, "row 1")


@attack(KIND, "a picture of a tool or of a model that names a file or URL")
def test_what_a_model_wrote_names_no_file(tmp_path):
    PIL.Image.new("RGB", (9, 9)).save(tmp_path / "private.png")
    for value in (str(tmp_path / "private.png"), {"url": f"file://{tmp_path}/private.png"}, "http://127.0.0.1/a.png"):
        with pytest.raises(UserError, match="only the picture itself is taken here"):
            read_image(value, "a tool's result", local_files=False)


@attack(KIND, "images and animations with random damage")
@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"])
def test_damaged_files(form):
    picture = PIL.Image.frombytes("RGB", (24, 20), random.Random(0).randbytes(24 * 20 * 3))
    buffer = io.BytesIO()
    more = {"save_all": True, "append_images": [picture.rotate(90)]} if form in ("GIF", "WEBP") else {}
    picture.save(buffer, form, **more)
    rng, refused = random.Random(form), 0
    for _ in range(60):
        content = bytearray(buffer.getvalue())
        for _ in range(rng.choice((1, 4, 16))):
            content[rng.randrange(min(len(content), rng.choice((40, 10**6))))] = rng.randrange(256)
        for read in (read_image, read_video) if more else (read_image,):
            try:
                read(bytes(content), "row 1")
            except InvalidMedia as error:  # and nothing else
                refused += 1
                assert str(error).startswith("row 1: ")
    assert refused > 0
