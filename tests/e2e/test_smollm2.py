"""The example with a real model: its parts, a run with a tiny model in its place, and (long) the run itself."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from burnish.config import load
from burnish.demo.tiny import make_model, make_tokenizer

FOLDER = Path(__file__).parents[2] / "examples" / "smollm2"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(FOLDER / "train.py"))


def test_only_the_right_number_alone_scores(example):
    score = example["score"]
    right = [" 12", "12\n", " 12."]
    wrong = [" 12, so", " 3 + 9 = 12", "123", "1", "", " twelve", " 12 12", " 12.5"]
    assert [score(text, "12") for text in right + wrong] == [1.0] * len(right) + [0.0] * len(wrong)


def test_every_sum_has_its_answer_and_is_in_one_split(example):
    learnt, held_out = example["rows"]()
    sums = [[example_sum(row) for row in part] for part in (learnt, held_out)]
    assert all(a + b == right for part in sums for a, b, right in part)
    learnt_pairs, held_out_pairs = [{(a, b) for a, b, _ in part} for part in sums]
    assert learnt_pairs | held_out_pairs == {(a, b) for a in range(10) for b in range(10)}
    assert not learnt_pairs & {pair for a, b in held_out_pairs for pair in ((a, b), (b, a))}
    assert len(learnt) + len(held_out) == 100 and 15 <= len(held_out) <= 25


def example_sum(row):
    a, b = row["prompt"][0]["content"].removeprefix("What is ").removesuffix("?").split(" + ")
    return int(a), int(b), int(row["reward_model"]["ground_truth"])


def test_the_settings_are_understood(example):
    given = ["data.train_files", "data.val_files"]
    loaded = load([*example["SETTINGS"], "actor_rollout_ref.model.path=m"], given=given)
    assert loaded.notices == []
    assert loaded.cfg.actor_rollout_ref.model.custom_chat_template == example["FORMAT"]
    assert example["HELD_OUT"].endswith(f"mean@{loaded.cfg.actor_rollout_ref.rollout.val_kwargs.n}")


def test_the_command_runs_with_a_tiny_model(example, tmp_path, capsys, monkeypatch):
    characters = "What is 0123456789 + 4? The answer is"
    make_model(tmp_path / "model", make_tokenizer(characters), hidden=16, layers=2, seed=0)
    places = ["--model", str(tmp_path / "model"), "--folder", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["train.py", *places, "trainer.total_training_steps=2"])
    example["main"]()
    assert "2 steps" in capsys.readouterr().out
    assert (tmp_path / "run" / "curves.png").exists()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_real_model_learns(example, tmp_path):
    """Half the example's steps, sampled answers to held-out sums. How long it takes is not a test's business."""
    model = runpy.run_path(str(FOLDER / "model.py"))["ensure"](Path(sys.prefix) / "smollm2")
    curve, held_out = example["train"](str(model), tmp_path, ["trainer.total_training_steps=8"])
    assert curve[0] <= 0.3 and held_out[0] <= 0.3
    assert held_out[-1] >= 0.7
