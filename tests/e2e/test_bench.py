"""The benchmarks run, tiny and on a CPU, and check what they measure before they print it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, Qwen2Config, Qwen3Config

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch, capsys):
    """bench(name, *arguments): what it printed, once it has ended well."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.syspath_prepend(str(BENCH))
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(BENCH / name), run_name="__main__")
        assert ended.value.code == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def bench_modules(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))


def rows(printed: str) -> list[list[str]]:
    """The cells of the table's rows, without its head."""
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_head(bench):
    printed = rows(bench("head.py", "--smoke"))
    assert [row[3] for row in printed] == ["naive", "torch"]
    assert all(float(row[4]) < 1e-5 for row in printed)


def test_an_update(bench):
    printed = bench("train_step.py", "--smoke")
    assert float(printed.split("relative error ")[1].split()[0]) < 1e-5
    (row,) = rows(printed)
    assert row[0] == "tiny, layers not compiled" and float(row[3]) > 0 and row[-1] == "0"


def test_shared_prompts(bench):
    (row,) = rows(bench("shared_prompts.py", "--smoke", "--rounds", "1"))
    assert row[:4] == ["20", "6", "4", "208 -> 88"] and float(row[-2]) < 1e-4 and 0 < float(row[-1]) < 1e-4


SIZES = {
    **{"vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
}


@pytest.mark.parametrize(
    ("config", "head"),
    [
        (Qwen2Config(**SIZES), 16),
        (Qwen3Config(**SIZES, head_dim=32), 32),
        (Gemma2Config(**SIZES, head_dim=8), 8),
        (Gemma3TextConfig(**SIZES, head_dim=48), 48),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_flops_and_bytes_follow_the_head_size(bench_modules, config, head):
    """Families whose head size is not hidden_size / num_attention_heads, counted against a real model's weights."""
    import shapes
    from roofline import Ceilings, Cost

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    weights = [p for name, p in model.named_parameters() if name.endswith("proj.weight")]
    number = sum(p.numel() for p in weights) + model.get_output_embeddings().weight.numel()
    assert shapes.matmul_parameters(config) == number
    attention = 3 * 4 * (10 * 10 + 6 * 6) / 2 * 4 * head * 2
    assert shapes.update_flops(config, [10, 6]) == 16 * 6 * number + attention
    assert shapes.update_flops(config, [10, 6], 1000) == 16 * (4 * number + 6 * 1000) + attention
    cost = Cost.of(config, torch.bfloat16)
    assert (cost.parameters, cost.weight_bytes) == (number, 2 * number)
    assert cost.cache_bytes == 2 * 2 * 2 * head * 2  # keys and values, layers, KV heads, bfloat16
    # 3 sequences with 100 cached tokens where arithmetic takes no time.
    ceilings = Ceilings(bandwidth=1e6, operations=1e18)
    assert cost.step_seconds(3, 100, ceilings) == pytest.approx((2 * number + 100 * cost.cache_bytes) / 1e6)


def test_the_memory_plan_is_near_what_a_step_takes(bench):
    """Bytes of all tensors, counted while one real step runs."""
    found = json.loads(bench("memory_oracle.py", "--smoke", "--one", "tiny, reference, nothing recomputed"))
    assert found["planned_fits"] and found["fits"]
    assert {"rollout", "old log-probs", "reference", "update actor", "weight sync"} <= found["measured"].keys()
    for phase, measured in found["measured"].items():
        assert found["planned"][phase] == pytest.approx(measured, rel=0.15), phase


RESULTS = sorted((BENCH / "results").glob("*.json"))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_result_files_are_complete_and_possible(bench_modules, path):
    import tables

    result = tables.load(path)
    assert {"name", "command", "commit", "date", "machine", "versions", "columns", "rows"} <= result.keys()
    assert result["name"] == path.stem and result["rows"]
    assert result["machine"].keys() == {"gpu", "cpu", "cores"}
    old = "measured before result files existed" in result.get("source", "")
    assert result["commit"] or old, "no commit recorded; set GIT_COMMIT on machines without the history"
    tables.check_rows(path.stem, result["rows"])  # raises ImpossibleFigure above 100 %
    assert tables.table(result["columns"], result["rows"]).count("\n") == len(result["rows"]) + 2


def test_tables_in_the_docs_come_from_the_result_files(bench_modules):
    import tables

    for page in ("performance.md", "benchmarks.md"):
        text = (BENCH.parent / "docs" / page).read_text(encoding="utf-8")
        assert text.count("<!-- bench:") == text.count("<!-- /bench -->") > 3
        assert tables.page(text) == text, f"docs/{page} is out of date; type: make docs"
    changed = text.replace("| 1 | 0.328 |", "| 1 | 0.999 |")
    assert changed != text and tables.page(changed) == text


def test_saving_results(bench_modules, monkeypatch, tmp_path):
    import tables

    monkeypatch.setattr(
        sys,
        "argv",
        [str(BENCH / "rollout.py"), "--shape", "7B", "--results", str(tmp_path), "--peer", str(tmp_path / "peers")],
    )
    columns = {"shape": "{shape}", "tokens/s": "{speed:,.0f}", "share": "{roofline_share:.0%}"}
    rows = [
        {"shape": "7B", "speed": 24300.0, "roofline_share": 0.65},
        {"shape": "3B", "speed": 1, "roofline_share": None},
    ]
    path = tables.save(SimpleNamespace(results=tmp_path), "rollout", columns, rows, full=False)
    result = tables.load(path)
    assert result["command"] == "python bench/rollout.py --shape 7B --peer peers"
    assert result["versions"]["torch"] == torch.__version__ and result["machine"]["cores"] > 0
    page = "before\n<!-- bench:rollout -->\nold\n<!-- /bench -->\nafter\n"
    table = "| shape | tokens/s | share |\n|---|---|---|\n| 7B | 24,300 | 65% |\n| 3B | 1 |  |\n\n"
    assert tables.page(page, tmp_path) == page.replace("old\n", table + tables.origin(result))
    rows[0]["roofline_share"] = 8.48
    with pytest.raises(tables.ImpossibleFigure, match=r"rollout, 7B, roofline_share: 848% .* impossible"):
        tables.save(SimpleNamespace(results=tmp_path), "rollout", columns, rows)
    assert tables.load(path) == result
    assert tables.save(SimpleNamespace(results=None), "rollout", columns, rows, full=False) is None


@pytest.mark.long
def test_log_probs_of_ranks():
    """FSDP computes what one process does, and both are closer to the engine than with a rounded residual stream."""
    command = [sys.executable, str(BENCH / "residual.py"), "--smoke"]
    printed = rows(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for model in {row[0] for row in printed}:
        found = {row[1]: [float(cell.split(",")[0]) for cell in row[2:]] for row in printed if row[0] == model}
        one, sharded, rounded = (
            found[name] for name in ("one process", "2 ranks: FSDP", "residual stream in bfloat16")
        )
        assert sharded[0] < 0.1 * rounded[0] and sharded[1] == pytest.approx(one[1], rel=0.1)
        assert one[1] < rounded[1]


def test_the_table_of_attacks(bench_modules):
    """An attack is contained if all tests with its description pass; the rows end with their sum."""
    import security

    attacks = security.Attacks()
    attacks.contained = {("network", "a"): True, ("network", "b"): False, ("files", "a"): True}
    assert [tuple(row.values()) for row in attacks.rows()] == [("files", 1, 1), ("network", 2, 1), ("all", 3, 2)]
    item = SimpleNamespace(get_closest_marker=lambda name: SimpleNamespace(args=("files", "a")))
    hook = attacks.pytest_runtest_makereport(item)
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(SimpleNamespace(passed=False))
    assert attacks.contained["files", "a"] is False
