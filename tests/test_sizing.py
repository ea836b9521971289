"""burnish/sizing.py is the only source of the sizes that the engine and the trainer use and the doctor plans with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from burnish import sizing
from burnish.doctor import activations, arithmetic, engine, head, roles
from burnish.models import chunks, compiled, device, varlen, wide
from burnish.models.fused import fp8
from burnish.rollout.engines import digests
from burnish.rollout.engines.builtin import decode_plan, device_batch, graph_decode, kv_cache, step_runner
from burnish.rollout.engines.builtin.decode_plan import DecodePlan
from burnish.training import packing
from burnish.training.packing import MicroBatchSize

SHARED = {
    "CACHE_BLOCK": (engine, kv_cache),
    "CPU_MICRO_BATCH_TOKENS": (arithmetic, packing),
    "COMPILED_FAMILIES": (roles, compiled),
    "CUDA_GRAPH_FAMILIES": (engine, decode_plan),
    "DEVICE_LOOP_BLOCK": (engine, decode_plan),
    "DIGEST_WIDTH": (engine, digests),
    "FIRST_TOKEN_BATCH": (engine, graph_decode),
    "FLOAT32_ACCUMULATING_DEVICES": (head, chunks),
    "FLOAT32_BYTES": (activations, head),
    "FLOAT32_RESIDUAL_FAMILIES": (engine, wide),
    "FLOAT_COLUMNS": (engine, device_batch),
    "FP8_BLOCK": (engine, fp8),
    "INT_COLUMNS": (engine, device_batch),
    "NUM_STOP_TOKENS": (engine, device_batch),
    "SYNC_INTERVAL": (engine, decode_plan),
    "cache_blocks": (engine, step_runner, graph_decode),
    "capture_sizes": (engine, decode_plan),
    "chunk_rows": (head, chunks),
    "default_dtype": (roles, device),
    "flash_attention_fits": (roles, varlen),
    "max_chunk_rows": (engine, graph_decode),
}


@pytest.mark.parametrize("name", SHARED)
def test_doctor_and_run_share_one_definition(name):
    for module in SHARED[name]:
        assert any(value is getattr(sizing, name) for value in vars(module).values()), module.__name__


def test_defaults_of_the_device_loop_are_the_shared_ones():
    assert (DecodePlan.block_size, DecodePlan.sync_interval) == (sizing.DEVICE_LOOP_BLOCK, sizing.SYNC_INTERVAL)
    assert device_batch.Widths().end_ids == sizing.NUM_STOP_TOKENS


def test_dtypes_have_the_planned_size():
    assert {name: dtype.itemsize for name, dtype in device.DTYPES.items()} == {
        name: sizing.dtype_bytes(name) for name in sizing.DTYPE_NAMES
    }
    for name in ("cpu", "cuda"):
        assert device.pick_dtype(None, torch.device(name), "key").itemsize == roles.default_itemsize(name == "cpu")


@pytest.mark.parametrize(("sequences", "dynamic"), [(None, False), (4, False), (4, True)])
@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_micro_batches_are_planned_as_training_forms_them(sequences, dynamic, name):
    cut = MicroBatchSize.of(sequences, dynamic, 20_000).for_device(torch.device(name)).times(2)
    planned = arithmetic.micro_batching(sequences, dynamic, 20_000, 8, 100, 50, name == "cpu", 2)
    assert (planned.sequences, planned.tokens) == (cut.rows, cut.tokens)


def test_sizing_imports_nothing():
    code = "import sys; before = set(sys.modules); import burnish.sizing; print(sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "torch" not in loaded and "numpy" not in loaded


def test_threads_wait_without_spinning():
    """Spinning threads take ten times as long beside another job. The user's own setting wins."""
    code = "import os, burnish; print(os.environ['OMP_WAIT_POLICY'])"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for own in ({}, {"OMP_WAIT_POLICY": "ACTIVE"}):
        shown = subprocess.run([sys.executable, "-c", code], env=environment | own, capture_output=True, text=True)
        assert shown.stdout.strip() == own.get("OMP_WAIT_POLICY", "PASSIVE")


def test_cores_are_physical_and_within_the_quota(monkeypatch):
    monkeypatch.setattr(sizing.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(sizing, "_siblings", lambda cpu: f"{cpu % 2},{cpu % 2 + 2}")
    monkeypatch.setattr(sizing, "_cgroup_quota", lambda: None)
    assert sizing.available_cores() == 2
    monkeypatch.setattr(sizing, "_cgroup_quota", lambda: 1.5)
    assert sizing.available_cores() == 1
    monkeypatch.setattr(sizing, "_cgroup_quota", lambda: 0.5)
    assert sizing.available_cores() == 1
