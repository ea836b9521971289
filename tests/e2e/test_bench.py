"""The benchmarks run, tiny and on a CPU, and check what they measure before they print it."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

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
    found = rows(bench("head.py", "--smoke"))
    assert [row[0] for row in found] == ["naive", "torch"]
    assert all(float(row[1]) < 1e-5 for row in found)


def test_an_update(bench):
    printed = bench("train_step.py", "--smoke")
    assert float(printed.split("relative error ")[1].split()[0]) < 1e-5
    (row,) = rows(printed)
    assert row[0] == "tiny, layers not compiled" and float(row[3]) > 0 and row[-1] == "0"


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
