"""What the options mean for the decode loop, decided without a GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from burnish.errors import UserError
from burnish.rollout.engine import EngineOptions, check_engine
from burnish.rollout.engines.builtin.decode_plan import (
    LOOP_DEVICES,
    DecodePlan,
    capture_sizes,
    decode_plan,
    uses_device_loop,
)
from burnish.rollout.engines.builtin.engine import BuiltinEngine


def options(device="cuda", **more):
    return EngineOptions(None, torch.bfloat16, torch.device(device), eos_ids=(2,), max_model_len=10, **more)


def test_who_decodes_in_windows():
    assert uses_device_loop(options()) == ("cuda" in LOOP_DEVICES) and uses_device_loop(options(eager=False))
    assert not uses_device_loop(options("cpu", eager=False)) and uses_device_loop(options("cpu", device_loop=True))
    assert not uses_device_loop(options(device_loop=True, invariant=True))


def test_eager_means_no_graphs():
    eager, captured = decode_plan(options(), "qwen2"), decode_plan(options(eager=False), "qwen2")
    assert eager.capture_sizes == () and not eager.captured and not eager.compiled and eager.triton
    assert captured.capture_sizes[-1] == 1024 and captured.captured and captured.compiled
    on_cpu = decode_plan(options("cpu", eager=False), "qwen2")
    assert on_cpu.capture_sizes == captured.capture_sizes and not on_cpu.captured and not on_cpu.triton


def test_a_family_that_no_test_knows_runs_eagerly_and_says_so():
    plan = decode_plan(options(eager=False), "qwen3_moe")
    assert plan.capture_sizes == () and not plan.captured and not plan.compiled
    assert plan.remarks == ("CUDA graphs are not supported yet for model type 'qwen3_moe'; decoding runs without them",)
    assert decode_plan(options(eager=False), "qwen2").remarks == decode_plan(options(), "qwen3_moe").remarks == ()


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
    plan = DecodePlan((1, 4, 8))
    assert [plan.capture_size(rows) for rows in (1, 2, 4, 5, 8, 9)] == [1, 4, 4, 8, 8, None]
    assert DecodePlan(()).capture_size(1) is None


def test_arguments():
    plan = decode_plan(options(eager=False, extra={"block_size": 128, "sync_interval": 8, "compiled": False}), "qwen2")
    assert (plan.block_size, plan.sync_interval, plan.compiled) == (128, 8, False)
    assert decode_plan(options(extra={"shared_prefix": True}), "qwen2").shared_prefix and not plan.shared_prefix
    for extra in ({"block_size": 48}, {"block_size": 8}, {"sync_interval": 0}, {"captured": True}, {"blocks": 64}):
        with pytest.raises(UserError):
            decode_plan(options(extra=extra), "qwen2")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shared_prefix", 1),
        ("compiled", "no"),
        ("block_size", True),
        ("block_size", 24),
        ("sync_interval", 2.5),
        ("kv_cache_dtype", "fp16"),
        ("kv_cache_dtype", []),
    ],
)
def test_a_value_is_refused_by_its_key_before_a_model_is_loaded(name, value):
    with pytest.raises(UserError, match=name) as caught:
        check_engine(BuiltinEngine, {name: value}, torch.device("cpu"), "rollout")
    assert caught.value.key == f"rollout.engine_kwargs.builtin.{name}" and caught.value.value == value


def test_8_bits_need_a_gpu_that_has_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    gpu = options(device=torch.device("cuda"), extra={"kv_cache_dtype": "fp8"})
    with pytest.raises(UserError, match="8-bit") as caught:
        decode_plan(gpu, "qwen2")
    assert caught.value.hint == f"{caught.value.key}=auto"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert decode_plan(gpu, "qwen2").kv_cache_dtype == "fp8"
