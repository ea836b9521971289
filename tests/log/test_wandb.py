from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.log.logger import RunInfo
from burnish.log.wandb import WandbLogger


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)


def ids(folder) -> list[str]:
    return sorted(path.stem.removeprefix("run-") for path in folder.glob("wandb/*run-*/run-*.wandb"))


def test_a_resumed_run_keeps_its_id_and_a_new_run_does_not(tmp_path):
    for resume_step in (None, 1, None):
        logger = WandbLogger()
        logger.start(RunInfo("p", "n", tmp_path, {}, 3), resume_step=resume_step)
        logger.close()
    first, *_ = counts = sorted((ids(tmp_path).count(name), name) for name in set(ids(tmp_path)))
    assert [count for count, _ in counts] == [1, 2] and first[1] != counts[1][1]


def test_a_command_line_with_a_secret_is_not_recorded(tmp_path, monkeypatch):
    secret, plain = "x.api_key=hunter2hunter2", "trainer.total_epochs=2"
    for name, command in (("open", [plain]), ("hidden", [plain, secret])):
        monkeypatch.setattr(sys, "argv", ["burnish", *command])
        logger = WandbLogger()
        logger.start(RunInfo("p", "n", tmp_path / name, {}, 3))
        logger.log(1, {"marker": 1.0})
        logger.close()
    # Both runs are written by wandb's own process, one after the other.
    assert wait_for(lambda: b"marker" in written(tmp_path / "hidden"))
    assert wait_for(lambda: plain.encode() in written(tmp_path / "open"))
    assert b"hunter2" not in written(tmp_path / "hidden") and plain.encode() not in written(tmp_path / "hidden")


def written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def wait_for(happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
