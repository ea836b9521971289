"""Workers that a real torchrun has started."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from burnish.distributed.torchrun import Torchrun, launched, serve_if_not_main

SCRIPT = """
from burnish.distributed.worker_group import WorkerGroup
from burnish.distributed.torchrun import Torchrun, launched, serve_if_not_main

assert launched()
serve_if_not_main()
group = WorkerGroup(["rank 0", "rank 1"], Torchrun(), timeout=60)
group.build("tests.distributed.things:Thing", [(0, 10), (1, 10)])
print("answers:", group.call("add", 5), flush=True)
group.close()
"""


def test_the_first_process_is_the_controller_of_all(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["answers: [15, 16]"]


def test_a_process_that_it_did_not_start_goes_its_own_way(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not launched()
    serve_if_not_main()


def test_its_processes_are_as_many_as_the_ranks(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="started 3 processes, but the run has 2 ranks"):
        Torchrun().start(["rank 0", "rank 1"], "127.0.0.1:1")
