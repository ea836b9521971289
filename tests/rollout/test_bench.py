"""The rollout benchmarks run on a CPU with tiny shapes and report what they should."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

BENCH = Path(__file__).parents[2] / "bench"
SMALL = ("--device", "cpu", "--shape", "tiny", "--seqs", "16", "--n", "4", "--prompt", "8", "--max-new", "24")


@pytest.fixture
def run_rollout(monkeypatch, capsys):
    """run_rollout(*arguments): what bench/rollout.py printed, once it has succeeded."""

    def run(*arguments: str) -> str:
        monkeypatch.syspath_prepend(str(BENCH))
        monkeypatch.setattr(sys, "argv", ["rollout.py", *SMALL, *arguments])
        assert importlib.import_module("rollout").main() == 0
        return capsys.readouterr().out

    return run


@pytest.mark.long
def test_rollout(run_rollout, tmp_path):
    peers = ("--peer", "slow=1", "--peer", "fast=1e9")
    printed = run_rollout("--max-num-seqs", "16", "--checks", "none", *peers, "--results", str(tmp_path))
    (row,) = json.loads((tmp_path / "rollout.json").read_text())["rows"]
    assert f"RESULT {json.dumps(row)}" in printed
    assert row["tokens"] == 16 * 24 and row["prefill_tokens"] == 4 * 8
    assert row["decode_steps"] == row["graph_replays"] == 23 and row["host_syncs"] == 3
    assert 0 < row["roofline_share"] < 1
    assert f"| 1 | {row['tokens_per_second']:.2f}x | 1,000,000,000 | 0.00x |" in printed


@pytest.mark.long
def test_rollout_with_shared_prefixes(run_rollout, tmp_path):
    """16 responses to 4 prompts of 70 tokens, of which a block of 64 is shared, in 23 steps."""
    prefixes = ("--prefix", "off", "on", "--prompt", "70")
    printed = run_rollout("--max-num-seqs", "16", "--checks", "none", *prefixes, "--results", str(tmp_path))
    off, on = json.loads((tmp_path / "rollout_prefix.json").read_text())["rows"]
    assert off["kv_tokens_per_step"] == 16 * (70 + 11) and off["kv_tokens_saved_per_step"] == 0
    assert on["kv_tokens_per_step"] == 16 * (6 + 11) + 4 * 64 and on["kv_tokens_saved_per_step"] == 12 * 64
    assert "| tiny | read per response | 1,296 |" in printed and "| tiny | read per cluster | 528 |" in printed


@pytest.mark.long
@pytest.mark.parametrize("only", ["greedy llama", "log-probs gemma3"])
def test_checks_with_shared_prefixes(only, run_rollout, tmp_path):
    printed = run_rollout("--prefix", "on", "--checks", "only", "--only", only, "--results", str(tmp_path))
    assert printed.count(f"ok    {only}") == 1 and "FAIL" not in printed


@pytest.mark.long
def test_checks(run_rollout, tmp_path):
    printed = run_rollout("--checks", "only", "--results", str(tmp_path))
    assert printed.count("ok    greedy") == printed.count("ok    log-probs") == 6 and "FAIL" not in printed
    rows = json.loads((tmp_path / "rollout_checks.json").read_text())["rows"]
    assert len(rows) == 6 and all(row["float32_mean"] < 1e-4 < row["float32_changed_mean"] for row in rows)


@pytest.mark.long
def test_tuning_of_the_kernels(monkeypatch, capsys, tmp_path):
    """In Triton's interpreter, with times that prefer fewer warps and two splits."""
    monkeypatch.syspath_prepend(str(BENCH))
    attention = importlib.import_module("attention")
    asked = []

    def seconds(case, shared):
        choice = attention.kernels.TUNED[(0, 0), 16, 2]
        asked.append((choice, shared))
        return choice.warps + choice.prefix_stages

    monkeypatch.setattr(attention, "seconds", seconds)
    monkeypatch.setattr(attention.Ceilings, "of", lambda *given: SimpleNamespace(bandwidth=1e9))
    few = ("--rows", "4", "--n", "2", "--prompt", "64", "--response", "20", "--results", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["attention.py", "--device", "cpu", "--shape", "tiny", *few])
    assert attention.main() == 0
    printed = capsys.readouterr().out
    assert "    ((0, 0), 16, 2): Tuning(warps=2, prefix_stages=1),\n" in printed and "FAIL" not in printed
    assert {shared for _, shared in asked} == {False, True} and attention.kernels.TUNED == {}
    (row,) = json.loads((tmp_path / "attention.json").read_text())["rows"]
    assert row["us"] == 6e6 and row["tuned_prefix_us"] == 3e6


@pytest.mark.long
def test_explicit_decode_layers(monkeypatch, capsys, tmp_path):
    """In Triton's interpreter, with times that prefer few columns and warps; the fewest columns do not compile."""
    monkeypatch.syspath_prepend(str(BENCH))
    bench = importlib.import_module("decode_layer")

    def layer_seconds(scene):
        (choice,) = bench.product_tiles.TUNED.values() or [bench.Tiling(64, 64)]
        if choice.columns == 32:
            raise RuntimeError("out of registers")
        return choice.columns + choice.warps

    every = bench.products_of
    monkeypatch.setattr(bench, "products_of", lambda scene: [one for one in every(scene) if one.kind == "gate_up"])
    monkeypatch.setattr(bench, "PIPELINES", ())
    monkeypatch.setattr(bench.Scene, "layer_seconds", layer_seconds)
    monkeypatch.setattr(bench.Scene, "seconds", lambda scene, explicit: (0.002, 0.001) if explicit else (0.004, 0.003))
    monkeypatch.setattr(bench.product_tiles, "TUNED", {})
    monkeypatch.setattr(bench.Ceilings, "of", lambda *given: SimpleNamespace(bandwidth=1e9))
    few = ("--rows", "3", "--context", "20", "--max-model-len", "64", "--results", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["decode_layer.py", "--device", "cpu", "--shape", "tiny", *few])
    assert bench.main() == 0
    printed = capsys.readouterr().out
    tuned = "Tiling(columns=64, depth=64, splits=1, stages=4, warps=2, overlap=False)"
    assert f"    ((0, 0), 'gate_up', 256, 64, 16): {tuned},\n" in printed and "FAIL" not in printed
    assert printed.count("left out: ") == 1 and "out of registers" in printed
    default, row = json.loads((tmp_path / "decode_layer.json").read_text())["rows"]
    assert (default["tilings"], row["tilings"]) == ("default", "tuned")
    assert row["own_ms"] == 4 and row["explicit_ms"] == 2 and row["explicit_layer_us"] == 500

    # An operation that is wrong fails, in the check at the start and in tuning.
    monkeypatch.setattr(bench, "TOLERANCES", {torch.float32: 0.0})
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--no-tuning"])
    assert bench.main() == 1
    assert "FAIL  tiny, 3 rows: differs from plain torch by " in capsys.readouterr().out


def test_the_roofline_reads_prompts_once_and_no_more_than_windows(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from engines import Workload, shape_config
    from roofline import Ceilings, Cost, min_seconds

    cost = Cost(0, 100, 2, ((None, 3), (8, 2)))
    # Two prompts of 20 tokens, each with 4 sequences of 5 tokens: windows of 8 see 3 tokens of a prompt.
    contexts = {(20, 4, 5): 2}
    assert cost.bytes_read(contexts) == 2 * (3 * 2 * (20 + 4 * 5) + 2 * 2 * (3 + 4 * 5))
    config = shape_config("Gemma3-1B")
    assert dict(Cost.of(config, torch.bfloat16).layers) == {512: 22, None: 4}
    requests = Workload(seqs=8, n=4, prompt=(16, 20), max_new=12).requests(320)
    ceilings = Ceilings(bandwidth=1e3, operations=1e9)
    prompts, longest = {request.ids for request in requests}, max(r.sampling.max_tokens for r in requests)
    assert len(prompts) == 2 and all(16 <= len(ids) <= 20 for ids in prompts)
    plain = Cost(0, 100, 2, ((None, 5),))
    expected = sum(
        100 + 10 * (sum(map(len, prompts)) + step * sum(r.sampling.max_tokens > step for r in requests))
        for step in range(1, longest)
    )
    assert all(r.sampling.max_tokens == longest for r in requests)  # 12 is shorter than any of the tail
    assert min_seconds(requests, plain, ceilings) == pytest.approx(expected / 1e3)


@pytest.fixture
def scaling(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import scaling

    return scaling


@pytest.mark.long
def test_scaling(scaling, monkeypatch, tmp_path, capsys):
    """The real engine on a clock that counts tokens: 1 s per run and 1 ms per token."""
    generate = scaling.seconds

    def clock(engine, requests):
        assert generate(engine, requests) > 0
        return 1 + 1e-3 * sum(request.sampling.max_tokens for request in requests)

    monkeypatch.setattr(scaling, "seconds", clock)
    command = ["scaling.py", "--smoke", "--results", str(tmp_path), "--picture", str(tmp_path / "scaling.png")]
    monkeypatch.setattr(sys, "argv", command)
    assert scaling.main() == 0
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    assert [(row["num_sequences"], row["context"]) for row in rows] == [(2, 16), (4, 16), (2, 16), (2, 32)]
    for row in rows:
        speeds = [row[f"{name}tokens_per_second"] for name in ("low_", "", "high_")]
        assert speeds == pytest.approx([1000] * 3) and row["repeats"] == 3 and row["limit"] in scaling.TERMS
        assert f"| {row['num_sequences']} | {row['context']} | 1,000 | 1,000..1,000 | 3 |" in printed
    assert "sequences: linear up to 2" in printed and "context: flat up to 32, the largest measured" in printed
    picture = (tmp_path / "scaling.png").read_bytes()
    command = ["scaling.py", "--draw", str(tmp_path / "scaling.json"), "--picture", str(tmp_path / "again.png")]
    monkeypatch.setattr(sys, "argv", command)
    assert scaling.main() == 0 and capsys.readouterr().out.strip() in printed
    assert picture.startswith(b"\x89PNG") and (tmp_path / "again.png").read_bytes() == picture


def test_scaling_takes_medians(scaling, monkeypatch):
    """Warm-up is left out; one slow repeat of three moves the spread, not the figure; a long point repeats less."""
    from roofline import Ceilings, Cost

    runs = iter([9.0, 9.0, 1.0, 3.0, 1.0, 3.0, 1.0, 11.0])  # warm-up, then short and long of each repeat
    monkeypatch.setattr(scaling, "seconds", lambda engine, requests: next(runs))
    plan = scaling.Plan((4, 12), repeats=7, max_seconds=1.0)
    durations = scaling.step_times(None, 16, 32, 320, plan)
    assert durations == [0.25, 0.25, 1.25]  # three repeats, although the time was over after the first
    config, ceilings = scaling.shape_config("tiny"), Ceilings(bandwidth=1e9, operations=1e9)
    cost = Cost.of(config, torch.float32)
    point = scaling.summarize("sequences", 16, 32, durations, plan, cost, ceilings)
    assert point.tokens_per_second == point.high_tokens_per_second == 16 / 0.25
    assert point.low_tokens_per_second == 16 / 0.75
    # Two prompts of 32 tokens, and 16 sequences of 8 tokens on average.
    assert 2 * 16 * cost.parameters > 4 * cost.parameters + (2 * 32 + 16 * 8) * cost.cache_bytes
    assert point.limit == "arithmetic"
    assert point.roofline_share == pytest.approx(2 * 16 * cost.parameters / 1e9 / 0.25)


@pytest.mark.parametrize(
    ("durations", "message"),
    [([1e-9, 2e-9, 3e-9], "% of the roofline is impossible"), ([-1.0, 0.0, 1.0], "no longer than short ones")],
    ids=["above the roofline", "no extra time"],
)
def test_scaling_reports_no_impossible_figure(scaling, monkeypatch, tmp_path, capsys, durations, message):
    monkeypatch.setattr(scaling.Bench, "engine", lambda *arguments, **options: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(scaling.Bench, "forget", lambda bench: None)
    monkeypatch.setattr(scaling, "step_times", lambda *arguments: durations)
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--smoke", "--results", str(tmp_path)])
    assert scaling.main() == 1
    assert capsys.readouterr().out.count(message) == 4
    assert not (tmp_path / "scaling.json").exists()


@pytest.mark.long
def test_equal_bits(monkeypatch, capsys, tmp_path):
    """Few tokens, by Triton's interpreter; in default mode bits differ."""
    monkeypatch.syspath_prepend(str(BENCH))
    arguments = ["--device", "cpu", "--shape", "tiny", "--tokens", "32", "--max-new", "16", "--n", "2"]
    monkeypatch.setattr(sys, "argv", ["invariant.py", *arguments, "--results", str(tmp_path)])
    assert importlib.import_module("invariant").main() == 0
    (row,) = json.loads((tmp_path / "invariant.json").read_text())["rows"]
    assert row["tokens"] == 32 and row["difference"] == row["differing"] == 0 < row["default_difference"] < 1e-4
    assert "| tiny | 32 | 0.0 |" in capsys.readouterr().out
