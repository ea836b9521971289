"""Rows with images and videos, with the encoders of real tiny models."""

import base64
import io
import pickle
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from burnish.config.data import HandlerConfig
from burnish.data.check import check_rows
from burnish.data.dataset import PromptDataset
from burnish.data.encode import TRUNCATIONS, PromptEncoder, truncated
from burnish.data.files import ListRows, read_files
from burnish.data.load import load_train
from burnish.data.measure import LengthCounter, measure
from burnish.data.pictures import MediaColumns, has_pictures, place_pictures
from burnish.data.prompt_pictures import encode_row
from burnish.demo.tiny_vision import TINY_FAMILIES
from burnish.errors import UserError
from burnish.media import InvalidMedia, Video


def png(color="red", size=56):
    buffer = io.BytesIO()
    PIL.Image.new("RGB", size if isinstance(size, tuple) else (size, size), color).save(buffer, "PNG")
    return buffer.getvalue()


RED, BLUE = png("red"), png("blue")
FRAMES = [PIL.Image.new("RGB", (56, 56), (40 * number, 0, 0)) for number in range(4)]
CHAT = "Look: <image>What is it?"


def row(text=CHAT, images=(RED,), **more):
    columns = {"images": [{"bytes": image, "path": None} for image in images] if images is not None else None}
    prompt = [{"role": "user", "content": text}] if isinstance(text, str) else text
    truth = {"style": "rule", "ground_truth": "red"}
    return {"data_source": "shapes", "prompt": prompt, "reward_model": truth} | columns | more


@pytest.fixture
def data(vision, config):
    """data(rows, **changes of the config) -> PromptDataset"""
    return lambda rows, **changes: PromptDataset(rows, vision.tokenizer, config(**changes), vision=vision)


def shown(batch, vision, number=0):
    """The prompt as text, with each picture's tokens as one mark."""
    ids, text, at = batch["prompt_ids"].lists()[number], "", 0
    for item in batch["media"][number]:
        text += vision.tokenizer.decode(ids[at : item.offset]) + f"[{item.kind} {item.num_tokens}]"
        at = item.offset + item.num_tokens
    return text + vision.tokenizer.decode(ids[at:])


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_prompts_of_every_family(family, encoder_of, config):
    vision = encoder_of(family)
    kinds = sorted(vision.kinds)
    text = "".join(f"{number} <{kind}>" for number, kind in enumerate(kinds)) + "?"
    rows = [row(text, videos=[FRAMES] if "video" in kinds else None), row("No picture.", None)]
    batch = PromptDataset(rows, vision.tokenizer, config(), vision=vision).batch([0, 1], 0)
    assert {item.kind for item in batch["media"][0]} == set(kinds) and batch["media"][1] == ()
    spans = [range(item.offset, item.offset + item.num_tokens) for item in batch["media"][0]]
    placeholders = {vision.tokenizer.convert_tokens_to_ids(token) for token in vision.placeholders.values()}
    assert all(ids.stop <= batch["prompt_ids"].lengths[0] for ids in spans) and len(spans) == len(kinds)
    assert not placeholders & set(batch["prompt_ids"].lists()[1])
    parts = [part["type"] for part in batch["raw_prompt"][0][0]["content"]]
    assert parts == (["text", "image", "text", "video", "text"] if "video" in kinds else ["text", "image", "text"])


def test_a_batch_has_expanded_tokens_and_media(data, vision, write):
    batch = data(read_files([write("a.parquet", [row(), row("Plain.", None), row(images=(BLUE,))])])).batch(
        [0, 1, 2], 0
    )
    assert shown(batch, vision).count("[image 4]") == 1
    assert "Look: " in shown(batch, vision) and "What is it?" in shown(batch, vision)
    red, none, blue = batch["media"]
    assert none == () and red[0].digest != blue[0].digest and red[0].offset == blue[0].offset
    assert batch["prompt_ids"].lists()[0] == batch["prompt_ids"].lists()[2]
    assert batch["raw_prompt"][1] == [{"role": "user", "content": "Plain."}]


def test_a_batch_of_a_text_run_has_no_media(tokenizer, config, sums):
    assert "media" not in PromptDataset(sums(1), tokenizer, config()).batch([0], 0)


def test_pictures_in_order_over_turns_and_kinds(data, vision):
    turns = [
        {"role": "system", "content": "See <image>."},
        {"role": "user", "content": "<video><image>Which?"},
        {"role": "assistant", "content": "Both."},
        {"role": "user", "content": "And <image>?"},
    ]
    batch = data([row(turns, (RED, BLUE, RED), videos=[FRAMES])]).batch([0], 0)
    media = batch["media"][0]
    assert [item.kind for item in media] == ["image", "video", "image", "image"]
    assert media[0].digest == media[3].digest != media[2].digest
    assert [item.offset for item in media] == sorted(item.offset for item in media)


DATA_URL = f"data:image/png;base64,{base64.b64encode(RED).decode()}"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": DATA_URL}},
        {"type": "image_url", "image_url": DATA_URL},
        {"type": "input_image", "image_url": DATA_URL},
        {"type": "image", "image": RED},
        {"type": "image", "base64": base64.b64encode(RED).decode(), "text": None},
        {"type": "image", "url": DATA_URL},
        {"image": DATA_URL},
    ],
)
def test_contents_with_pictures_inside(part, data):
    content = [{"type": "text", "text": "Look: "}, part, {"type": "text", "text": "What is it?"}]
    inside = data([row([{"role": "user", "content": content}], None)]).batch([0], 0)
    beside = data([row()]).batch([0], 0)
    assert inside["prompt_ids"].lists() == beside["prompt_ids"].lists()
    assert inside["media"] == beside["media"]
    assert inside["raw_prompt"] == beside["raw_prompt"]  # structured, without the picture


def test_parts_without_data_take_the_pictures_of_the_column(data, write):
    content = [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "What is it?"}]
    rows = [row([{"role": "user", "content": content}])]
    batch = data(read_files([write("a.parquet", rows)])).batch([0], 0)  # parquet adds nulls to the parts
    assert batch["media"] == data([row()]).batch([0], 0)["media"]


def test_a_text_part_may_have_the_placeholder_as_text(data):
    content = [{"type": "text", "text": "HTML has <image> and <video>."}]
    batch = data([row([{"role": "user", "content": content}], None), row()]).batch([0], 0)
    assert batch["media"] == [()]


@pytest.mark.parametrize(
    "value", [RED, {"bytes": RED, "path": "x"}, DATA_URL, np.zeros((56, 56, 3), np.uint8), FRAMES[0]]
)
def test_a_column_may_hold_one_picture_instead_of_a_list(value, data):
    (media,) = data([row(images=None) | {"images": value}]).batch([0], 0)["media"][0]
    assert media.kind == "image" and media.num_tokens == 4


def test_relative_paths_start_at_the_data_file(data, write, tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "red.png").write_bytes(RED)
    rows = [row(images=None) | {"images": ["pictures/red.png"]}]
    media = data(read_files([write("a.jsonl", rows)])).batch([0], 0)["media"]
    assert media == data([row()]).batch([0], 0)["media"]
    with pytest.raises(InvalidMedia, match=r"row 0: image 0: cannot read 'pictures/red.png'"):
        data(rows)  # a list of dicts is in no folder


BAD = {
    "corrupt": (row(images=(RED[:80],)), "image 0: corrupt image"),
    "empty": (row(images=(b"",)), "image 0: the image has no bytes"),
    "no image": (row(images=(b"text",)), "image 0: not an image in a known format"),
    "too many": (row(images=(RED, RED)), "1 <image> in the prompt, but 2 in the column 'images'"),
    "too few": (row("<image><image>", (RED,)), "2 <image> in the prompt, but 1 in the column 'images'"),
    "none": (row(images=None), "1 <image> in the prompt, but 0 in the column 'images'"),
    "no place": (row("What is it?"), "0 <image> in the prompt, but 1 in the column 'images'"),
    "no video": (row("<video>", None), "1 <video> in the prompt, but 0 in the column 'videos'"),
    "literal": (row("<|image_pad|>" + CHAT), r"the text contains '<|image_pad|>'"),
    "literal only": (row("<|image_pad|>", None), r"the text contains '<|image_pad|>'"),
    "literal video": (row("<|video_pad|>", None), r"the text contains '<|video_pad|>'"),
    "extreme": (row(images=(png(size=(2000, 2)),)), "the processor refuses the image of 2000 x 2 pixels"),
    "missing file": (row(images=None) | {"images": ["nowhere.png"]}, "cannot read 'nowhere.png'"),
}


@pytest.mark.parametrize("name", BAD)
def test_rows_with_bad_pictures_are_named_or_dropped(name, data):
    bad, problem = BAD[name]
    rows = [row(), bad, row(images=(BLUE,)), bad]
    with pytest.raises(InvalidMedia) as caught:
        data(rows)
    text = str(caught.value)
    assert "dataset, row 1: " in text and problem in text and "(the first of 2 such rows)" in text
    assert "data.invalid_media=drop" in text
    for filtering in (False, True):
        dataset = data(rows, invalid_media="drop", filter_overlong_prompts=filtering)
        assert dataset.kept == [0, 2] and len(dataset.batch([0, 1], 0)["media"]) == 2
        notice = next(notice for notice in dataset.notices if "invalid_media=drop dropped 2 of 4 prompts" in notice)
        assert "dataset, row 1: " in notice and problem in notice


def test_the_first_row_may_be_bad(data):
    assert data([BAD["too few"][0], row()], invalid_media="drop").kept == [1]
    with pytest.raises(UserError, match="no prompt is left: all have bad pictures"):
        data([BAD["too few"][0]], invalid_media="drop")


def test_what_is_not_the_fault_of_a_row_is_never_dropped(data):
    rows = [row(), row(images=None) | {"images": ["http://127.0.0.1:1/x.png"]}]
    with pytest.raises(UserError, match=r"row 1: image 0: cannot download http://127.0.0.1:1/x.png"):
        data(rows, invalid_media="drop")


def test_a_limit_of_images(data):
    rows = [row(), row("<image><image>", (RED, BLUE))]
    assert len(data(rows).kept) == 2
    with pytest.raises(InvalidMedia, match=r"row 1: 2 images, more than data\.max_images_per_prompt=1"):
        data(rows, max_images_per_prompt=1)
    assert data(rows, max_images_per_prompt=1, invalid_media="drop").kept == [0]


def test_a_text_model_refuses_pictures(tokenizer, config):
    inside = [{"role": "user", "content": [{"type": "image", "image": DATA_URL}]}]
    for bad in (row(), row("No place."), row(inside, None), row("x", None, videos=[FRAMES])):
        with pytest.raises(UserError, match=r"row 1 has images or videos, but .* takes text only") as caught:
            PromptDataset([row("Plain.", None), bad], tokenizer, config(invalid_media="drop"))
        assert not isinstance(caught.value, InvalidMedia)


def test_a_text_model_reads_html(tokenizer, config):
    batch = PromptDataset([row("A <video> tag", None)], tokenizer, config()).batch([0], 0)
    assert "<video>" in tokenizer.decode(batch["prompt_ids"].lists()[0])


def test_a_kind_that_the_model_does_not_take(encoder_of, config):
    vision = encoder_of("gemma3")
    with pytest.raises(UserError, match="row 0 has videos, which the model does not take"):
        PromptDataset([row("<video>", None, videos=[FRAMES])], vision.tokenizer, config(), vision=vision)


@pytest.mark.parametrize(
    "bad",
    [
        row(audios=["a.wav"]),
        row([{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}], None),
        row(multi_modal_data={"audio": ["x"]}),
    ],
)
def test_audio_is_refused(bad, data, tokenizer, config):
    with pytest.raises(UserError, match=r"row 0 has audio .*not supported"):
        data([bad])
    with pytest.raises(UserError, match=r"row 0 has audio .*not supported"):
        PromptDataset([bad | {"images": None}], tokenizer, config())


def test_the_name_of_the_column_may_be_wrong(data):
    rows = [{name: value for name, value in row().items() if name != "images"} | {"picture": [RED]}] * 2
    with pytest.raises(UserError, match="2 of 2 prompts have <image> or <video>, but the data have no such column"):
        data(rows)
    assert len(data(rows, image_key="picture").batch([0], 0)["media"][0]) == 1
    plain = {name: value for name, value in row("No.").items() if name != "images"}
    assert any("1 of 2 prompts have <image>" in notice for notice in data([plain, rows[0]]).notices)


def length(data, text=CHAT):
    return int(data([row(text)]).batch([0], 0)["prompt_ids"].lengths[0])


def test_lengths_count_expanded_tokens(data):
    fitting = length(data)
    rows = [row(), row(images=(png(size=112),)), row()]  # 16 tokens instead of 4
    with pytest.raises(
        UserError, match=rf"row 1 has {fitting + 12} tokens, more than data\.max_prompt_length={fitting}"
    ):
        data(rows, max_prompt_length=fitting)
    filtered = data(rows, max_prompt_length=fitting, filter_overlong_prompts=True)
    assert filtered.kept == [0, 2] and filtered.report.overlong == 1


def test_measuring_does_not_depend_on_what_a_process_has_seen(data):
    dataset = data([row(), row("Plain", None), BAD["corrupt"][0], row(images=(png(size=112),))], invalid_media="drop")
    prompts = [dataset.prompt(index) for index in range(len(dataset))]
    alone = measure(prompts, dataset.encoder, workers=1)
    assert alone[2].spans[0][1] == 16
    fresh = pickle.loads(pickle.dumps(LengthCounter(dataset.encoder)))  # as a worker gets it: without any picture
    assert fresh(pickle.loads(pickle.dumps(prompts))) == alone
    assert len(pickle.dumps(dataset.encoder)) < len(pickle.dumps(dataset.encoder.tokenizer)) + 50_000


@pytest.mark.long
def test_measuring_in_processes_gives_the_same(data):
    dataset = data([row(), row("Plain", None), row(images=(png(size=112),))])
    prompts = [dataset.prompt(index) for index in range(len(dataset))] * 5
    assert measure(prompts, dataset.encoder, workers=2) == measure(prompts, dataset.encoder, workers=1)


@pytest.mark.parametrize("truncation", ["left", "right", "middle"])
def test_truncation_keeps_pictures_whole(truncation, data, vision):
    texts = {"left": "x" * 40 + "<image>", "right": "<image>" + "x" * 40, "middle": "<image>" + "x" * 40 + "<image>"}
    images = (RED, BLUE)[: texts[truncation].count("<image>")]
    rows = [row(texts[truncation], images)]
    whole = data(rows).batch([0], 0)
    total = int(whole["prompt_ids"].lengths[0])
    cut = data(rows, truncation=truncation, max_prompt_length=total - 10)
    assert any("1 of 1 prompts are longer" in notice for notice in cut.notices)
    batch = cut.batch([0], 0)
    assert len(batch["prompt_ids"].lists()[0]) == total - 10
    marks = [mark for mark in shown(whole, vision).split("x") if mark]
    kept = shown(batch, vision)
    inner = {"left": marks[-1:], "right": marks[:1], "middle": marks}[truncation]
    assert all(mark in kept for mark in inner)
    assert [item.digest for item in batch["media"][0]] == [item.digest for item in whole["media"][0]]


@pytest.mark.parametrize(("truncation", "text"), [("left", "<image>" + "x" * 40), ("right", "x" * 40 + "<image>")])
def test_truncation_never_cuts_a_picture(truncation, text, data):
    total = length(data, text)
    for limit in (total - 30, total - 38, total - 42):
        problem = f"row 0 has {total} tokens, and a truncation to .*={limit} would cut or drop a picture"
        with pytest.raises(UserError, match=problem) as caught:
            data([row(text)], truncation=truncation, max_prompt_length=limit)
        assert f"data.max_prompt_length={total}" in caught.value.hint


def test_pictures_are_not_kept_in_memory(data):
    dataset = data([row(), row("Plain", None)])
    dataset.batch([0, 1], 0)
    assert list(dataset._cache) == [1]


def test_full_prompts_and_raw_tokens(data, vision):
    batch = data([row()], return_full_prompt=True, return_raw_input_ids=True).batch([0], 0)
    assert batch["full_prompts"][0].count(vision.placeholders["image"]) == 1
    assert vision.tokenizer.decode(batch["raw_input_ids"].lists()[0]) == "Look: What is it?"


def test_plain_text_without_a_template(data, vision):
    rows = [row() | {"prompt": CHAT}]
    batch = data(rows, apply_chat_template=False, input_template="Q: {} A:").batch([0], 0)
    assert shown(batch, vision) == "Q: Look: [image 4]What is it? A:"


LISTS_ONLY = (
    "{% for m in messages %}{% for part in m['content'] %}{% if part['type'] == 'image' %}<|image_pad|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
TEXT_ONLY = (
    "{% for m in messages %}{{ m['content'] if m['content'] is string else m['content'][0]['text'] }}{% endfor %}"
)


def test_templates_that_show_lists_of_parts_only(data, vision):
    rows = [row(), row([{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "Hi"}], None)]
    batch = data(rows, apply_chat_template_kwargs={"chat_template": LISTS_ONLY}).batch([0, 1], 0)
    assert shown(batch, vision) == "Look: [image 4]What is it?"
    assert shown(batch, vision, 1) == "Be brief. Hi"


def test_a_template_that_drops_pictures_is_found(data):
    with pytest.raises(InvalidMedia, match=r"shows 0 placeholders .* for 1 images"):
        data([row()], apply_chat_template_kwargs={"chat_template": TEXT_ONLY})


def test_rows_of_verl_s_dataset_classes(data):
    item = {"data_source": "shapes", "raw_prompt_ids": [5, 6], "input_ids": [5, 6], "attention_mask": [1, 1]}
    pictures = {"multi_modal_data": {"image": [PIL.Image.new("RGB", (56, 56), "red")]}, "multi_modal_inputs": {"x": 1}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}]}]
    batch = data([item | pictures | {"raw_prompt": messages}]).batch([0], 0)
    assert len(batch["media"][0]) == 1 and batch["prompt_ids"].lengths[0] > 4
    inside = [{"role": "user", "content": [{"type": "image", "image": pictures["multi_modal_data"]["image"][0]}]}]
    assert len(data([item | pictures | {"raw_prompt": inside}]).batch([0], 0)["media"][0]) == 1
    with pytest.raises(UserError, match=r"has tokens and pictures, but no messages \(raw_prompt\)"):
        data([item | pictures])
    with pytest.raises(UserError, match=r"has tokens and multi_modal_inputs, but no pictures"):
        data(
            [
                item
                | {
                    "multi_modal_inputs": {"pixel_values": 1},
                    "raw_prompt": messages[:0] or [{"role": "user", "content": "x"}],
                }
            ]
        )
    tokens = data([{"data_source": "shapes", "prompt_ids": [5, 6]}]).batch([0], 0)
    assert tokens["prompt_ids"].lists() == [[5, 6]] and tokens["media"] == [()]


def test_generated_rows(data):
    dataset = data([row()], invalid_media="drop")
    assert dataset.append([row(images=(BLUE,)), BAD["corrupt"][0], row()], "made") == [0, 2]
    with pytest.raises(InvalidMedia, match="made, row 0: image 0: corrupt image"):
        data([row()]).append([BAD["corrupt"][0]], "made")


def test_unknown_parts_are_named():
    message = {"role": "user", "content": [{"type": "pointcloud", "data": "x"}]}
    with pytest.raises(UserError, match="row 3: a part of a content has the type 'pointcloud'"):
        place_pictures([message], {}, MediaColumns(), "row 3", "")
    assert not has_pictures({}, MediaColumns(), [message])


def test_check_reports_pictures(vision, write):
    rows = [
        row(),
        row(images=(png(size=112),)),
        BAD["corrupt"][0],
        BAD["too few"][0],
        row("<video>", None, videos=None),
    ]
    report = check_rows(read_files([write("a.parquet", rows)]))
    text = "\n".join(report.lines())
    assert "images: 2; pixels: smallest 56x56, median 112x112, largest 112x112" in text
    assert "error: image: corrupt image" in text and ": 1 rows (2)" in text
    assert "error: 2 <image> in the prompt, but 1 in the column 'images': 1 rows (3)" in text
    assert "error: 1 <video> in the prompt" in text
    encoder = PromptEncoder(vision.tokenizer, {}, vision=vision)
    measured = check_rows(ListRows([*rows[:2], row("Plain", None)]), encoder=encoder)
    assert not measured.errors and len(measured.lengths) == 3 and measured.lengths[1] == measured.lengths[0] + 12
    unmeasured = check_rows(ListRows(rows[:2]), encoder=PromptEncoder(vision.tokenizer, {}))
    assert unmeasured.lengths == [] and any("not measured" in problem for problem in unmeasured.warnings)
    twice = check_rows(ListRows([row(), row(images=(BLUE,)), row()]))
    assert "warning: duplicate prompt: 1 rows (2)" in "\n".join(twice.lines())


def test_paths_of_rows_are_those_of_their_own_file(data, write, tmp_path):
    for name, picture in (("one", RED), ("two", BLUE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.png").write_bytes(picture)
    rows = [row(images=None) | {"images": ["p.png"]}]
    files = [write(f"{name}/a.jsonl", rows) for name in ("one", "two")]
    media = data(read_files(files)).batch([0, 1], 0)["media"]
    assert media[0] != media[1] and Path(files[0]).parent != Path(files[1]).parent


def test_null_reads_no_column():
    columns = MediaColumns(image_key=None)
    message = {"role": "user", "content": "<image>What <video>?"}
    (placed,), media = place_pictures([message], {"images": [RED], "videos": [FRAMES]}, columns, "row 0", "")
    assert [item.kind for item in media] == ["video"]
    assert "".join(part.get("text", "|") for part in placed["content"]) == "<image>What |?"
    assert not has_pictures({"images": [RED]}, columns)


def test_one_row_for_jobs_without_a_dataset(data, vision, write):
    rows = read_files([write("a.parquet", [row(), BAD["corrupt"][0], row("x", None)])])
    encoder = PromptEncoder(vision.tokenizer, {}, vision=vision)
    arguments = (encoder, "prompt", MediaColumns(), "data.path")
    encoded = encode_row(rows, 0, *arguments)
    batch = data(rows, invalid_media="drop").batch([0], 0)
    assert encoded.ids == batch["prompt_ids"].lists()[0] and encoded.media == batch["media"][0]
    with pytest.raises(InvalidMedia, match=r"a\.parquet, row 1: image 0: corrupt image"):
        encode_row(rows, 1, *arguments)
    assert encode_row(rows, 2, *arguments).media == ()
    with pytest.raises(UserError, match=r"row 0 has .* would cut or drop a picture"):
        truncated(encoded, TRUNCATIONS["right"].load(), 12, "row 0", "rollout.prompt_length")


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_lengths_without_pixels_are_the_same(family, encoder_of):
    vision = encoder_of(family)
    sizes = [(56, 56), (57, 90), (200, 31), (28, 28), (111, 333), (56, 56)]
    images = [PIL.Image.new("RGB", size) for size in sizes]
    text = "a".join(vision.placeholders["image"] for _ in images)
    whole, measured = vision.encode(text, images), vision.encode(text, images, pixels=False)
    assert measured.ids == whole.ids
    assert [(m.offset, m.num_tokens) for m in measured.media] == [(m.offset, m.num_tokens) for m in whole.media]
    assert all(not item.tensors for item in measured.media) and all(item.tensors for item in whole.media)
    if "video" in vision.kinds:
        for stamps in (None, [0.0, 1.0, 2.0, 13.0]):
            video = Video(FRAMES, stamps)
            text = vision.placeholders["video"]
            assert vision.encode(text, (), [video], pixels=False).ids == vision.encode(text, (), [video]).ids


def test_measuring_processes_nothing_that_its_size_tells(vision, data, monkeypatch):
    processed = []
    image = vision._pictures.image
    monkeypatch.setattr(vision._pictures, "image", lambda picture: processed.append(picture) or image(picture))
    dataset = data([row(images=(png("green"),)), row(images=(png("yellow"),))])
    assert processed == []
    dataset.batch([0, 1], 0)
    assert len(processed) == 2


def test_a_handler_keeps_the_pictures(vision, config, write):
    raw = {"instruction": "Look: <image>?", "output": "red", "images": [{"bytes": RED, "path": None}]}
    cfg = config(train_files=[write("raw.parquet", [raw])], handler=HandlerConfig(name="AlpacaStyleInstructionHandler"))
    batch = load_train(cfg, vision.tokenizer, run_seed=0, vision=vision).batch([0], 0)
    assert len(batch["media"][0]) == 1 and batch["ground_truth"] == ["red"]
