"""A rehearsal rounds the engine's weights as the command asks."""

from __future__ import annotations

import pytest

from burnish.rollout.engines.builtin import model_runner

ROUNDING = "actor_rollout_ref__rollout__quantization"


@pytest.fixture
def rounded(monkeypatch):
    """For every engine whose weights are rounded, whether blocks have scales of their own."""
    calls, use_fp8_layers = [], model_runner.use_fp8_layers

    def use(model, by_block, *more):
        calls.append(by_block)
        return use_fp8_layers(model, by_block, *more)

    monkeypatch.setattr(model_runner, "use_fp8_layers", use)
    return calls


@pytest.mark.parametrize("path", ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-30B-A3B"])
def test_engine_weights_are_rounded_where_the_command_asks(path, rehearsed, rounded, tmp_path):
    report = rehearsed(folder=tmp_path, **{ROUNDING: "fp8", "actor_rollout_ref__model__path": path})
    assert report.passed, report.findings
    assert rounded == [True] and not any("quantization" in line for line in [*report.folded, *report.dropped])


def test_a_scheme_that_is_not_read_is_left_out(rehearsed, rounded, tmp_path):
    report = rehearsed(folder=tmp_path, **{ROUNDING: "torchao"})
    assert any("quantization=torchao" in line for line in report.dropped) and not rounded
