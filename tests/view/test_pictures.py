"""Pictures of trajectories in the viewer: shown from checked files, in pages and exports, and nothing else is."""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import zlib

import pytest
from PIL import Image

from burnish.log.folder import dump_rollouts
from burnish.view.api import NotFound, ViewApi
from burnish.view.export import export_page
from burnish.view.pictures import MAX_BYTES, MAX_MEDIA, media_of, read_picture
from burnish.view.runs import RunReader

from .test_server import asked, values

NAME = "ab" * 16 + ".png"
MEDIA = [{"kind": "image", "digest": "ab" * 16, "offset": 4, "num_tokens": 2, "files": [NAME]}]


def png(width: int = 8, height: int = 4) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(out, "PNG")
    return out.getvalue()


def claiming(width: int, height: int) -> bytes:
    """A small file that would be decoded to a huge picture."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


@pytest.fixture
def seen(run_folder, tools):
    """The run with a step whose trajectories show pictures."""
    (run_folder / "pictures").mkdir()
    (run_folder / "pictures" / NAME).write_bytes(png())
    rows = [tools.record(9, 0, media=MEDIA), tools.record(9, 1), tools.record(9, 2, media="no list")]
    dump_rollouts(run_folder / "rollouts", 9, rows)
    return run_folder


def test_a_trajectory_names_its_pictures(seen):
    api = ViewApi([RunReader(seen)])
    shown = [api.answer("sample", {"step": "9", "row": str(row)}) for row in range(3)]
    assert shown[0]["media"] == [{"kind": "image", "offset": 4, "num_tokens": 2, "files": [NAME]}]
    assert shown[1]["media"] == shown[2]["media"] == []
    assert "media" not in shown[0]["extras"]
    found = api.answer("picture", {"name": NAME})
    assert (found["width"], found["height"]) == (8, 4)
    assert Image.open(io.BytesIO(base64.b64decode(found["png"]))).getpixel((0, 0)) == (200, 30, 30)


def test_the_server_gives_pictures_to_those_who_may_read(seen):
    (answer,) = asked(seen, f"/api/picture?name={NAME}")
    assert answer[0] == 200 and values(answer)["width"] == 8
    policy = answer[1]["Content-Security-Policy"]
    assert "img-src 'self' data:" in policy and "script-src 'self';" in policy
    assert asked(seen, f"/api/picture?name={NAME}", cookie=False)[0][0] == 401


@pytest.mark.parametrize(
    "name",
    [
        "../metrics.jsonl",
        "%2e%2e/config.yaml",
        "x.svg",
        "",
        "ab.png",
        "AB" * 16 + ".png",
        f"{NAME}/..",
        "cd" * 16 + ".png",
    ],
)
def test_other_names_are_not_found(seen, name):
    assert asked(seen, f"/api/picture?name={name}")[0][0] == 404


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        b"GIF89a" + bytes(100),
        png()[:20],
        claiming(100_000, 100_000),
        claiming(0, 7),
        png() + bytes(MAX_BYTES),
    ],
    ids=["empty", "svg", "gif", "cut", "huge", "without pixels", "too many bytes"],
)
def test_only_pictures_of_a_bounded_size_are_shown(seen, content):
    (seen / "pictures" / NAME).write_bytes(content)
    with pytest.raises(NotFound):
        ViewApi([RunReader(seen)]).answer("picture", {"name": NAME})


def test_links_and_pipes_do_not_lead_out(seen, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "secret.png"
    outside.write_bytes(png())
    path = seen / "pictures" / NAME
    path.unlink()
    path.symlink_to(outside)
    assert RunReader(seen).picture(NAME) is None
    path.unlink()
    os.mkfifo(path)
    assert read_picture(path) is None and RunReader(seen).picture(NAME) is None


def test_hostile_records_are_bounded():
    hostile = [{"kind": "<script>", "offset": -1, "num_tokens": 1e400, "files": ["../x.png", 7, NAME, *[NAME] * 99]}]
    (item,) = media_of({"media": [*hostile, "text", None]})
    assert item["kind"] == "image" and item["offset"] is item["num_tokens"] is None
    assert set(item["files"]) == {NAME} and len(item["files"]) <= 8
    assert len(media_of({"media": hostile * 1000})) == MAX_MEDIA
    assert media_of({}) == media_of({"media": {"a": 1}}) == []


def test_an_export_holds_the_pictures(seen, tmp_path, monkeypatch):
    page = tmp_path / "run.html"
    export_page(ViewApi([RunReader(seen)]), page)
    text = page.read_text()
    answers = json.loads(text.partition('id="embedded">')[2].partition("</script>")[0])["answers"]
    assert answers[f"picture?name={NAME}&run=0"]["width"] == 8
    assert "img-src data:" in text
    monkeypatch.setattr("burnish.view.export.MAX_PICTURES", -1)
    export_page(ViewApi([RunReader(seen)]), page)
    assert f"picture?name={NAME}" not in page.read_text()
