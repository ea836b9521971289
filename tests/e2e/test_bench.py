"""The benchmarks run, tiny and on a CPU, and check what they measure before they print it."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

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


def rows(printed: str) -> list[list[str]]:
    """The cells of the table's rows, without its head."""
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_the_head(bench):
    found = rows(bench("head.py", "--smoke"))
    assert [row[0] for row in found] == ["naive", "torch"]
    assert all(float(row[1]) < 1e-5 for row in found)


def test_an_update(bench):
    printed = bench("train_step.py", "--smoke")
    assert float(printed.split("relative error ")[1].split()[0]) < 1e-5
    (row,) = rows(printed)
    assert row[0] == "tiny, layers not compiled" and float(row[3]) > 0 and row[-1] == "0"


def test_operations_are_counted_as_the_table_says(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import shapes

    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128
    number = 2 * layer + 320 * 64
    assert shapes.matmul_parameters("tiny") == number
    attention = 3 * 4 * (10 * 10 + 6 * 6) / 2 * 64 * 2
    assert shapes.update_flops("tiny", [10, 6]) == 16 * 6 * number + attention
    assert shapes.update_flops("tiny", [10, 6], 1000) == 16 * (4 * number + 6 * 1000) + attention
    model = shapes.make("tiny", "cpu", None)
    products = sum(p.numel() for name, p in model.named_parameters() if name.endswith("proj.weight"))
    assert products + model.get_output_embeddings().weight.numel() == number


def test_the_memory_plan_is_near_what_a_step_takes(bench):
    """Bytes of all tensors, counted while one real step runs."""
    found = json.loads(bench("memory_oracle.py", "--smoke", "--one", "tiny, reference, nothing recomputed"))
    assert found["planned_fits"] and found["fits"]
    assert {"rollout", "old log-probs", "reference", "update actor", "weight sync"} <= found["measured"].keys()
    for phase, measured in found["measured"].items():
        assert found["planned"][phase] == pytest.approx(measured, rel=0.15), phase
