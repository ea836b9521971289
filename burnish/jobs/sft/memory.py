"""Out of device memory in supervised fine-tuning: who holds the bytes, and the key to change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from burnish.config.memory_fixes import typed
from burnish.loop.memory import out_of_memory
from burnish.models.device import pick_device
from burnish.training.device_memory import OutOfMemory, memory_reported

if TYPE_CHECKING:
    from burnish.config.sft import SftConfig
    from burnish.jobs.sft.run import SftRun

PHASES = {"step": "update", "testing": "validation"}  # of the clock


@contextlib.contextmanager
def explaining_out_of_memory(run: SftRun) -> Iterator[None]:
    """Turn out-of-memory errors into a UserError; workers report what their own model holds."""
    try:
        with memory_reported({} if run.workers.groups else {"model": run.model}, pick_device(run.trainer.device)):
            yield
    except OutOfMemory as error:
        phase = PHASES.get(run.clock.failed_in or "", run.clock.failed_in or "start")
        raise out_of_memory(phase, error, next_change(run.cfg)) from error


def next_change(cfg: SftConfig) -> tuple[str, str] | None:
    """The next override to try, and its cost; None if there is none left."""
    data, model, slower = cfg.data, cfg.model, "slower, same gradients"
    if data.use_dynamic_bsz:
        if data.max_token_len_per_gpu > data.max_length:
            return typed((("data.max_token_len_per_gpu", data.max_length),)), slower
    elif data.micro_batch_size is not None:
        return typed((("data.micro_batch_size", None), ("data.micro_batch_size_per_gpu", 1))), slower
    elif data.micro_batch_size_per_gpu > 1:
        return typed((("data.micro_batch_size_per_gpu", 1),)), slower
    if not model.enable_gradient_checkpointing:
        return typed((("model.enable_gradient_checkpointing", True),)), "about a third more time"
    if not (model.fsdp_config.offload_policy or model.fsdp_config.cpu_offload):
        return typed((("model.fsdp_config.offload_policy", True),)), "updates on the CPU: much slower"
    return None
