"""The benchmarks of the rollout run as documented, with shapes that a CPU can do, and see what they should see."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

BENCH = Path(__file__).parents[2] / "bench"
REASONS = ("reading the weights", "arithmetic", "reading the cache")
SMALL = ("--device", "cpu", "--shape", "tiny", "--seqs", "16", "--n", "4", "--prompt", "8", "--max-new", "24")


def run(script, *arguments):
    done = subprocess.run([sys.executable, str(BENCH / script), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout


def result(said):
    (line,) = [line for line in said.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def test_rollout():
    said = run(
        "rollout.py", *SMALL, "--max-num-seqs", "16", "--checks", "none", "--peer", "slow=1", "--peer", "fast=1e9"
    )
    found = result(said)
    assert found["tokens"] == 16 * 24 and found["prefill_tokens"] == 4 * 8
    assert found["decode_steps"] == found["graph_replays"] == 23 and found["host_syncs"] == 3
    assert 0 < found["roofline_share"] < 1
    ours = found["tokens_per_second"]
    assert f"| slow | 1 | {ours:.2f} | |" in said and "| fast | 1000000000 | 0.00 | |" in said


@pytest.mark.long
def test_checks():
    said = run("rollout.py", *SMALL, "--checks", "only")
    assert said.count("ok    greedy") == said.count("ok    log-probs") == 6 and "FAIL" not in said


@pytest.mark.long
def test_scaling(tmp_path):
    sizes = ("--sequences", "2", "4", "--contexts", "16", "32", "--rows", "2", "--tokens", "4", "8")
    said = run("scaling.py", "--device", "cpu", "--shape", "tiny", *sizes, "--out", str(tmp_path))
    found = json.loads((tmp_path / "scaling.json").read_text())
    points = [*found["by_rows"], *found["by_context"]]
    assert [(point["rows"], point["context"]) for point in points] == [(2, 16), (4, 16), (2, 16), (2, 32)]
    # How fast a few tokens of a tiny model are is the clock's mood; that they were counted is not.
    assert all(point["speed"] > 0 and point["share"] > 0 and point["limit"] in REASONS for point in points)
    assert all(f"| {point['rows']} | {point['context']} | {point['speed']:.0f} |" in said for point in points)
    assert "sequences: linear" in said and "context: flat" in said
    again = run("scaling.py", "--drawn", str(tmp_path / "scaling.json"), "--out", str(tmp_path / "again"))
    assert again.strip() in said
    assert (tmp_path / "again" / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_a_point_of_a_curve_is_two_runs_apart(monkeypatch):
    """16 rows of two prompts of 32 tokens, 8 tokens more in 2 seconds more, and what of that a device would need."""
    monkeypatch.syspath_prepend(str(BENCH))
    import scaling
    from roofline import Ceilings, Cost

    took = iter([9.0, 1.0, 3.0])  # the first run compiles
    monkeypatch.setattr(scaling, "seconds", lambda *given: next(took))
    engine = SimpleNamespace(close=lambda: None)
    bench = SimpleNamespace(on_gpu=False, engine=lambda *given, **more: engine, forget=lambda: None)
    ceilings = Ceilings(bandwidth=1e9, operations=1e9)
    point = scaling.point(bench, SimpleNamespace(shape="tiny", tokens=[4, 12]), 16, 32, ceilings)
    cost = Cost.of(scaling.shape_config("tiny"), torch.float32)
    assert point.speed == 16 * 8 / 2
    assert (
        point.limit == "arithmetic" and 2 * 16 * cost.parameters > 4 * cost.parameters + (64 + 128) * cost.cache_bytes
    )
    assert point.share == pytest.approx(2 * cost.parameters * point.speed / 1e9)
