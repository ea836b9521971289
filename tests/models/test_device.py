"""Devices and number formats by name."""

from __future__ import annotations

import pytest
import torch

from burnish.errors import UserError
from burnish.models.device import make_cpu_bf16_safe, pick_device, pick_dtype

CPU = torch.device("cpu")


def test_auto_device():
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu") == CPU


def test_no_cuda_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device") as caught:
        pick_device("cuda:1", key="trainer.device")
    assert caught.value.hint == "trainer.device=auto"
    assert pick_device("auto") == CPU


def test_no_such_device():
    with pytest.raises(UserError, match="no such device") as caught:
        pick_device("toaster")
    assert caught.value.value == "toaster"


@pytest.mark.parametrize("name", [None, "auto"])
def test_dtype_by_device(name):
    assert pick_dtype(name, CPU, "k") == torch.float32
    assert pick_dtype(name, torch.device("cuda"), "k") == torch.bfloat16


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float32", torch.float32), ("fp32", torch.float32), ("bf16", torch.bfloat16), ("half", torch.float16)],
)
def test_dtype_by_name(name, dtype):
    assert pick_dtype(name, CPU, "k") == dtype


def test_no_such_dtype():
    with pytest.raises(UserError, match="unknown dtype") as caught:
        pick_dtype("fp8", CPU, "actor_rollout_ref.rollout.dtype")
    assert caught.value.key == "actor_rollout_ref.rollout.dtype"
    assert "bfloat16" in caught.value.allowed


def test_bf16_product_survives_here():
    """On a machine that traps AMX this test would not end but for the guard."""
    make_cpu_bf16_safe()
    a = torch.ones(64, 64, dtype=torch.bfloat16)
    assert float((a @ a)[0, 0]) == 64.0
    if make_cpu_bf16_safe():
        assert not torch.backends.mkldnn.enabled


def test_an_accelerator_without_its_library_is_refused_by_name():
    with pytest.raises(UserError, match="pip install torch_npu") as caught:
        pick_device("npu")
    assert (caught.value.key, caught.value.value) == ("trainer.device", "npu")
