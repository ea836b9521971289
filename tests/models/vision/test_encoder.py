"""Text and pictures to model inputs: expansion, counts, refusals, and the cache."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from burnish.errors import UserError
from burnish.media import Video
from burnish.models.load import ModelSource
from burnish.models.vision.encoder import PictureCache, VisionSettings, load_vision_encoder
from burnish.models.vision.idefics import in_words
from burnish.models.vision.pictures import Processed
from tests.vlm import VIDEO_FAMILIES, Vlm, clip, picture


def encoder_with(vlm, **settings):
    return load_vision_encoder(ModelSource(str(vlm.folder)), vlm.tokenizer, VisionSettings(**settings))


def shown(media):
    return media.num_tokens if media.features is None else int(media.features.sum())


def test_each_feature_has_a_token(vlm):
    for prompt in vlm.prompts():
        feature_ids = set(vlm.encoder._pictures.feature_ids.values())
        assert sum(token in feature_ids for token in prompt.ids) == sum(shown(media) for media in prompt.media)
        for media in prompt.media:
            span = prompt.ids[media.offset : media.offset + media.num_tokens]
            mask = [True] * len(span) if media.features is None else media.features.tolist()
            assert [token in feature_ids for token in span] == mask
            assert mask[0]
            assert mask[-1]


@pytest.mark.parametrize("name", ["idefics3", "gemma3"])  # the others' need torchvision
def test_tokens_and_pixels_are_those_of_the_processor(vlm_of, name):
    vlm = vlm_of(name)
    images = [picture(56, 28), picture(28, 56, 1)]
    text = vlm.text(2, 0, "look")
    expected = AutoProcessor.from_pretrained(vlm.folder)(
        text=[text], images=[images], return_tensors="pt", add_special_tokens=False
    )
    prompt = vlm.encoder.encode(text, images)
    assert list(prompt.ids) == expected["input_ids"][0].tolist()
    ours = vlm.encoder.family.model_arguments(prompt.media)["pixel_values"]
    assert torch.equal(ours, expected["pixel_values"])


def test_a_picture_is_processed_once(vlm):
    first, second = (vlm.prompt([picture(seed=5), picture(seed=6)], text=text) for text in ("a", "longer"))
    assert [one.digest for one in first.media] == [one.digest for one in second.media]
    for one, other in zip(first.media, second.media, strict=True):
        assert all(tensor is other.tensors[name] for name, tensor in one.tensors.items())
    assert len({media.digest for media in first.media}) == 2
    assert vlm.prompt([picture(seed=7)]).media[0].digest not in {media.digest for media in first.media}


def test_the_cache_keeps_the_newest_up_to_its_bytes():
    cache, calls = PictureCache(100), []

    def process(name):
        calls.append(name)
        return Processed((1,), ({"pixels": torch.zeros(40, dtype=torch.uint8)},))

    for name in (b"a", b"b", b"a", b"c", b"a", b"b"):
        cache.get(name, lambda name=name: process(name))
    assert calls == [b"a", b"b", b"c", b"b"]
    assert cache.nbytes == 80
    cache.get(b"large", lambda: Processed((1,), ({"pixels": torch.zeros(400, dtype=torch.uint8)},)))
    assert cache.nbytes == 80


def test_settings_are_part_of_the_digest(vlm_of):
    vlm = vlm_of("qwen2_vl")
    large = encoder_with(vlm, overrides={"max_pixels": 28 * 28})
    text = vlm.text(1, 0, "hi")
    small, usual = (one.encode(text, [picture(112, 112)]) for one in (large, vlm.encoder))
    assert small.media[0].num_tokens == 1
    assert usual.media[0].num_tokens == 16
    assert small.media[0].digest != usual.media[0].digest


def test_offsets_count_from_the_start_of_a_longer_input(vlm):
    here, later = (vlm.encoder.encode(vlm.text(1, 0, "hi"), [picture()], offset=offset) for offset in (0, 100))
    assert [media.offset + 100 for media in here.media] == [media.offset for media in later.media]


def test_media_are_attached_to_expanded_tokens(vlm):
    for images in (1, 2):
        pictures = [picture(56, 28, seed) for seed in range(images)]
        prompt = vlm.prompt(pictures)
        attached = vlm.encoder.attach(prompt.ids, pictures)
        assert attached == prompt
        assert attached.key == prompt.key


def test_text_alone_is_tokenized_as_ever(vlm):
    text = vlm.text(0, 0, "no picture")
    assert list(vlm.encoder.encode(text).ids) == vlm.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("mode", ["RGBA", "L", "P", "1"])
def test_images_of_all_modes_become_rgb(vlm_of, mode):
    vlm = vlm_of("qwen2_vl")
    image = picture().convert(mode)
    found, expected = (vlm.prompt([one]).media[0].tensors["pixel_values"] for one in (image, image.convert("RGB")))
    assert torch.equal(found, expected)


def test_wrong_counts_are_refused(vlm):
    with pytest.raises(UserError, match=r"has 1 placeholders for images .* there are 2 images"):
        vlm.encoder.encode(vlm.text(1, 0, "hi"), [picture(), picture()])
    with pytest.raises(UserError, match=r"has 2 placeholders .* there are 0 images"):
        vlm.encoder.encode(vlm.text(2, 0, "hi"))
    if vlm.name in VIDEO_FAMILIES:
        with pytest.raises(UserError, match=r"data\.video_key.* there are 0 videos"):
            vlm.encoder.encode(vlm.text(0, 1, "hi"))
    else:
        with pytest.raises(UserError, match="take no videos"):
            vlm.encoder.encode(vlm.text(0, 0, "hi"), videos=[clip()])


def test_bad_pictures_are_refused(vlm):
    with pytest.raises(UserError, match="has no pixels"):
        vlm.prompt([Image.new("RGB", (0, 10))])
    if vlm.name.startswith("qwen"):
        with pytest.raises(UserError, match="refuses the image of 2100 x 10 pixels"):
            vlm.prompt([picture(2100, 10)])
    if vlm.name in VIDEO_FAMILIES:
        with pytest.raises(UserError, match="has no pixels"):
            vlm.prompt(videos=[Video([])])
        with pytest.raises(UserError, match="differ in size"):
            vlm.prompt(videos=[Video([picture(28, 28), picture(56, 28)])])
        with pytest.raises(UserError, match="2 frames and 1 time stamps"):
            vlm.prompt(videos=[Video([picture(), picture(seed=1)], [0.0])])
        with pytest.raises(UserError, match="not all numbers"):
            vlm.prompt(videos=[Video([picture(), picture(seed=1)], [0.0, float("inf")])])
        with pytest.raises(UserError, match="769 frames"):
            vlm.prompt(videos=[Video([picture(28, 28)] * 769)])


def test_limits_of_a_prompt(vlm_of):
    vlm = vlm_of("qwen2_vl")
    encoder = encoder_with(vlm, max_images=1, max_videos=0)
    assert encoder.encode(vlm.text(1, 0, "hi"), [picture()]).media
    with pytest.raises(UserError, match="has 2 images, more than the limit of 1"):
        encoder.encode(vlm.text(2, 0, "hi"), [picture(), picture()])
    with pytest.raises(UserError, match="more than the limit of 0"):
        encoder.encode(vlm.text(0, 1, "hi"), videos=[clip()])


def test_tokens_of_features_in_the_text_are_refused(vlm_of):
    vlm = vlm_of("gemma3")  # whose template writes another token
    with pytest.raises(UserError, match="tokens that only stand for pictures"):
        vlm.prompt([picture()], text="<image_soft_token>")


def test_settings_are_checked(vlm_of, tmp_path):
    vlm = vlm_of("qwen2_vl")
    with pytest.raises(UserError, match=r"no such setting.*max_pixels"):
        encoder_with(vlm, overrides={"max_pixel": 3})
    with pytest.raises(UserError, match="set by the model's weights"):
        encoder_with(vlm, overrides={"patch_size": 16})
    with pytest.raises(UserError, match=r"data\.image_patch_size=16"):
        encoder_with(vlm, image_patch_size=16)
    assert encoder_with(vlm, image_patch_size=14).kinds == {"image", "video"}


def test_a_model_without_processor_files_is_refused(tmp_path):
    vlm = Vlm.make(tmp_path, "idefics3")
    for name in ("preprocessor_config.json", "processor_config.json"):
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match="which says how pictures are processed"):
        Vlm.at(vlm.folder, "idefics3")


def test_crops_of_gemma_are_items_of_their_own(vlm_of):
    vlm = vlm_of("gemma3")
    encoder = encoder_with(vlm, overrides={"do_pan_and_scan": True})
    prompt = encoder.encode(vlm.text(1, 0, "hi"), [picture(112, 56)])
    assert len(prompt.media) == 3
    assert len({media.digest for media in prompt.media}) == 3
    assert all(media.num_tokens == 4 and media.features is None for media in prompt.media)


def test_settings_of_videos_in_either_file(tmp_path):
    """A file of their own, or a part of the processor's file, as transformers writes it since 5.0."""
    vlm = Vlm.make(tmp_path, "qwen2_5_vl")
    video = Video([picture(280, 280, seed) for seed in range(2)])
    expected = vlm.prompt(videos=[video])
    assert expected.media[0].tensors["video_grid_thw"].tolist() == [[1, 10, 10]]  # at most 8 x 56 x 56 pixels
    files = {name: tmp_path / f"{name}preprocessor_config.json" for name in ("", "video_")}
    parts = {f"{name or 'image_'}processor": json.loads(file.read_text()) for name, file in files.items()}
    (tmp_path / "processor_config.json").write_text(json.dumps(parts))
    for file in files.values():
        file.unlink()
    again = Vlm.at(tmp_path, vlm.name).prompt(videos=[video])
    assert again.ids == expected.ids
    pixels = (one.media[0].tensors["pixel_values_videos"] for one in (again, expected))
    assert torch.equal(*pixels)


def test_a_still_video_has_the_patches_of_its_image(vlm_of):
    vlm = vlm_of("qwen2_vl")
    image = picture(56, 28)
    (still,) = vlm.prompt(videos=[Video([image, image, image])]).media
    (alone,) = vlm.prompt([image]).media
    assert still.tensors["video_grid_thw"].tolist() == [[2, 2, 4]]
    assert torch.equal(still.tensors["pixel_values_videos"], alone.tensors["pixel_values"].repeat(2, 1))


def test_frames_of_a_moment_are_joined_in_order(vlm_of):
    vlm = vlm_of("qwen2_vl")
    frames = [picture(28, 28, seed) for seed in range(4)]
    (video,) = vlm.prompt(videos=[Video(frames)]).media
    patches = video.tensors["pixel_values_videos"].view(2, 4, 3, 2, 14 * 14)  # moments, patches, colors, frames, pixels
    for number, frame in enumerate(frames):
        (alone,) = vlm.prompt([frame]).media
        expected = alone.tensors["pixel_values"].view(4, 3, 2, 14 * 14)[:, :, 0]
        assert torch.equal(patches[number // 2, :, :, number % 2], expected)


def test_time_is_written_or_counted(vlm_of):
    video = Video([picture(28, 28, seed) for seed in range(3)], [0.0, 1.0, 4.0])
    text = vlm_of("qwen3_vl").tokenizer.decode(vlm_of("qwen3_vl").prompt(videos=[video]).ids)
    assert "<0.5 seconds><|vision_start|><|video_pad|>" in text
    assert "<4.0 seconds><|vision_start|><|video_pad|>" in text
    assert text.count("<|vision_start|>") == 2
    (media,) = vlm_of("qwen2_5_vl").prompt(videos=[video]).media
    assert media.tensors["second_per_grid_ts"].tolist() == [4.0]
    text = vlm_of("smolvlm").tokenizer.decode(vlm_of("smolvlm").prompt(videos=[video]).ids)
    assert "three frames from a 0:00:04" in text
    assert "Frame from 00:01:" in text


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "zero"), (13, "thirteen"), (40, "forty"), (64, "sixty-four"), (300, "three hundred"), (768, None)],
)
def test_numbers_in_words(number, words):
    assert in_words(number) == (words or "seven hundred and sixty-eight")
