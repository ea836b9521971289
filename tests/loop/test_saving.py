import errno
import threading
import time

import pytest

import burnish.log.rollout_writer as rollout_writer
import burnish.training.checkpoint as checkpoint
from burnish.errors import UserError
from burnish.loop.fit import fit
from burnish.loop.saving import Saving
from burnish.loop.state import save
from burnish.training.checkpoint import Checkpoints, SaveFailed, damage

ASYNC = "actor_rollout_ref.actor.checkpoint.async_save=true"
GATE = 20  # seconds; longer than any of these tests


@pytest.fixture
def gate(monkeypatch):
    """Writing waits until it is opened."""
    opened = threading.Event()
    write = Checkpoints.save

    def wait_then_write(*arguments, **more):
        assert opened.wait(GATE), "nobody opened the gate"
        return write(*arguments, **more)

    monkeypatch.setattr(Checkpoints, "save", wait_then_write)
    yield opened
    opened.set()


def full():
    raise SaveFailed("the checkpoint could not be written")


def test_one_after_the_other():
    saving, done = Saving(), []
    saving.start(1, lambda: (time.sleep(0.05), done.append(1)))
    saving.now(2, lambda: done.append(2))
    assert done == [1, 2] and saving.newest_step == 2


def test_nobody_waits_for_a_slow_disk_and_only_the_newest_waits_its_turn():
    saving, begun, opened, done = Saving(), threading.Event(), threading.Event(), []
    assert saving.start(1, lambda: (begun.set(), opened.wait(GATE), done.append(1))) == []
    assert begun.wait(GATE)
    assert saving.start(2, lambda: done.append(2)) == []
    assert saving.start(3, lambda: done.append(3), required=True) == [2]
    assert saving.start(4, lambda: done.append(4)) == []
    assert saving.start(5, lambda: done.append(5)) == [4]
    assert saving.start(6, lambda: done.append(6), required=True) == [3, 5], "a newer one that is needed replaces both"
    assert saving.start(7, lambda: done.append(7)) == []
    opened.set()
    saving.wait()
    assert done == [1, 6, 7] and saving.newest_step == 7


@pytest.mark.parametrize("how", ["now", "start"])
def test_what_the_disk_refused_is_remembered_until_a_save_succeeds(how):
    saving = Saving()
    getattr(saving, how)(1, full)
    saving.wait()
    assert isinstance(saving.failure, SaveFailed) and saving.failures == 1 and saving.newest_step is None
    said = []
    saving.report(said.append)
    saving.report(said.append)
    assert len(said) == 1 and said[0].startswith("the checkpoint could not be written")
    getattr(saving, how)(2, lambda: None)
    saving.wait()
    assert saving.failure is None and saving.failures == 1 and saving.newest_step == 2


@pytest.mark.parametrize("how", ["now", "start"])
def test_what_is_needed_and_was_refused_comes_before_the_next(how):
    saving, done = Saving(), []
    getattr(saving, how)(1, full, required=True)
    saving.wait()
    saving.hold(1, lambda: done.append(1))
    getattr(saving, how)(2, lambda: done.append(2))
    saving.wait()
    assert done == [1, 2] and saving.failure is None
    saving.hold(3, full)
    getattr(saving, how)(4, lambda: done.append(4))
    saving.wait()
    assert done == [1, 2, 4] and saving.failure is not None, "3 is still missing"
    getattr(saving, how)(5, lambda: done.append(5), required=True)
    saving.wait()
    assert done == [1, 2, 4, 5] and saving.failure is None, "5 takes the place of 3"


@pytest.mark.parametrize("how", ["now", "start"])
def test_at_the_end_what_is_needed_is_tried_a_last_time(how):
    """Nothing comes after it that would take it along. The newest step stays the newest."""
    saving, tried = Saving(), []

    def refuse_once():
        tried.append(1)
        if len(tried) == 1:
            full()

    getattr(saving, how)(1, refuse_once, required=True)
    saving.wait()
    saving.hold(1, refuse_once)
    assert saving.failure is not None
    saving.finish()
    assert tried == [1, 1] and saving.failure is None and saving.newest_step == 1
    saving.now(2, lambda: None)
    saving.hold(1, refuse_once)
    saving.finish()
    assert tried == [1, 1, 1] and saving.newest_step == 2
    saving.finish()
    assert tried == [1, 1, 1], "it is written: nothing is left to try"


def test_a_programming_error_in_a_save_is_raised_by_the_next_save_or_wait():
    saving = Saving()
    saving.start(1, lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="in the background") as caught:
        saving.wait()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    saving.wait()
    with pytest.raises(ZeroDivisionError):
        saving.now(2, lambda: 1 // 0)


def test_closing_lets_it_end_and_tells_of_a_failure(caplog):
    saving = Saving()
    saving.start(1, lambda: 1 // 0)
    saving.close()
    assert "division" in caplog.text


def test_a_save_returns_before_it_is_written(make_run, next_prompts, gate):
    run = make_run(ASYNC)
    save(run)
    assert run.recorder.checkpoints.steps() == [] and run.recorder.saved_step == run.step
    gate.set()
    run.recorder.saving.wait()
    assert run.recorder.checkpoints.steps() == [0]


def test_what_is_written_is_the_state_of_when_it_was_asked(make_run, gate, weights, equal):
    run = make_run(ASYNC, "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]")
    before = weights(run.learner.policy)
    save(run)
    for parameter in run.learner.policy.backend.model.parameters():
        parameter.data.add_(1)
    run.learner.policy.optimizer.updates = 9
    gate.set()
    run.recorder.saving.wait()
    other = make_run()
    assert other.recorder.notices[-1] == f"resumed from {run.recorder.checkpoints.path(0)}"
    assert equal(weights(other.learner.policy), before) and other.learner.policy.optimizer.updates == 0
    hub = make_run("actor_rollout_ref.actor.checkpoint.load_contents=[hf_model]")
    assert equal(weights(hub.learner.policy), before)


def test_a_run_ends_with_everything_written_and_as_one_that_waits(make_run, weights, equal, saved_before_each_step):
    settings = ("algorithm.adv_estimator=gae", "trainer.save_freq=1", "trainer.total_training_steps=3")
    keep = ("trainer.max_actor_ckpt_to_keep=2", "trainer.max_critic_ckpt_to_keep=1")
    beside, plain = make_run(*settings, *keep, ASYNC, out="beside"), make_run(*settings, *keep, out="plain")
    saved_before_each_step(beside)
    fit(beside)
    fit(plain)
    assert beside.recorder.checkpoints.steps() == plain.recorder.checkpoints.steps() == [2, 3]
    assert [damage(beside.recorder.checkpoints.path(step)) for step in (2, 3)] == [None, None]
    again = make_run(*settings, ASYNC, out="beside")
    assert again.step == 3
    assert equal(weights(again.learner.policy), weights(plain.learner.policy)) and equal(
        weights(again.learner.critic), weights(plain.learner.critic)
    )


def test_until_it_is_written_the_one_before_counts(make_run, monkeypatch):
    """A kill in between leaves a partial folder, which nobody takes for a checkpoint."""
    run = make_run(ASYNC)
    save(run)
    run.recorder.saving.wait()
    reached, opened = threading.Event(), threading.Event()

    def stand_still(folder):
        reached.set()
        assert opened.wait(GATE)

    monkeypatch.setattr("burnish.training.checkpoint._write_manifest", stand_still)
    run.step = 1
    save(run)
    assert reached.wait(GATE)
    assert list(run.recorder.folder.path.glob(".global_step_1.partial/actor/*")), "all of it is there but the seal"
    assert Checkpoints(run.recorder.folder.path).latest_good() == (run.recorder.checkpoints.path(0), [])
    opened.set()
    run.recorder.saving.wait()


def test_a_slow_disk_delays_no_step(make_run, monkeypatch, weights, equal):
    """Each checkpoint takes far longer than a step: the run leaves some out and says so, the last one is there."""
    monkeypatch.setattr("burnish.training.checkpoint._sync", lambda path: time.sleep(0.05))
    settings = ("trainer.save_freq=1", "trainer.total_training_steps=8", "trainer.logger=[file]")
    slow, plain = make_run(*settings, ASYNC, out="slow"), make_run(*settings[1:], out="plain")
    asked = []
    start = slow.recorder.saving.start

    def timed(*arguments, **more):
        begun = time.monotonic()
        given_up = start(*arguments, **more)
        asked.append(time.monotonic() - begun)
        return given_up

    monkeypatch.setattr(slow.recorder.saving, "start", timed)
    fit(slow)
    fit(plain)
    written = Checkpoints(slow.recorder.folder.path).steps()
    assert written[-1] == 8 and len(written) < 8 and len(asked) == 8
    assert max(asked) < 0.3, "a checkpoint takes at least 0.5 s, and nobody waited for one"
    notes = (slow.recorder.folder.path / "notes.txt").read_text()
    assert notes.count("the disk is slower than the run") == 8 - len(written)
    assert all(damage(slow.recorder.checkpoints.path(step)) is None for step in written)
    assert equal(weights(slow.learner.policy), weights(plain.learner.policy))


def refuses(monkeypatch, steps):
    """The disk refuses the checkpoints of these steps."""
    write = checkpoint._write_manifest

    def refuse(folder):
        if any(folder.name == f".global_step_{step}.partial" for step in steps):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder)

    monkeypatch.setattr("burnish.training.checkpoint._write_manifest", refuse)


@pytest.mark.parametrize("more", [(), (ASYNC,)], ids=["waiting", "beside"])
def test_a_full_disk_is_reported_and_saving_is_retried(make_run, monkeypatch, tmp_path, more, saved_before_each_step):
    refuses(monkeypatch, (2, 3))
    settings = ("trainer.save_freq=2", "trainer.total_training_steps=5", "trainer.logger=[file]")
    run = make_run(*settings, *more)
    saved_before_each_step(run)
    result = fit(run)
    assert result.step == 5 and run.recorder.saving.failure is None and run.recorder.saving.failures == 2
    assert run.recorder.checkpoints.steps() == [4, 5] and damage(run.recorder.checkpoints.path(4)) is None
    notes = (tmp_path / "run" / "notes.txt").read_text()
    assert "checkpoint of step 2 could not be written ([Errno 28] No space left on device)" in notes
    assert notes.count("The run continues and tries again after every step") == run.recorder.saving.failures
    assert result.metrics["training/failed_saves"] == run.recorder.saving.failures


@pytest.mark.parametrize("more", [(), (ASYNC,)], ids=["waiting", "beside"])
def test_a_run_that_ends_on_a_full_disk_says_so(make_run, monkeypatch, tmp_path, more):
    """The last good checkpoint is named, and the policy is exported all the same: that may be another disk."""
    refuses(monkeypatch, (2, 3))
    run = make_run(
        "trainer.save_freq=1", "trainer.total_training_steps=3", f"trainer.export_dir={tmp_path / 'x'}", *more
    )
    with pytest.raises(UserError, match=r"checkpoint of step 3 could not be written .*global_step_1") as caught:
        fit(run)
    assert isinstance(caught.value.__cause__, OSError)
    assert run.recorder.checkpoints.latest_good() == (run.recorder.checkpoints.path(1), [])
    assert (tmp_path / "x" / "model.safetensors").is_file()


def test_trajectories_are_kept_while_the_disk_is_full(make_run, monkeypatch, rollouts, tmp_path):
    dump = rollout_writer.dump_rollouts
    tried = []

    def refuse(folder, step, rows):
        tried.append(step)
        if len(tried) <= 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return dump(folder, step, rows)

    monkeypatch.setattr(rollout_writer, "dump_rollouts", refuse)
    fit(make_run("trainer.total_training_steps=3", "trainer.logger=[file]"))
    assert tried == [1, 1, 1, 2, 3] and list(rollouts(tmp_path / "run")) == ["1.jsonl", "2.jsonl", "3.jsonl"]
    assert "cannot write the trajectories of step 1" in (tmp_path / "run" / "notes.txt").read_text()


def test_responses_are_not_kept_for_ever(make_run, monkeypatch, tmp_path):
    def refuse(folder, step, rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rollout_writer, "dump_rollouts", refuse)
    monkeypatch.setattr(rollout_writer, "MAX_REFUSED", 1)
    run = make_run("trainer.total_training_steps=2", "trainer.logger=[file]")
    fit(run)
    assert list(run.recorder.texts._refused) == [2]
    assert "gave up writing the trajectories of step 1" in (tmp_path / "run" / "notes.txt").read_text()
