"""rollout.invariant on a GPU: whether training computes with the engine's kernels, and what a run says about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from burnish.config.adapters import adapter_of
from burnish.loop.backends import Precision
from burnish.models.device import pick_dtype
from burnish.models.invariant.modules import why_not_invariant
from burnish.models.load import ModelSource, load_config

if TYPE_CHECKING:
    from burnish.config import TrainConfig

INVARIANT_ON = frozenset({"cuda"})  # devices whose engine has invariant kernels; on a CPU it computes in C
ROLLOUT = "actor_rollout_ref.rollout"


def trains_invariantly(cfg: TrainConfig, source: ModelSource, device: torch.device) -> bool:
    """Whether log-probs and updates of the policy are computed by the kernels of the engine."""
    return wants_invariant_training(cfg, device) and why_trained_otherwise(cfg, source, device) is None


def wants_invariant_training(cfg: TrainConfig, device: torch.device) -> bool:
    return bool(cfg.actor_rollout_ref.rollout.invariant) and device.type in INVARIANT_ON


def why_trained_otherwise(cfg: TrainConfig, source: ModelSource, device: torch.device) -> str | None:
    """What stands against equal bits in engine and trainer; None where nothing does."""
    rollout, model, actor = cfg.actor_rollout_ref.rollout, cfg.actor_rollout_ref.model, cfg.actor_rollout_ref.actor
    fsdp, megatron = actor.fsdp_config, actor.megatron
    precision = Precision.of(fsdp, "actor_rollout_ref.actor.fsdp_config", device, model.torch_dtype)
    shared = (actor.ulysses_sequence_parallel_size, megatron.tensor_model_parallel_size)
    stages = (megatron.context_parallel_size, megatron.pipeline_model_parallel_size)
    reasons = {
        f"the kernels belong to the built-in engine ({ROLLOUT}.name)": rollout.name != "builtin",
        f"several ranks share an engine ({ROLLOUT}.tensor_model_parallel_size)": rollout.tensor_model_parallel_size > 1,
        f"Triton kernels are off ({ROLLOUT}.engine_kwargs.builtin.triton)": (
            rollout.engine_kwargs.builtin.get("triton") is False
        ),
        "adapters are trained beside the weights, which the engine gets merged": (
            adapter_of(model, "actor_rollout_ref.model") is not None
        ),
        "the policy's weights have 4 bits (actor_rollout_ref.model.load_in_4bit)": model.load_in_4bit,
        "Liger's kernels are used (actor_rollout_ref.model.use_liger)": model.use_liger,
        "prompts are computed once for all responses (actor_rollout_ref.actor.use_prefix_grouper)": (
            actor.use_prefix_grouper
        ),
        "several ranks compute one row of the batch": max(*shared, *stages) > 1,
        "the engine computes in another dtype than the trainer (rollout.dtype, fsdp_config.mixed_precision)": (
            pick_dtype(rollout.dtype, device, f"{ROLLOUT}.dtype") != precision.compute
        ),
        "frequencies of rotary embeddings are rounded (fsdp_config.mixed_precision.buffer_dtype)": (
            precision.buffers != torch.float32
        ),
    }
    found = next((reason for reason, applies in reasons.items() if applies), None)
    return found or why_not_invariant(load_config(source))


def invariant_notices(cfg: TrainConfig, source: ModelSource, device: torch.device) -> list[str]:
    """What a run reports at its start."""
    if not wants_invariant_training(cfg, device):
        return []
    reason = why_trained_otherwise(cfg, source, device)
    if reason is None:
        told = "training computes with the engine's kernels; training/rollout_probs_diff_max shows any difference"
    else:
        told = f"bits are equal within the engine only, and training computes other last bits: {reason}"
    return [f"{ROLLOUT}.invariant: {told}"]
