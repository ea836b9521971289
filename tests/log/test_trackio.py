from __future__ import annotations

import os
from pathlib import Path

import pytest

from burnish.log.logger import RunInfo
from burnish.log.trackio import TrackioLogger

pytestmark = pytest.mark.long


def test_a_second_folder_in_one_process_is_reported(tmp_path, monkeypatch, capsys):
    import trackio

    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    logger = TrackioLogger()
    logger.start(RunInfo("second", "n", tmp_path / "not-there", {}, 3))
    logger.log(1, {"a": 1.0})
    logger.close()
    assert (Path(trackio.TRACKIO_DIR) / "second.db").exists()
    assert "TRACKIO_DIR" not in os.environ
    assert "was already imported in this process" in capsys.readouterr().out.replace("\n", " ")
