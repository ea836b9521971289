import threading
import time

import pytest

from burnish.errors import UserError
from burnish.loop.fit import fit
from burnish.loop.saving import Saving
from burnish.loop.state import save
from burnish.train.checkpoint import Checkpoints, damage

ASYNC = "actor_rollout_ref.actor.checkpoint.async_save=true"
GATE = 20  # seconds; longer than any of these tests


@pytest.fixture
def gate(monkeypatch):
    """Writing waits until it is opened."""
    opened = threading.Event()
    write = Checkpoints.save

    def wait_then_write(*arguments):
        assert opened.wait(GATE), "nobody opened the gate"
        return write(*arguments)

    monkeypatch.setattr(Checkpoints, "save", wait_then_write)
    yield opened
    opened.set()


def test_what_is_started_is_waited_for():
    saving, done = Saving(), []
    saving.start(lambda: (time.sleep(0.05), done.append(1)))
    saving.start(lambda: done.append(len(done)))
    saving.wait()
    assert done == [1, 1], "the second waited for the first"
    saving.wait()


def test_a_failure_is_told_once_to_whoever_waits():
    saving = Saving()
    saving.start(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="could not be written in the background") as caught:
        saving.wait()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    saving.wait()

    def full():
        try:
            raise OSError("no space left")
        except OSError as error:
            raise UserError("the checkpoint could not be written") from error

    saving.start(full)
    with pytest.raises(UserError, match="could not be written") as caught:
        saving.start(lambda: None)
    assert isinstance(caught.value.__cause__, OSError)


def test_closing_lets_it_end_and_tells_of_a_failure(caplog):
    saving = Saving()
    saving.start(lambda: 1 // 0)
    saving.close()
    assert "division" in caplog.text


def test_a_save_returns_before_it_is_written(make_run, next_prompts, gate):
    run = make_run(ASYNC)
    save(run)
    assert run.checkpoints.steps() == [] and run.saved_step == run.step
    gate.set()
    run.saving.wait()
    assert run.checkpoints.steps() == [0]


def test_what_is_written_is_the_state_of_when_it_was_asked(make_run, gate, weights, equal):
    run = make_run(ASYNC, "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]")
    before = weights(run.policy)
    save(run)
    for parameter in run.policy.backend.model.parameters():
        parameter.data.add_(1)
    run.policy.optimizer.updates = 9
    gate.set()
    run.saving.wait()
    other = make_run()
    assert other.notices == [f"resumed from {run.checkpoints.path(0)}"]
    assert equal(weights(other.policy), before) and other.policy.optimizer.updates == 0
    hub = make_run("actor_rollout_ref.actor.checkpoint.load_contents=[hf_model]")
    assert equal(weights(hub.policy), before)


def test_a_run_ends_with_everything_written_and_as_one_that_waits(make_run, tmp_path, weights, equal):
    settings = ("algorithm.adv_estimator=gae", "trainer.save_freq=1", "trainer.total_training_steps=3")
    keep = ("trainer.max_actor_ckpt_to_keep=2", "trainer.max_critic_ckpt_to_keep=1")
    beside, plain = make_run(*settings, *keep, ASYNC, out="beside"), make_run(*settings, *keep, out="plain")
    fit(beside)
    fit(plain)
    assert beside.checkpoints.steps() == plain.checkpoints.steps() == [2, 3]
    assert [damage(beside.checkpoints.path(step)) for step in (2, 3)] == [None, None]
    again = make_run(*settings, ASYNC, out="beside")
    assert again.step == 3
    assert equal(weights(again.policy), weights(plain.policy)) and equal(weights(again.critic), weights(plain.critic))


def test_until_it_is_written_the_one_before_counts(make_run, monkeypatch):
    """A kill in between leaves a partial folder, which nobody takes for a checkpoint."""
    run = make_run(ASYNC)
    save(run)
    run.saving.wait()
    reached, opened = threading.Event(), threading.Event()

    def stand_still(folder):
        reached.set()
        assert opened.wait(GATE)

    monkeypatch.setattr("burnish.train.checkpoint._write_manifest", stand_still)
    run.step = 1
    save(run)
    assert reached.wait(GATE)
    assert list(run.folder.path.glob(".global_step_1.partial/actor/*")), "all of it is there but the seal"
    assert Checkpoints(run.folder.path).latest_good() == (run.checkpoints.path(0), [])
    opened.set()
    run.saving.wait()


def test_a_disk_that_fails_stops_the_run_at_the_next_save(make_run, monkeypatch):
    def full(folder):
        raise OSError("no space left on device")

    run = make_run(ASYNC, "trainer.save_freq=1", "trainer.total_training_steps=3")
    monkeypatch.setattr("burnish.train.checkpoint._write_manifest", full)
    with pytest.raises(UserError, match="checkpoint of step 1 could not be written") as caught:
        fit(run)
    assert isinstance(caught.value.__cause__, OSError) and run.step == 2
