"""The machine: what is installed is what can be imported."""

from __future__ import annotations

import platform

import pytest
import torch

from burnish.config import load
from burnish.config.names import ENGINES, LOGGERS
from burnish.doctor import machine
from burnish.doctor.machine import cpu_bf16, cuda_devices, look, missing_for


def test_it_says_what_is_here():
    found = look()
    assert found.python == platform.python_version()
    assert found.libraries["torch"] == torch.__version__
    assert found.engines["builtin"] and found.loggers["console"]
    assert found.memory > 0 and found.free_disk > 0
    assert found.isolation
    assert len(found.devices) == torch.cuda.device_count()


def test_it_knows_every_engine_and_logger():
    assert machine.ENGINES.keys() == ENGINES.keys()
    assert machine.LOGGERS.keys() == LOGGERS.keys()


def test_devices_are_those_of_torch():
    assert [device.name for device in cuda_devices()] == [
        torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())
    ]


def test_bf16_is_safe_without_amx():
    assert cpu_bf16("flags: avx2 avx512_bf16") == "safe: this CPU claims no AMX"


@pytest.mark.long
def test_bf16_is_tried_where_it_could_fail():
    assert cpu_bf16("flags: amx_bf16 amx_tile").split(":")[0] in ("safe", "guarded")


def test_missing_libraries_are_named(monkeypatch):
    monkeypatch.setattr(machine, "installed", lambda module: module not in ("wandb", "vllm", "peft"))
    cfg = load(
        [
            "trainer.logger=[console,wandb]",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.model.lora_rank=8",
        ],
        check=False,
    ).cfg
    assert [library.module for _, library in missing_for(cfg)] == ["wandb", "vllm", "peft"]
