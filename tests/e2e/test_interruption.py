"""A run that is stopped, by Ctrl-C or by kill -9, and started again ends as one that was never stopped."""

import json
import os
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

TIMES = ("timing_s/", "timing_per_token_ms/", "perf/", "rollout/draft_", "rollout/decode_")


def wait_for(process, path):
    """Until the file or folder is there, while the process lives."""
    patience = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < patience, f"{path} does not appear"
        time.sleep(0.01)


def final_state(folder, tmp_path):
    """Weights and optimizer of the last checkpoint."""
    actor = folder / "global_step_6" / "actor"
    files = {path.name: load_file(path) for path in sorted(actor.glob("*.safetensors"))}
    assert files
    return {**files, "index": json.loads((actor / "shards.json").read_text())}


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_equal(one[name], other[name])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], {k: v for k, v in line["data"].items() if not k.startswith(TIMES)}) for line in lines]


def rollouts(folder):
    return {path.name: path.read_text() for path in (folder / "rollouts").iterdir()}


BESIDE = "actor_rollout_ref.actor.checkpoint.async_save=true"


@pytest.mark.parametrize(
    ("how", "more"),
    [
        pytest.param("ctrl-c", (), id="ctrl-c", marks=pytest.mark.long),  # tests/loop/test_stop.py
        pytest.param("kill -9", (), id="kill -9", marks=pytest.mark.long),  # test_faults.py kills -9 too
        pytest.param("kill -9", (BESIDE,), id="kill -9 beside", marks=pytest.mark.long),
    ],
)
def test_the_same_command_again_ends_like_an_uninterrupted_run(
    spawn, burnish, verl_command, whole_run, tmp_path, how, more
):
    _, _, whole = whole_run
    folder = tmp_path / "run"
    process = spawn(verl_command(folder, *more))
    if how == "ctrl-c":
        wait_for(process, folder / "rollouts" / "1.jsonl")
        os.killpg(process.pid, signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
        assert process.returncode == 130, printed
        assert "Ctrl-C received: finishing this step" in printed and "Run the same command to resume" in printed
        assert "Traceback" not in printed
        assert list(folder.glob("global_step_*"))
    else:
        wait_for(process, folder / "global_step_2")
        process.kill()
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    assert not (folder / "global_step_6").exists(), "it was stopped before its end"

    status, printed = burnish(*verl_command(folder, *more))
    assert status == 0, printed
    assert "resumed from" in printed
    assert [step for step, _ in metrics(folder)] == [0, 1, 2, 3, 4, 5, 6]
    assert metrics(folder) == metrics(whole)
    assert rollouts(folder) == rollouts(whole)
    assert_equal(final_state(folder, tmp_path), final_state(whole, tmp_path))
