"""Supervised fine-tuning and generation with images: data, training, frozen towers, refusals, and the saved model."""

from __future__ import annotations

import io
import json

import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText

import burnish
from burnish.config import load
from burnish.demo.tiny_vision import make_vision_model
from burnish.errors import UserError
from burnish.jobs.eval.run import evaluate
from burnish.jobs.generate import generate
from burnish.jobs.sft.build import build
from burnish.jobs.sft.fit import sft
from burnish.training.export import export

COLORS = {"red": (255, 0, 0), "blue": (0, 0, 255)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    made = make_vision_model(folder, "qwen2_5_vl")
    with torch.no_grad():  # as after training: a random model hardly looks at anything
        for parameter in made.parameters():
            parameter.mul_(2.0) if parameter.dim() > 1 else None
    made.save_pretrained(folder)
    return folder


def png(color: str, size: int = 56) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (size, size), COLORS[color]).save(out, "PNG")
    return out.getvalue()


def questions(**more):
    return [
        {"prompt": [{"role": "user", "content": "<image>What color?"}], "images": [{"bytes": png(color)}], **more}
        for color in COLORS
    ]


def asked(model, rows, *more):
    settings = ["data.n_samples=1", "rollout.prompt_length=64", "rollout.response_length=4", "rollout.do_sample=false"]
    settings += ["rollout.ignore_eos=true", "trainer.device=cpu", f"model.path={model}", *more]
    return generate(settings, prompts=rows)


def test_answers_depend_on_the_picture(model):
    """Greedily, and however the rows are batched."""
    rows = questions()
    both = asked(model, rows).responses
    assert both[0] != both[1]
    assert asked(model, rows, "data.batch_size=1", "rollout.name=hf").responses == both
    swapped = [{**rows[0], "images": rows[1]["images"]}]
    assert asked(model, swapped).responses == [both[1]]


def test_without_the_column_the_placeholder_is_text(model):
    rows = [{**row, "pictures": row["images"]} for row in questions()]
    for row in rows:
        del row["images"]
    assert asked(model, rows, "data.image_key=pictures").responses == asked(model, questions()).responses
    one, other = asked(model, rows).responses
    assert one == other


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"images": [{"bytes": b"no picture"}]}, "data.image_key"),
        ({"images": []}, "data.image_key"),
        ({"images": [{"bytes": png("red")}] * 2}, "data.image_key"),
    ],
)
def test_bad_pictures_name_the_row(model, change, key):
    rows = questions()
    with pytest.raises(UserError, match="row 1") as caught:
        asked(model, [rows[0], {**rows[1], **change}])
    assert caught.value.key == key


def test_truncation_never_cuts_a_picture(model):
    with pytest.raises(UserError, match="cut or drop a picture"):
        asked(model, questions(), "rollout.prompt_length=4", "data.truncation=left")


def test_keys_that_do_not_fit_the_model_are_refused(model, tiny_folder):
    with pytest.raises(UserError, match="takes only text") as caught:
        asked(tiny_folder, ["1+1"], "data.image_key=pictures")
    assert caught.value.key == "data.image_key"
    with pytest.raises(UserError, match="takes text only"):
        asked(tiny_folder, questions())
    smaller = asked(model, questions(), "data.mm_processor_kwargs={max_pixels:784}")
    assert smaller.responses != asked(model, questions()).responses


def examples(count: int = 8):
    rows = []
    for number in range(count):
        color = list(COLORS)[number % 2]
        messages = [{"role": "user", "content": "<image>What color?"}, {"role": "assistant", "content": color}]
        rows.append({"messages": messages, "images": [{"bytes": png(color)}]})
    return rows


def trained(model, folder, *more):
    settings = [f"model.partial_pretrain={model}", "data.multiturn.enable=true", "data.train_batch_size=8"]
    settings += ["data.max_length=64", "optim.lr=1e-2", "trainer.total_training_steps=12", "trainer.logger=[]"]
    settings += ["trainer.device=cpu", f"trainer.default_local_dir={folder}", "trainer.save_freq=-1", *more]
    run = build(load(settings, job="sft", given=["data.train_files"]).cfg, examples())
    before = {name: value.detach().clone() for name, value in run.model.backend.model.named_parameters()}
    losses = [run.model.update(run.train_data.batch(range(8)), step)["train/loss"] for step in range(1, 13)]
    after = dict(run.model.backend.model.named_parameters())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    return run, losses, changed


def test_examples_with_images_are_learnt(model, tmp_path):
    """Down to less than what the best answer without looking has: one bit for the first token."""
    _, losses, changed = trained(model, tmp_path)
    assert losses[-1] < 0.3 * losses[0]
    assert any("visual" in name for name in changed)


def seen(model, folder, rows, *more):
    """The media of the examples, and how many examples there are."""
    settings = [f"model.partial_pretrain={model}", "data.multiturn.enable=true", "data.train_batch_size=1"]
    settings += ["data.max_length=64", "trainer.logger=[]", "trainer.device=cpu", "trainer.total_training_steps=1"]
    settings += [f"trainer.default_local_dir={folder}", *more]
    data = build(load(settings, job="sft", given=["data.train_files"]).cfg, rows).train_data
    batch = data.batch(range(len(data)))
    return [[(item.kind, item.num_tokens) for item in row] for row in batch["media"]]


def test_keys_of_supervised_examples_with_pictures(model, tmp_path):
    rows = examples(2)
    assert seen(model, tmp_path, rows) == [[("image", 4)], [("image", 4)]]
    assert seen(model, tmp_path, rows, "data.mm_processor_kwargs={max_pixels:784}") == [[("image", 1)]] * 2
    renamed = [{"messages": row["messages"], "pictures": row["images"]} for row in rows]
    assert seen(model, tmp_path, renamed, "data.image_key=pictures") == [[("image", 4)]] * 2
    films = [
        {
            "messages": [{"role": "user", "content": "<video>What color?"}, *row["messages"][1:]],
            "films": [[png("red"), png("blue")]],
        }
        for row in rows
    ]
    assert seen(model, tmp_path, films, "data.video_key=films") == [[("video", 4)]] * 2
    broken = [rows[0], {**rows[1], "images": [{"bytes": b"no picture"}]}]
    with pytest.raises(UserError, match="row 1"):
        seen(model, tmp_path, broken)
    assert len(seen(model, tmp_path, broken, "data.invalid_media=drop")) == 1


def test_a_frozen_tower_does_not_change(model, tmp_path):
    _, losses, changed = trained(model, tmp_path, "model.freeze_vision_tower=true")
    assert losses[-1] < losses[0] and changed and not any("visual" in name for name in changed)
    with pytest.raises(UserError) as caught:
        trained(model, tmp_path, "data.image_key=pictures", "model.partial_pretrain=nothing")
    assert caught.value.key == "model.partial_pretrain"


def test_checkpoints_and_exports_load_with_their_processor(model, tmp_path):
    settings = [f"model.partial_pretrain={model}", "data.multiturn.enable=true", "data.train_batch_size=4"]
    settings += ["data.max_length=64", "trainer.total_training_steps=1", "trainer.logger=[]", "trainer.device=cpu"]
    settings += [f"trainer.default_local_dir={tmp_path / 'run'}", "trainer.save_freq=1"]
    sft(settings, dataset=examples(4))
    export(tmp_path / "run", tmp_path / "exported")
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path / "exported")
    assert loaded.config.model_type == "qwen2_5_vl"
    processor = AutoImageProcessor.from_pretrained(tmp_path / "exported")
    assert processor.patch_size == 14
    assert json.loads((tmp_path / "exported" / "preprocessor_config.json").read_text())["merge_size"] == 2
    again = asked(tmp_path / "exported", questions()).responses
    assert asked(tmp_path / "run", questions()).responses == again


REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info, multi_modal_data):
    (image,) = multi_modal_data["image"]
    return float(image.convert("RGB").getpixel((0, 0))[0] == 255)
"""


def test_rewards_of_eval_see_the_pictures(tmp_path):
    file = tmp_path / "reward.py"
    file.write_text(REWARD)
    rows = questions(responses=["red", "blue"], data_source="colors", reward_model={"ground_truth": "red"})
    settings = [f"custom_reward_function.path={file}", "reward.num_workers=0"]
    report = evaluate(settings, rows=rows)
    assert [row.scores for row in report.scored] == [[1.0, 1.0], [0.0, 0.0]]
    renamed = [{name: value for name, value in row.items() if name != "images"} for row in rows]
    for row, original in zip(renamed, rows, strict=True):
        row["pictures"] = original["images"]
    again = evaluate([*settings, "data.image_key=pictures"], rows=renamed)
    assert [row.scores for row in again.scored] == [[1.0, 1.0], [0.0, 0.0]]
    of_films = tmp_path / "films.py"
    of_films.write_text(REWARD.replace('["image"]', '["video"]').replace("image.convert", "image.frames[0].convert"))
    films = [{**row, "prompt": [{"role": "user", "content": "<video>?"}]} for row in renamed]
    for row in films:
        row["films"] = [[row.pop("pictures")[0]] * 2]
    scored = evaluate(
        [f"custom_reward_function.path={of_films}", *settings[1:], "data.video_key=films"], rows=films
    ).scored
    assert [row.scores for row in scored] == [[1.0, 1.0], [0.0, 0.0]]
    broken = [{**rows[0], "images": [{"bytes": b"no picture"}]}]
    with pytest.raises(UserError, match="row 0"):
        evaluate(settings, rows=broken)


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("actor_rollout_ref.actor.freeze_vision_tower=true", "actor_rollout_ref.actor.freeze_vision_tower"),
        ("data.mm_processor_kwargs={max_pixels:1000}", "data.mm_processor_kwargs"),
        ("data.video_key=films", "data.video_key"),
    ],
)
def test_training_a_text_model_refuses_keys_of_pictures(tiny_folder, tmp_path, monkeypatch, setting, key):
    """Before a model is loaded."""
    monkeypatch.setattr("burnish.loop.build.build_roles", lambda *arguments, **more: pytest.fail("models were loaded"))
    settings = ["algorithm.adv_estimator=grpo", f"actor_rollout_ref.model.path={tiny_folder}", "trainer.device=cpu"]
    settings += [f"trainer.default_local_dir={tmp_path}", setting]
    row = {"prompt": [{"role": "user", "content": "1+1"}], "data_source": "s", "reward_model": {"ground_truth": "2"}}
    with pytest.raises(UserError, match="takes only text") as caught:
        burnish.train(settings, reward=lambda solution_str: 0.0, dataset=[row] * 4)
    assert caught.value.key == key
