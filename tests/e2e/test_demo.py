"""The demo learns, and for the right reason: with the rewards of other samples it does not. PPO learns the task too."""

from __future__ import annotations

import json

import pytest

from burnish.cli.main import main
from burnish.demo.run import reinforce
from burnish.demo.sorting import HELD_OUT, TRAIN, WARMUP, SortTask

QUIET = ("trainer.logger=[file]", "trainer.save_freq=-1")


@pytest.fixture(scope="module")
def problems():
    return SortTask().make_problems(1)


@pytest.fixture(scope="module")
def model(problems, tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "model"
    SortTask().warm_up(folder, problems, 1, lambda text: None)
    return folder


def accuracy(result) -> tuple[float, float]:
    steps = sorted(result.validation)
    return result.validation[steps[0]][SortTask.accuracy], result.validation[steps[-1]][SortTask.accuracy]


def test_no_question_is_in_two_sets(problems):
    sets = [{problem.question for problem in part} for part in (problems.warmup, problems.train, problems.held_out)]
    assert [len(part) for part in sets] == [WARMUP, TRAIN, HELD_OUT]
    assert len(set.union(*sets)) == WARMUP + TRAIN + HELD_OUT


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_demo_learns(tmp_path, capsys):
    assert main(["demo", "--seed", "1", "--json", "--folder", str(tmp_path)]) == 0
    line = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert set(line) == {"seed", "before", "after", "seconds"} and line["seed"] == 1
    assert 0.2 <= line["before"] <= 0.4
    assert line["after"] >= 0.8
    assert (tmp_path / "seed_1" / "run" / "curves.png").stat().st_size > 1000


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_quarter_of_the_demo_learns(model, problems, tmp_path):
    before, after = accuracy(reinforce(SortTask(), tmp_path, model, problems, 1, 60, QUIET))
    assert 0.2 <= before <= 0.4
    assert after >= before + 0.15


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_shuffled_rewards_do_not_improve_the_model(model, problems, tmp_path):
    """Each response gets the score of the one scored before it: the same rewards, on the wrong samples."""
    last = [0.0]

    def shifted(solution_str: str, ground_truth: str) -> float:
        score, last[0] = last[0], float(solution_str.strip() == ground_truth)
        return score

    overrides = (*QUIET, "reward.num_workers=0")  # in one process, so that `last` is shared
    before, after = accuracy(reinforce(SortTask(), tmp_path, model, problems, 1, 60, overrides, reward=shifted))
    assert after <= before + 0.05


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ppo_with_a_critic_learns_the_same_task(model, problems, tmp_path):
    ppo = ("algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "critic.model.enable_gradient_checkpointing=false")
    before, after = accuracy(reinforce(SortTask(), tmp_path, model, problems, 1, 160, (*QUIET, *ppo)))
    assert before <= 0.4 and after >= 0.7
