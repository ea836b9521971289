from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from burnish.errors import UserError, UserErrors
from burnish.log.file import read_metrics
from burnish.log.logger import Loggers, RunInfo
from burnish.log.tracker_thread import TrackerThread

OWN_LOGGER = """
import threading

class Mine:
    seen = []
    def start(self, run, resume_step=None):
        self.seen.append(("start", run.config, resume_step))
    def log(self, step, metrics):
        self.seen.append(("log", step, metrics))
    def table(self, name, step, columns, rows):
        self.seen.append(("table", name, step, columns, rows))
    def note(self, text):
        self.seen.append(("note", text))
    def close(self):
        self.seen.append(("close",))

class FailsLater(Mine):
    def log(self, step, metrics):
        raise ConnectionError("no route, api_key=hunter2")

class NeverAnswers(Mine):
    def log(self, step, metrics):
        if step == 1:
            threading.Event().wait()
        super().log(step, metrics)

class AnswersLate(Mine):
    let_go = threading.Event()
    def log(self, step, metrics):
        if step == 1:
            self.let_go.wait()
        super().log(step, metrics)

class FailsAtStart(Mine):
    def start(self, run, resume_step=None):
        raise ConnectionError("no route")
"""


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN_LOGGER)
    return path


def run_in(folder: Path) -> RunInfo:
    return RunInfo("p", "n", folder, {"api_key": "hunter2", "lr": 1.0}, 2)


def test_a_custom_logger_gets_everything_without_secrets(file, tmp_path):
    loggers = Loggers([f"{file}:Mine"])
    with loggers:
        loggers.start(run_in(tmp_path), resume_step=3)
        loggers.log(4, {"x": torch.tensor(0.5)})
        loggers.table("t", 4, ("a",), [("b",)])
        loggers.note("token=hunter2")
    (logger,) = loggers.loggers.values()
    assert logger.seen == [
        ("start", {"api_key": "<hidden>", "lr": 1.0}, 3),
        ("log", 4, {"x": 0.5}),
        ("table", "t", 4, ["a"], [["b"]]),
        ("note", "token=<hidden>"),
        ("close",),
    ]
    assert type(logger.seen[1][2]["x"]) is float


def test_a_failing_logger_is_reported_once_and_the_others_continue(file, tmp_path, capsys):
    loggers = Loggers([f"{file}:FailsLater", "file"])
    loggers.start(run_in(tmp_path))
    loggers.log(1, {"x": 1.0})
    loggers.log(2, {"x": 2.0})
    loggers.close()
    text = capsys.readouterr().out
    assert text.count("ConnectionError") == 1 and "FailsLater' failed in log" in text
    assert "hunter2" not in text
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_logger_that_cannot_start_is_a_user_error_and_the_others_are_closed(file, tmp_path):
    loggers = Loggers([f"{file}:Mine", f"{file}:FailsAtStart"])
    with pytest.raises(UserError, match=r"trainer\.logger=.*FailsAtStart.*ConnectionError: no route"):
        loggers.start(run_in(tmp_path))
    assert loggers.loggers[f"{file}:Mine"].seen[-1] == ("close",)


def test_unknown_names_are_reported_together():
    with pytest.raises(UserErrors) as caught:
        Loggers(["wandbb", "console", "fiel"])
    assert "Did you mean 'wandb'?" in str(caught.value) and "Did you mean 'file'?" in str(caught.value)


def test_duplicate_names_are_one_logger(tmp_path):
    loggers = Loggers(["file", "file"])
    loggers.start(run_in(tmp_path))
    loggers.log(1, {"x": 1.0})
    loggers.close()
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1


def test_ctrl_c_is_not_a_failure_of_a_logger(file, tmp_path, monkeypatch):
    loggers = Loggers([f"{file}:Mine"])
    loggers.start(run_in(tmp_path))

    def interrupt(step: int, metrics: dict) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loggers.loggers[f"{file}:Mine"], "log", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loggers.log(1, {"x": 1.0})


@pytest.fixture
def little_patience(monkeypatch):
    monkeypatch.setattr("burnish.log.tracker_thread.LIMIT", 0.1)


def test_a_hanging_tracker_is_reported_once_and_does_not_block(file, tmp_path, capsys, little_patience):
    loggers = Loggers([f"{file}:NeverAnswers", "file"])
    loggers.start(run_in(tmp_path))
    begun = time.monotonic()
    for step in range(1, 4):
        loggers.log(step, {"x": float(step)})
    loggers.close()
    assert time.monotonic() - begun < 10
    text = capsys.readouterr().out
    assert text.count("NeverAnswers' failed in log: TimeoutError: no response within 0.1 s") == 1
    assert text.count("failed") == 1
    assert read_metrics(tmp_path / "metrics.jsonl") == {step: {"x": float(step)} for step in range(1, 4)}


def test_a_tracker_that_recovers_gets_metrics_again(file, tmp_path, little_patience):
    loggers = Loggers([f"{file}:AnswersLate", "file"])
    loggers.start(run_in(tmp_path))
    (tracker,) = [one for one in loggers.loggers.values() if type(one).__name__ == "AnswersLate"]
    loggers.log(1, {"x": 1.0})
    loggers.log(2, {"x": 2.0})
    tracker.let_go.set()
    patience = time.monotonic() + 20
    while ("log", 1, {"x": 1.0}) not in tracker.seen:
        assert time.monotonic() < patience
        time.sleep(0.01)
    time.sleep(0.05)
    loggers.log(3, {"x": 3.0})
    loggers.close()
    assert [entry[1] for entry in tracker.seen if entry[0] == "log"] == [1, 3]
    assert set(read_metrics(tmp_path / "metrics.jsonl")) == {1, 2, 3}


def test_metrics_that_a_tracker_did_not_accept_are_in_the_run_folder(file, tmp_path, capsys):
    """Even without the file logger in trainer.logger."""
    loggers = Loggers(["console", f"{file}:FailsLater"])
    loggers.start(run_in(tmp_path))
    for step in (1, 2):
        loggers.log(step, {"x": float(step)})
    loggers.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == {1: {"x": 1.0}, 2: {"x": 2.0}}
    assert f"metrics are written to {tmp_path} from step 1 on" in capsys.readouterr().out.replace("\n", "")


def test_a_resumed_run_continues_without_a_tracker_that_cannot_start(file, tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "data": {"x": 3.0}}\n{"step": 4, "data": {"x": 0.0}}\n')
    loggers = Loggers([f"{file}:FailsAtStart", f"{file}:Mine"])
    loggers.start(run_in(tmp_path), resume_step=3)
    loggers.log(4, {"x": 4.0})
    loggers.close()
    text = capsys.readouterr().out
    assert text.count("FailsAtStart' failed in start: ConnectionError: no route") == 1
    assert read_metrics(tmp_path / "metrics.jsonl") == {3: {"x": 3.0}, 4: {"x": 4.0}}
    assert ("log", 4, {"x": 4.0}) in loggers.loggers[f"{file}:Mine"].seen


def test_a_timeout_error_of_the_tracker_is_passed_on(tmp_path):
    class Slow:
        def log(self):
            raise TimeoutError("of the server")

    with pytest.raises(TimeoutError, match="of the server"):
        TrackerThread(Slow()).call("log")
