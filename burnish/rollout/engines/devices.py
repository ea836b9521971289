"""The GPUs that an engine's own processes see."""

from __future__ import annotations

import os

import torch

from burnish.rollout.engine import EngineOptions

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_device(number: int) -> str:
    """The entry of CUDA_VISIBLE_DEVICES that is this process's GPU of this number."""
    visible = os.environ.get(VISIBLE, "").split(",")
    return visible[number] if len(visible) > number and visible[number] else str(number)


def device_entries(device: torch.device) -> tuple[str, ...]:
    """Those of a rank's device; none on a CPU."""
    return () if device.index is None else (visible_device(device.index),)


def visible_devices(options: EngineOptions) -> dict[str, str]:
    """The variable for a server's environment: the devices of all ranks that share it, or those after this rank's."""
    if options.devices:
        return {VISIBLE: ",".join(options.devices)}
    if options.device.index is None:
        return {}
    size = options.tensor_parallel * options.pipeline_parallel * options.data_parallel
    return {VISIBLE: ",".join(visible_device(options.device.index + number) for number in range(size))}
