"""Pixels on their way to workers, and media in files."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from burnish.batch import Batch
from burnish.log.pictures import PictureWriter
from burnish.loop.media_transfer import MediaSender, MediaStore
from burnish.loop.pictures import media_records, restore_media, save_media, with_pictures, with_references
from burnish.media import Video
from burnish.models.model_input import Media, ModelInput
from burnish.rollout.engine import Request, Sampling


def media(name: str, offset: int = 0, size: int = 4, source=None) -> Media:
    pixels = torch.arange(size, dtype=torch.float32)
    return Media("image", name.encode(), offset, 2, {"pixel_values": pixels}, torch.tensor([True, False]), source)


def request(*items: Media) -> Request:
    return Request(ModelInput((1, 2, 3, 4), items), Sampling(4), 1)


def same(one: Media, other: Media) -> bool:
    return one == other and all(torch.equal(one.tensors[name], other.tensors[name]) for name in other.tensors)


def test_a_picture_is_sent_to_a_worker_once():
    sender, stores = MediaSender(2), [MediaStore(), MediaStore()]
    shared = request(media("cat"), media("dog", 2))
    requests = [shared, Request(shared.input, shared.sampling, 2), request(media("cat", 1))]
    packed, new = sender.pack_requests(0, requests, sources=False)
    assert sorted(item.digest for item in new) == [b"cat", b"dog"]
    assert all(not item.tensors for one in packed for item in one.input.media)
    assert packed[0].input is packed[1].input  # samples of a prompt share one prefill, on the other side too
    stores[0].receive(new)
    restored = stores[0].restore_requests(packed)
    assert restored[0].input is restored[1].input and restored[0].input.key == shared.input.key
    for ours, theirs in zip(restored, requests, strict=True):
        assert all(map(same, ours.input.media, theirs.input.media))
    assert sender.pack_requests(0, requests, sources=False)[1] == []
    batch = Batch(media=[(media("cat"),), (), (media("bird"), media("dog", 2))])
    packed_batch, new = sender.pack_batch(batch, range(2))  # to all workers: one of them has no picture yet
    assert sorted(item.digest for item in new) == [b"bird", b"cat", b"dog"]
    for store in stores:
        store.receive(new)
        rows = store.restore_batch(packed_batch)["media"]
        assert all(map(same, rows[2], batch["media"][2])) and rows[1] == ()
    assert sender.pack_batch(batch, range(2))[1] == []


def test_both_sides_forget_the_oldest():
    sender, store = MediaSender(1, max_bytes=40), MediaStore(max_bytes=80)
    for name in "abcdefg":
        packed, new = sender.pack_requests(0, [request(media(name))], sources=False)
        store.receive(new)
        assert same(store.restore_requests(packed)[0].input.media[0], media(name))
    assert [item.digest for item in sender.pack_requests(0, [request(media("a"))], sources=False)[1]] == [b"a"]
    assert sender.pack_requests(0, [request(media("g"))], sources=False)[1] == []


@pytest.mark.parametrize("sources", [True, False])
def test_originals_go_to_engines_that_read_them(sources):
    picture = Image.new("RGB", (3, 2))
    (new,) = MediaSender(1).pack_requests(0, [request(media("cat", source=picture))], sources=sources)[1]
    assert (new.source is picture) == sources


def test_media_in_files(tmp_path):
    items = [media("cat", 3), media("dog", 7, size=9), media("cat", 20)]
    save_media(items, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    records = media_records(items)
    assert all(map(same, [restore_media(record, {}, tmp_path) for record in records], items))
    known = {b"cat": media("cat")}
    restored = restore_media(records[2], known, tmp_path / "nowhere")
    assert restored.tensors is known[b"cat"].tensors and restored.offset == 20
    assert torch.equal(restore_media(records[1], {}, tmp_path).features, items[1].features)


def test_pictures_in_values(tmp_path):
    images = [Image.new("RGB", (4, 3), (shade, 0, 9)) for shade in range(3)]
    value = {"value": {"text": "x", "images": images[:2], "videos": [Video(images, [0.0, 0.5, 1.0])], "ids": [1, 2]}}
    written = with_references(value, tmp_path)
    assert len(list(tmp_path.glob("*.png"))) == 3
    read = with_pictures(written, tmp_path)["value"]
    assert [image.tobytes() for image in read["images"]] == [image.tobytes() for image in images[:2]]
    assert [frame.tobytes() for frame in read["videos"][0].frames] == [image.tobytes() for image in images]
    assert read["videos"][0].timestamps == [0.0, 0.5, 1.0] and read["ids"] == [1, 2]
    with pytest.raises(ValueError, match="invalid literal"):
        with_pictures({"burnish_image": "../../secret"}, tmp_path)


def test_pictures_of_a_run_are_bounded(tmp_path):
    writer = PictureWriter(tmp_path / "pictures", max_files=2)
    items = [media(name, source=Image.new("RGB", (2, 2))) for name in ("a", "b", "c", "a")]
    records = writer.record(items)
    assert [len(record["files"]) for record in records] == [1, 1, 0, 1]
    assert PictureWriter(tmp_path / "pictures", max_files=2).record(items[2:])[0]["files"] == []
    frames = Video([Image.new("RGB", (2, 2))] * 20)
    (record,) = PictureWriter(tmp_path / "frames").record([media("v", source=frames)])
    assert 1 < len(record["files"]) <= 8
    (tmp_path / "file").write_text("")
    broken = PictureWriter(tmp_path / "file" / "pictures")
    assert broken.record(items[:1])[0]["files"] == [] and "cannot write pictures" in broken.take_problem()
