"""The example with a real model, run with a tiny one in its place: no download, and every setting is understood."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from burnish.demo.tiny import make_model, make_tokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2" / "train.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


def test_only_the_right_number_at_the_start_scores(example):
    score = example["score"]
    assert [score(text, "12") for text in (" 12", "12\n", "12, so", " 3 + 9 = 12", "123", "1", "", "twelve")] == [
        *(1.0, 1.0, 1.0),
        *[0.0] * 5,
    ]


def test_every_question_has_its_answer(example):
    made = example["rows"](50, seed=1)
    assert all(
        eval(row["prompt"][0]["content"].rstrip("= ")) == int(row["reward_model"]["ground_truth"]) for row in made
    )
    assert made == example["rows"](50, seed=1) != example["rows"](50, seed=2)


def test_a_step(example, tmp_path):
    make_model(tmp_path / "model", make_tokenizer("0123456789 +="), hidden=16, layers=2, seed=0)
    curve = example["train"](str(tmp_path / "model"), tmp_path / "run", ["trainer.total_training_steps=2"])
    assert len(curve) == 2 and all(0 <= reward <= 1 for reward in curve)
