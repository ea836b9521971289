"""Supervised examples with images: spans, loss masks, truncation, bad rows."""

import io
from dataclasses import replace

import PIL.Image
import pytest

from burnish.config.sft import SftDataConfig, SftMultiturnConfig
from burnish.data.examples import ExampleDataset
from burnish.data.files import ListRows
from burnish.errors import UserError
from burnish.media import InvalidMedia


def png(color):
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (56, 56), color).save(buffer, "PNG")
    return buffer.getvalue()


RED, BLUE = png("red"), png("blue")
TURNS = [
    {"role": "user", "content": "First <image>?"},
    {"role": "assistant", "content": "Red."},
    {"role": "user", "content": "And <image>?"},
    {"role": "assistant", "content": "Blue."},
]


@pytest.fixture
def data(vision):
    def data(rows, conversations=True, tokenizer=vision.tokenizer, encoder=vision, **changes):
        cfg = replace(SftDataConfig(), multiturn=SftMultiturnConfig(enable=conversations), **changes)
        return ExampleDataset(ListRows(rows), tokenizer, cfg, range(len(rows)), "data.train_files", encoder)

    return data


def target(example, tokenizer):
    return tokenizer.decode([token for token, mark in zip(example.ids, example.loss_mask, strict=True) if mark])


def spans(example):
    return [range(item.offset, item.offset + item.num_tokens) for item in example.media]


def test_conversations_with_pictures(data, vision):
    dataset = data([{"messages": TURNS, "images": [RED, BLUE]}, {"messages": [TURNS[1]], "images": None}])
    example = dataset.example(0)
    assert target(example, vision.tokenizer) == "Red.<|im_end|>Blue.<|im_end|>"
    pad = vision.tokenizer.convert_tokens_to_ids(vision.placeholders["image"])
    assert [len(span) for span in spans(example)] == [4, 4]
    assert all(example.ids[t] == pad and not example.loss_mask[t] for span in spans(example) for t in span)
    batch = dataset.batch([0, 1])
    assert batch["media"][0] == example.media and batch["media"][1] == ()
    # offsets count from the start of the row: the second picture is among the responses
    start = int(batch["prompt_ids"].lengths[0])
    assert spans(example)[0].stop <= start <= spans(example)[1].start
    row = batch["prompt_ids"].lists()[0] + batch["responses"].lists()[0]
    assert row == example.ids and batch["response_mask"][0][spans(example)[1].start - start] == 0


def test_pairs_with_pictures(data, vision):
    rows = [{"question": "See <image>?", "answer": "red", "images": [RED]}, {"question": "No?", "answer": "no"}]
    dataset = data(rows, conversations=False)
    assert target(dataset.example(0), vision.tokenizer) == "red<|im_end|>" and len(dataset.example(0).media) == 1
    assert dataset.example(1).media == ()


def test_pictures_inside_the_messages(data):
    content = [{"type": "image", "image": RED}, {"type": "text", "text": "What?"}]
    example = data([{"messages": [{"role": "user", "content": content}, TURNS[1]]}]).example(0)
    assert len(example.media) == 1


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"messages": TURNS, "images": [RED]}, "2 <image> in the prompt, but 1 in the column 'images'"),
        ({"messages": TURNS, "images": [RED, b"x"]}, "image 1: not an image in a known format"),
        (
            {"messages": [TURNS[0], {"role": "assistant", "content": "Here: <image>"}], "images": [RED, BLUE]},
            r"an assistant turn has a picture \(image 1\)",
        ),
        ({"messages": [TURNS[2], {"role": "assistant", "content": "<|image_pad|>"}], "images": [RED]}, "text contains"),
    ],
)
def test_bad_examples_are_named_or_dropped(row, problem, data):
    good = {"messages": TURNS, "images": [RED, BLUE]}
    with pytest.raises(InvalidMedia, match=rf"dataset, row 1: .*{problem}"):
        data([good, row])
    dataset = data([good, row], invalid_media="drop")
    assert len(dataset) == 1 and any("dropped 1 of 2 examples" in notice for notice in dataset.notices)
    assert len(dataset.batch([0])["media"][0]) == 2
    with pytest.raises(UserError, match="no example is left"):
        data([row], invalid_media="drop")


def test_responses_cannot_have_placeholders(data):
    rows = [{"question": "See <image>?", "answer": "<|image_pad|>", "images": [RED]}]
    with pytest.raises(InvalidMedia, match="row 0: the text contains"):
        data(rows, conversations=False)


@pytest.mark.parametrize("truncation", ["right", "left", "middle"])
def test_truncation_never_cuts_a_picture(truncation, data):
    rows = [{"messages": [*TURNS, {"role": "user", "content": "x" * 50}, TURNS[1]], "images": [RED, BLUE]}]
    whole = data(rows).example(0)
    length, first = len(whole.ids), spans(whole)[0]
    if truncation == "right":
        cut = data(rows, truncation="right", max_length=length - 10).example(0)
        assert cut.media == whole.media and cut.ids == whole.ids[: length - 10]
    limit = length - first.stop + 2 if truncation == "left" else first.stop - 2
    with pytest.raises(UserError, match=rf"row 0 has {length} tokens, .* would cut or drop a picture"):
        data(rows, truncation=truncation, max_length=limit)


def test_left_truncation_moves_the_pictures(data):
    rows = [{"messages": [{"role": "user", "content": "x" * 30 + "<image>"}, TURNS[1]], "images": [RED]}]
    whole = data(rows).example(0)
    cut = data(rows, truncation="left", max_length=len(whole.ids) - 20).example(0)
    assert cut.ids == whole.ids[20:] and [item.offset + 20 for item in cut.media] == [whole.media[0].offset]


def test_a_text_model_refuses_pictures(data, tokenizer):
    with pytest.raises(UserError, match=r"row 0 has images or videos, but .* takes text only"):
        data([{"messages": TURNS, "images": [RED, BLUE]}], tokenizer=tokenizer, encoder=None)


def test_tokens_cannot_have_pictures(data):
    row = {"input_ids": [5, 6], "loss_mask": [1, 0], "images": [RED]}
    with pytest.raises(UserError, match="row 0 has tokens and pictures, but no messages"):
        data([row])
    assert data([row | {"images": None}]).batch([0])["media"] == [()]
