"""A worker that dies: the run restarts from its last checkpoint, ends as if nothing had happened, and not for ever."""

import pytest

from burnish.errors import UserError, WorkerDied
from burnish.training.checkpoint import Checkpoints
from burnish.training.policy import Policy

FOUR = ("trainer.total_training_steps=4", "trainer.logger=[file]")
DEATH = WorkerDied("rank 1 of 2", "was killed by signal 9")


@pytest.fixture
def dies(monkeypatch):
    """dies(2, 2, 3): updates at these steps lose a worker, each once."""
    update = Policy.update

    def plan(*steps):
        left = list(steps)

        def dying(self, batch, step):
            if step in left:
                left.remove(step)
                raise WorkerDied("rank 1 of 2", "was killed by signal 9")
            return update(self, batch, step)

        monkeypatch.setattr(Policy, "update", dying)
        return left

    return plan


def without_restarts(lines):
    return [(step, {k: v for k, v in line.items() if k != "training/restarts"}) for step, line in lines]


def test_it_ends_as_if_nothing_had_happened(launch, dies, metric_lines, rollouts, tmp_path):
    launch(*FOUR, "trainer.save_freq=1", out="whole")
    left = dies(2, 3, 3)
    result = launch(*FOUR, "trainer.save_freq=1")
    assert left == [] and result.step == 4
    lines, whole = metric_lines(tmp_path / "run"), metric_lines(tmp_path / "whole")
    assert without_restarts(lines) == whole
    assert [line.get("training/restarts") for _, line in lines] == [None, 1, 3, 3]
    assert rollouts(tmp_path / "run") == rollouts(tmp_path / "whole")
    notes = (tmp_path / "run" / "notes.txt").read_text()
    assert "restart 1: rank 1 of 2 was killed by signal 9; resuming from the last checkpoint" in notes
    assert notes.count("resumed from") == 3


def test_without_a_checkpoint_it_starts_again_as_it_was_asked_to(launch, dies, tmp_path):
    launch("trainer.save_freq=1", "trainer.total_training_steps=3", out="run")  # of another run, to be left alone
    dies(2)
    result = launch(*FOUR, "trainer.resume_mode=disable", out="run")
    assert result.step == 4 and result.metrics["training/restarts"] == 1
    assert "resumed from" not in (tmp_path / "run" / "notes.txt").read_text()


def test_a_run_that_started_anew_resumes_from_its_own_checkpoint(launch, dies, tmp_path):
    launch("trainer.save_freq=1", "trainer.total_training_steps=3", out="run")
    dies(3)
    launch(*FOUR, "trainer.resume_mode=disable", "trainer.save_freq=2", out="run")
    assert f"resumed from {tmp_path / 'run' / 'global_step_2'}" in (tmp_path / "run" / "notes.txt").read_text()


def test_it_does_not_try_for_ever(launch, dies, tmp_path):
    left = dies(*[2] * 9)
    with pytest.raises(UserError) as caught:
        launch(*FOUR, "trainer.save_freq=1", "trainer.max_restarts=2")
    assert len(left) == 6, "once, and two restarts"
    assert caught.value.key == "trainer.max_restarts" and "3 failures in a row" in caught.value.problem
    assert "rank 1 of 2 was killed by signal 9" in caught.value.problem
    assert Checkpoints(tmp_path / "run").steps() == [1]


def test_progress_gives_it_new_patience(launch, dies):
    left = dies(1, 2, 3, 4)
    assert launch(*FOUR, "trainer.save_freq=1", "trainer.max_restarts=1").step == 4
    assert left == []


def test_no_restarts_where_none_are_wanted(launch, dies):
    left = dies(1, 1)
    with pytest.raises(UserError, match="Run the same command to resume from the last checkpoint"):
        launch(*FOUR, "trainer.max_restarts=0")
    assert len(left) == 1


def test_other_errors_are_not_deaths(launch, monkeypatch):
    calls = []

    def broken(self, batch, step):
        calls.append(step)
        raise ValueError("a bug")

    monkeypatch.setattr(Policy, "update", broken)
    with pytest.raises(ValueError, match="a bug"):
        launch(*FOUR)
    assert calls == [1]
