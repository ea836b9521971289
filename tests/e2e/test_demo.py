"""The demo learns, and for the right reason: with the rewards of other samples it does not. PPO learns the task too."""

from __future__ import annotations

import json

import pytest

from burnish.cli.main import main
from burnish.demo.run import ACCURACY, HELD_OUT, TRAIN, WARMUP, reinforce, warm_up
from burnish.demo.task import make_problems

QUIET = ("trainer.logger=[file]", "trainer.save_freq=-1")


@pytest.fixture(scope="module")
def problems():
    return make_problems(1, warmup=WARMUP, train=TRAIN, held_out=HELD_OUT)


@pytest.fixture(scope="module")
def model(problems, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "model"
    warm_up(folder, problems, seed=1)
    return folder


def accuracy(result) -> tuple[float, float]:
    steps = sorted(result.validation)
    return result.validation[steps[0]][ACCURACY], result.validation[steps[-1]][ACCURACY]


def test_no_question_is_in_two_sets(problems):
    sets = [{problem.question for problem in part} for part in (problems.warmup, problems.train, problems.held_out)]
    assert [len(part) for part in sets] == [WARMUP, TRAIN, HELD_OUT]
    assert len(set.union(*sets)) == WARMUP + TRAIN + HELD_OUT


def test_the_demo_learns(tmp_path, capsys):
    assert main(["demo", "--seed", "1", "--json", "--folder", str(tmp_path)]) == 0
    line = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert set(line) == {"seed", "before", "after", "seconds"} and line["seed"] == 1
    assert 0.2 <= line["before"] <= 0.4
    assert line["after"] >= 0.8
    assert (tmp_path / "seed_1" / "run" / "curves.png").stat().st_size > 1000


def test_rewards_of_other_samples_teach_nothing(model, problems, tmp_path):
    """Each response gets the score of the one scored before it: the same rewards, on the wrong samples."""
    last = [0.0]

    def shifted(solution_str: str, ground_truth: str) -> float:
        score, last[0] = last[0], float(solution_str.strip() == ground_truth)
        return score

    overrides = (*QUIET, "reward.num_workers=0")  # in one process, so that `last` is shared
    before, after = accuracy(reinforce(tmp_path, model, problems, 1, 60, overrides, shifted))
    assert after <= before + 0.05


@pytest.mark.long
def test_ppo_with_a_critic_learns_the_same_task(model, problems, tmp_path):
    ppo = ("algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "critic.model.enable_gradient_checkpointing=false")
    before, after = accuracy(reinforce(tmp_path, model, problems, 1, 160, (*QUIET, *ppo), None))
    assert before <= 0.4 and after >= 0.7
