"""Devices and number formats by name."""

from __future__ import annotations

import pytest
import torch

from burnish.errors import UserError
from burnish.log.folder import RunFolder
from burnish.loop.build import choose_threads
from burnish.models.device import limit_cpu_threads, make_cpu_bf16_safe, pick_device, pick_dtype, restore_cpu_threads

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


@pytest.fixture
def four_threads(monkeypatch):
    """A machine with four cores."""
    threads = [4]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: threads.__setitem__(0, number))
    monkeypatch.setattr("burnish.models.device.available_cores", lambda: 4)
    limit_cpu_threads.cache_clear()
    yield threads
    limit_cpu_threads.cache_clear()


@pytest.fixture
def quota(monkeypatch):
    """One core for this process."""
    monkeypatch.setattr("burnish.models.device.available_cores", lambda: 1)


def test_threads_keep_to_the_quota_and_the_choice_is_reported(four_threads, quota, monkeypatch):
    notice = limit_cpu_threads()
    assert four_threads == [1]
    assert "CPU threads: 1 of 4" in notice and "OMP_NUM_THREADS" in notice
    monkeypatch.setattr("burnish.models.device.available_cores", lambda: 4)
    assert restore_cpu_threads(3) and four_threads == [3]
    assert not restore_cpu_threads(3)
    assert not restore_cpu_threads(5) and four_threads == [3]  # a machine with fewer cores


def test_the_environment_decides_about_threads(four_threads, quota, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert limit_cpu_threads() is None
    assert not restore_cpu_threads(2)
    assert four_threads == [4]


def test_a_resumed_run_keeps_its_threads(four_threads, quota, tmp_path):
    folder = RunFolder(tmp_path)
    assert "CPU threads: 1 of 4" in choose_threads(folder)[0]
    (tmp_path / "global_step_2").mkdir()
    four_threads[0] = 4
    assert choose_threads(folder) == ["CPU threads: 1, as when the run started (OMP_NUM_THREADS=N sets them)"]
    assert four_threads == [1]
