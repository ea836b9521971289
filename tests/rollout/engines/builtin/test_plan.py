"""What the options mean for the decode loop, decided without a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from burnish.errors import UserError
from burnish.rollout.engine import EngineOptions
from burnish.rollout.engines.builtin.plan import LOOP_DEVICES, LoopPlan, capture_sizes, loop_plan, uses_loop


def options(device="cuda", **more):
    return EngineOptions(None, torch.bfloat16, torch.device(device), eos_ids=(2,), max_model_len=10, **more)


def test_who_decodes_in_windows():
    assert uses_loop(options()) == ("cuda" in LOOP_DEVICES) and uses_loop(options(eager=False))
    assert not uses_loop(options("cpu", eager=False)) and uses_loop(options("cpu", device_loop=True))
    assert not uses_loop(options(device_loop=True, invariant=True))


def test_eager_means_no_graphs():
    eager, captured = loop_plan(options(), "qwen2"), loop_plan(options(eager=False), "qwen2")
    assert eager.buckets == () and not eager.captured and not eager.compiled and eager.triton
    assert captured.buckets[-1] == 1024 and captured.captured and captured.compiled
    on_cpu = loop_plan(options("cpu", eager=False), "qwen2")
    assert on_cpu.buckets == captured.buckets and not on_cpu.captured and not on_cpu.triton


def test_a_family_that_no_test_knows_runs_eagerly_and_says_so():
    plan = loop_plan(options(eager=False), "qwen3_moe")
    assert plan.buckets == () and not plan.captured and not plan.compiled
    assert plan.remarks == ("models of type 'qwen3_moe' run without CUDA graphs",)
    assert loop_plan(options(eager=False), "qwen2").remarks == loop_plan(options(), "qwen3_moe").remarks == ()


def test_sizes():
    sizes = capture_sizes(1024)
    assert sizes[0] == 1 and sizes[-1] == 1024 and list(sizes) == sorted(set(sizes))
    assert all(later - size <= max(4, size) for size, later in itertools.pairwise(sizes))
    assert capture_sizes(100)[-2:] == (96, 100)
    assert capture_sizes(3) == (1, 2, 3)
    assert capture_sizes(5000)[-2:] == (4608, 5000) and capture_sizes(16384)[-2:] == (15360, 16384)
    assert capture_sizes(8192)[-2:] == (7680, 8192)
    assert capture_sizes(64, [32, 8, 128, 8]) == (8, 32)


def test_the_next_size():
    plan = LoopPlan((1, 4, 8))
    assert [plan.bucket(rows) for rows in (1, 2, 4, 5, 8, 9)] == [1, 4, 4, 8, 8, None]
    assert LoopPlan(()).bucket(1) is None


def test_arguments():
    plan = loop_plan(options(eager=False, extra={"block": 128, "look_in": 8, "compiled": False}), "qwen2")
    assert (plan.block, plan.look_in, plan.compiled) == (128, 8, False)
    for extra in ({"block": 48}, {"block": 8}, {"look_in": 0}, {"captured": True}, {"blocks": 64}):
        with pytest.raises(UserError):
            loop_plan(options(extra=extra), "qwen2")
