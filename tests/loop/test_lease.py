import time

import pytest

from burnish.errors import UserError
from burnish.loop.fit import fit
from burnish.loop.lease import FIRST_SAVE, VARIABLES, Lease


def test_a_machine_of_ones_own_has_no_end():
    assert Lease.of(10.0, {}).ends is None and not Lease.of(1e9, {}).runs_out()


@pytest.mark.parametrize("name", VARIABLES)
def test_the_environment_says_when_it_ends(name):
    assert Lease.of(5.0, {name: "1700000000"}) == Lease(1.7e9, 5.0)
    assert Lease.of(0.0, {name: "1700000000"}).runs_out()


def test_a_time_that_is_none_is_refused():
    with pytest.raises(UserError, match=f"{VARIABLES[0]}='tomorrow'"):
        Lease.of(0.0, {VARIABLES[0]: "tomorrow"})


def test_a_step_and_a_save_must_fit(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert not Lease(1000 + FIRST_SAVE + 1, spare=0.0).runs_out()
    assert Lease(1000 + FIRST_SAVE + 1, spare=1.0).runs_out()
    lease = Lease(1000 + 30, spare=0.0)
    lease.measured({"timing_s/step": 10.0, "timing_s/save_checkpoint": 15.0})
    lease.measured({"timing_s/step": 4.0})
    assert not lease.runs_out(), "25 of 30 seconds"
    lease.measured({"timing_s/step": 16.0})
    assert lease.runs_out()


def test_a_run_saves_before_its_lease_ends_and_resumes_elsewhere(make_run, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLES[0], str(time.time() + 3600))
    steps = ("trainer.total_training_steps=3", "trainer.logger=[file]")
    run = make_run(*steps)
    log = run.recorder.loggers.log

    def lose_the_machine(step, metrics):
        log(step, metrics)
        run.recorder.lease.ends = time.time() + 1

    monkeypatch.setattr(run.recorder.loggers, "log", lose_the_machine)
    result = fit(run)
    assert result.interrupted and result.step == 1 and run.recorder.checkpoints.steps() == [1]
    assert "because the machine's lease ends" in (tmp_path / "run" / "notes.txt").read_text()
    other = make_run(*steps)
    assert other.step == 1 and fit(other).step == 3
