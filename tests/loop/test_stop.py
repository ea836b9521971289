"""Ctrl-C and SIGTERM: one finishes the step and saves, two stop at once."""

import itertools
import os
import signal
import threading

import pytest

from burnish.cli.main import main
from burnish.errors import StopNow
from burnish.loop.stop import stop_request
from burnish.training.checkpoint import Checkpoints


def sends(signum, *calls):
    """A reward that sends this process a signal when it is asked for these times."""
    count = itertools.count(1)

    def reward(solution_str):
        if next(count) in calls:
            os.kill(os.getpid(), signum)
        return solution_str.count("7") / max(1, len(solution_str))

    return reward


@pytest.mark.parametrize(("signum", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_finishes_the_step_and_saves(launch, tmp_path, capfd, signum, name):
    handler = signal.getsignal(signum)
    result = launch("trainer.total_training_steps=5", "trainer.logger=[file]", reward=sends(signum, 10))
    assert result.interrupted and result.step == 2 and result.status == 128 + signum
    assert Checkpoints(tmp_path / "run").steps() == [2]
    assert f"{name} received: finishing this step, then saving" in capfd.readouterr().err
    assert "stopped after step 2; checkpoint saved" in (tmp_path / "run" / "notes.txt").read_text()
    assert signal.getsignal(signum) == handler
    again = launch("trainer.total_training_steps=5")
    assert again.step == 5 and again.status == 0


def test_a_second_signal_stops_at_once(launch, tmp_path):
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(StopNow) as caught:
        launch("trainer.total_training_steps=5", reward=sends(signal.SIGTERM, 1, 2, 3))
    assert caught.value.status == 143
    assert Checkpoints(tmp_path / "run").steps() == []
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.parametrize("raised", [StopNow(signal.SIGTERM), KeyboardInterrupt()], ids=["SIGTERM", "Ctrl-C"])
def test_the_commands_exit_status_names_the_signal(monkeypatch, raised):
    def stop(args):
        raise raised

    monkeypatch.setattr("burnish.cli.train.run", stop)
    assert main(["train"]) == (143 if isinstance(raised, StopNow) else 130)


def test_a_thread_that_is_not_the_main_one_asks_for_no_signals():
    seen = []

    def run():
        with stop_request() as stop:
            seen.append(stop.is_set())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False]
