"""The description of this machine."""

from __future__ import annotations

import platform

import pytest
import torch

from burnish.config import load
from burnish.config.names import ENGINES, LOGGERS
from burnish.doctor import machine
from burnish.doctor.machine import cpu_bf16, cuda_devices, describe_machine, missing_for


def test_the_description_is_of_this_machine():
    machine_info = describe_machine()
    assert machine_info.python == platform.python_version()
    assert machine_info.libraries["torch"] == torch.__version__
    assert machine_info.engines["builtin"] and machine_info.loggers["console"]
    assert machine_info.memory > 0 and machine_info.free_disk > 0
    assert machine_info.isolation["programs of the model"] and machine_info.isolation["reward workers"]
    assert len(machine_info.devices) == torch.cuda.device_count()


def test_it_knows_every_engine_and_logger():
    assert machine.ENGINES.keys() == ENGINES.keys()
    assert machine.LOGGERS.keys() == LOGGERS.keys()


def test_devices_are_those_of_torch():
    assert [device.name for device in cuda_devices()] == [
        torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())
    ]


def test_bf16_is_safe_without_amx():
    assert cpu_bf16("flags: avx2 avx512_bf16") == "safe: no AMX on this CPU"


@pytest.mark.long
def test_bf16_is_tested_where_it_could_fail():
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
