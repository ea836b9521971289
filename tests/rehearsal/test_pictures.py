"""Commands with images are rehearsed with a stand-in that sees and pictures that are drawn for it."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest
from PIL import Image

from burnish.dialects.translate import translate_command
from burnish.rehearsal.rehearse import rehearse
from burnish.rehearsal.synthetic import has_pictures, with_picture

GEO3K = (
    "algorithm.adv_estimator=grpo data.train_files=geo3k/train.parquet data.val_files=geo3k/test.parquet"
    " data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=2048 data.image_key=pictures"
    " data.filter_overlong_prompts=True actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct"
    " actor_rollout_ref.actor.freeze_vision_tower=True actor_rollout_ref.actor.ppo_mini_batch_size=128"
    " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.rollout.name=vllm"
    " +actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache=True"
    " actor_rollout_ref.rollout.n=4 trainer.n_gpus_per_node=8"
    " +data.mm_processor_kwargs.min_pixels=200704"
)


def test_verls_geo3k_command_is_rehearsed(tmp_path):
    command = ["python3", "-m", "verl.trainer.main_ppo", *GEO3K.split()]
    report = rehearse(translate_command(command), folder=tmp_path)
    assert report.exit_status == 0 and not [str(finding) for finding in report.findings]
    assert any("a tiny qwen2_5_vl" in line for line in report.stand_ins)
    assert any("images)" in line for line in report.stand_ins)
    assert any("small pictures" in line for line in report.folded)
    (file,) = tmp_path.glob("data/train_files_0/*.parquet")
    rows = pq.read_table(file).to_pylist()
    assert all(row["prompt"][0]["content"].startswith("<image>") and len(row["pictures"]) == 1 for row in rows)
    assert Image.open(io.BytesIO(rows[0]["pictures"][0]["bytes"])).size == (56, 56)


def test_families_that_are_not_supported_are_refused(tmp_path):
    command = [
        "python3",
        "-m",
        "verl.trainer.main_ppo",
        *GEO3K.replace("Qwen2.5-VL-7B-Instruct", "InternVL3-8B").split(),
    ]
    report = rehearse(translate_command(command), folder=tmp_path)
    assert report.exit_status == 3


def test_an_engine_that_gets_no_pictures_breaks_the_real_run(tmp_path):
    words = GEO3K.replace("rollout.name=vllm", "rollout.name=sglang").split()
    report = rehearse(translate_command(["python3", "-m", "verl.trainer.main_ppo", *words]), folder=tmp_path)
    assert [finding.breaks for finding in report.findings] == [True]
    assert "SGLang does not get images" in report.findings[0].text and report.exit_status == 1


class Data:
    def __init__(self, **fields):
        self.__dict__ |= {"image_key": "images", "prompt_key": "prompt"} | fields


class Config:
    def __init__(self, **fields):
        self.data = Data(**fields)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("geo3k", (), True),
        ("openai/gsm8k", (), False),
        ("openai/gsm8k", ("data.image_key",), True),
        ("mathvista", (), True),
    ],
)
def test_which_synthetic_rows_have_pictures(name, settings, expected):
    assert has_pictures(Config(), settings, name) is expected
    assert not has_pictures(Config(image_key=None), settings, name)


def test_rows_of_other_forms_stay():
    row = {"instruction": "1+1"}
    assert with_picture(row, Config(), 0) is row
    assert with_picture({"prompt": "1+1"}, Config(), 0)["prompt"] == "<image>1+1"
