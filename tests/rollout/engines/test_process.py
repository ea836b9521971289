"""A server's process: what its log says of a failure."""

from __future__ import annotations

import os

import pytest

from burnish.rollout.engine import EngineDied
from burnish.rollout.engines.process import ServerProcess, server_folder


def test_the_first_error_of_the_log_is_the_cause():
    process = ServerProcess("vLLM", ["no.such.module"], "unix:none", os.environ, server_folder("vllm"))
    try:
        process.process.wait(60)
        with pytest.raises(EngineDied, match="exited with status"):
            process.check()
        assert "No module named" in (process.first_error() or "")
        (process.folder / "server.log").write_text(
            "INFO all is well\n(Worker pid=1) ERROR [x.py:1] RuntimeError: no such head\nEngineDeadError: see above\n"
        )
        assert process.first_error() == "RuntimeError: no such head"
        (process.folder / "server.log").write_text("starting\n")
        assert process.first_error() is None
    finally:
        process.close()
    assert not process.folder.exists()
