from __future__ import annotations

import json
import sys

import pytest

from burnish.log.logger import RunInfo
from burnish.log.swanlab import SwanlabLogger

pytestmark = pytest.mark.long


def test_a_command_line_with_a_secret_is_not_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.delenv("SWANLAB_LOG_DIR", raising=False)
    commands = {}
    for name, argument in (("open", "trainer.total_epochs=2"), ("hidden", "x.api_key=hunter2hunter2")):
        monkeypatch.setattr(sys, "argv", ["burnish", argument])
        logger = SwanlabLogger()
        logger.start(RunInfo("p", "n", tmp_path / name, {"lr": 1.0}, 3))
        logger.log(1, {"a": 1.0})
        logger.close()
        (metadata,) = (tmp_path / name).rglob("swanlab-metadata.json")
        commands[name] = (json.loads(metadata.read_text()).get("runtime") or {}).get("command")
    assert commands["open"] is not None and commands["hidden"] is None
