"""The demo's task `vision` learns, and by looking: with the pictures of other prompts it does not."""

from __future__ import annotations

import io
import json
import random

import pytest
from PIL import Image

from burnish.cli.main import main
from burnish.demo.problems import Problems
from burnish.demo.run import reinforce
from burnish.demo.shapes import HELD_OUT, QUESTION, TRAIN, WARMUP, PictureProblem, VisionTask, shuffled
from burnish.log.file import read_metrics


def test_no_picture_is_in_two_sets():
    problems = VisionTask().make_problems(1)
    sets = [{problem.picture for problem in part} for part in (problems.warmup, problems.train, problems.held_out)]
    assert [len(part) for part in sets] == [WARMUP, TRAIN, HELD_OUT]
    assert len(set.union(*sets)) == WARMUP + TRAIN + HELD_OUT
    assert len({problem.question for problem in problems.train}) == 1  # nothing but the picture tells the answer


def squares() -> Problems:
    """Red or blue? Whoever does not look is right half of the time."""
    rng, found = random.Random(1), []
    for number in range(320):
        color = (rng.randrange(200, 256), rng.randrange(60), rng.randrange(60))
        image, (x, y) = Image.new("RGB", (28, 28), "white"), (rng.randrange(12), rng.randrange(12))
        image.paste(color if number % 2 else color[::-1], (x, y, x + 15, y + 15))
        file = io.BytesIO()
        image.save(file, "PNG")
        found.append(PictureProblem(QUESTION, "14"[number % 2], {}, file.getvalue()))
    return Problems.split(found, 64, 192)


@pytest.mark.parametrize("mixed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_small_run_learns_by_looking(tmp_path, monkeypatch, mixed):
    """A fifth of the demo. With the pictures of other prompts it learns nothing."""
    monkeypatch.setattr("burnish.demo.shapes.WARMUP_UPDATES", 15)
    task, problems, steps = VisionTask(), squares(), 25
    task.warm_up(tmp_path / "model", problems, 1, lambda text: None)
    if mixed:
        problems = Problems(problems.warmup, shuffled(problems.train, 1), shuffled(problems.held_out, 2))
    small = ("data.train_batch_size=16", "actor_rollout_ref.actor.ppo_mini_batch_size=16", "data.max_response_length=2")
    quiet = ("trainer.logger=[file]", "trainer.save_freq=-1", "trainer.save_final=false")
    faster = ("actor_rollout_ref.actor.optim.lr=2e-3",)
    result = reinforce(task, tmp_path, tmp_path / "model", problems, 1, steps, (*small, *quiet, *faster))
    before, after = (result.validation[step][task.accuracy] for step in (0, steps))
    assert before <= 0.6
    assert after <= 0.65 if mixed else after >= 0.9


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_model_learns_to_look(tmp_path, capsys):
    assert main(["demo", "--task", "vision", "--seed", "1", "--json", "--folder", str(tmp_path)]) == 0
    line = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert line["before"] < 0.4
    assert line["after"] > 0.8
    metrics = read_metrics(tmp_path / "seed_1" / "run" / "metrics.jsonl")
    assert all(numbers["training/rollout_probs_diff_max"] < 1e-4 for step, numbers in metrics.items() if step)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_pictures_of_other_prompts_do_not_improve_the_model(tmp_path):
    task = VisionTask()
    problems = task.make_problems(1)
    task.warm_up(tmp_path / "model", problems, 1, lambda text: None)
    mixed = Problems(problems.warmup, shuffled(problems.train, 1), shuffled(problems.held_out, 2))
    quiet = ("trainer.logger=[file]", "trainer.save_freq=-1")
    result = reinforce(task, tmp_path, tmp_path / "model", mixed, 1, task.steps, quiet)
    assert result.validation[0][task.accuracy] < 0.4
    assert result.validation[task.steps][task.accuracy] < 0.4
