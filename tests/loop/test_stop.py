"""Ctrl-C and SIGTERM: one finishes the step and saves, two stop at once."""

import itertools
import os
import signal
import subprocess
import sys
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
    again = launch("trainer.total_training_steps=5", "trainer.resume_changes=accept", reward=sends(signum))
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


def test_an_interruption_names_the_last_checkpoint(launch, monkeypatch, tmp_path):
    launch("trainer.save_freq=1")

    def stop(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("burnish.loop.build.build_roles", stop)  # while models are loaded
    with pytest.raises(KeyboardInterrupt) as caught:
        launch("trainer.total_training_steps=5", "trainer.save_freq=1")
    last = tmp_path / "run" / "global_step_2"
    assert caught.value.__notes__ == [f"interrupted; the last checkpoint is {last}; run the same command to resume"]
    with pytest.raises(KeyboardInterrupt) as caught:
        launch(out="new")
    assert caught.value.__notes__ == ["interrupted; no checkpoint was saved yet; the same command starts anew"]


@pytest.mark.parametrize("module", ["burnish.cli.train", "torch"])
def test_ctrl_c_during_an_import_ends_without_a_traceback(module):
    """As the command does it, in a process of its own: the import itself is interrupted."""
    script = f"""
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
sys.argv = ["burnish", "train", "actor_rollout_ref.model.path=x/y", "data.train_files=z.parquet"]
from burnish.__main__ import main
sys.exit(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 130 and "Traceback" not in ended.stderr
    assert ended.stderr.startswith("interrupted")


def test_the_command_says_disk_full(monkeypatch, capfd):
    def write(args):
        raise OSError(28, "No space left on device", "out.parquet")

    monkeypatch.setattr("burnish.cli.train.run", write)
    assert main(["train"]) == 1
    printed = capfd.readouterr().err
    assert printed.startswith("disk full: ") and "out.parquet" in printed and "Traceback" not in printed


def test_a_thread_that_is_not_the_main_one_asks_for_no_signals():
    seen = []

    def run():
        with stop_request() as stop:
            seen.append(stop.is_set())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False]
