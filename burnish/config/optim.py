"""optim.* and checkpoint.*: optimizer, learning-rate schedule and checkpoints of policy and critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.fields import at_least, between, one_of, setting
from burnish.config.names import SCHEDULES


@dataclass
class OptimConfig:
    """The optimizer and its learning-rate schedule."""

    lr: float = at_least(1e-6, 0)
    """Peak learning rate."""

    lr_warmup_steps: int = at_least(-1, -1)
    """Steps of linear warm-up; -1 uses the ratio. The first step runs at 1/warm-up steps of the peak, not at 0."""

    lr_warmup_steps_ratio: float = between(0.0, 0, 1)
    """Warm-up as a fraction of all steps, if lr_warmup_steps is -1."""

    min_lr_ratio: float | None = between(0.0, 0, 1)
    """Minimum of a decaying schedule, as a fraction of lr; null means 0."""

    num_cycles: float = at_least(0.5, 0)
    """Cosine cycles over the run; 0.5 decays monotonically."""

    warmup_style: str = one_of("constant", SCHEDULES)
    """Schedule after the warm-up."""

    total_training_steps: int = at_least(-1, -1)
    """Length of the schedule in steps; -1 uses the length of the run."""

    lr_step_unit: str = one_of("step", ("step", "update"))
    """What the schedule counts: training steps (step), or optimizer updates (update)."""

    weight_decay: float = at_least(0.01, 0)
    """Weight decay, on all parameters unless decay_matrices_only: decoupled (adam), or added to gradients (sgd)."""

    decay_matrices_only: bool = False
    """No weight decay on biases and norms (1-D parameters), as in OpenRLHF and Megatron."""

    betas: list[float] = setting([0.9, 0.999], low=0, high=1)
    """Betas of AdamW."""

    optimizer: str = one_of("adam", ("adam", "sgd"))
    """adam is AdamW; sgd has the momentum of override_optimizer_config (with strategy=megatron 0.9, otherwise 0)."""

    lr_warmup_init: float = at_least(0.0, 0)
    """Learning rate at which Megatron's warm-up starts."""

    lr_decay_steps: int | None = at_least(None, 1)
    """Steps over which Megatron decays; null means all."""

    lr_decay_style: str = one_of("constant", ("constant", "linear", "cosine", "inverse_square_root", "WSD"))
    """Megatron's schedule after warm-up; constant uses warmup_style."""

    min_lr: float = at_least(0.0, 0)
    """Megatron's lowest learning rate; 0 uses min_lr_ratio."""

    weight_decay_incr_style: str = one_of("constant", ("constant", "linear", "cosine"))
    """How Megatron's weight decay grows."""

    lr_wsd_decay_style: str = one_of("exponential", ("constant", "linear", "cosine", "exponential", "minus_sqrt"))
    """Shape of the decay phase of Megatron's WSD schedule."""

    lr_wsd_decay_steps: int | None = at_least(None, 1)
    """Length of that decay phase in steps."""

    use_checkpoint_opt_param_scheduler: bool = False
    """A resumed run keeps the length of the schedule that its checkpoint was trained with, also if it has other
    steps."""

    override_optimizer_config: dict[str, Any] = setting({})
    """Further arguments of the optimizer: eps (adam); momentum and nesterov (sgd). With strategy=megatron
    also Megatron's adam_beta1, adam_beta2, adam_eps, sgd_momentum, weight_decay and optimizer_cpu_offload, which moves
    the state to CPU memory outside updates."""


# Optimizer -> entries of override_optimizer_config, and the arguments of torch's optimizer that they are. The first of
# them are Megatron's names.
ARGUMENTS: dict[str, dict[str, str]] = {
    "adam": {"adam_eps": "eps", "eps": "eps"},
    "sgd": {"sgd_momentum": "momentum", "momentum": "momentum", "nesterov": "nesterov"},
}


def optimizer_arguments(config: OptimConfig) -> dict[str, Any]:
    """The arguments of torch's optimizer in override_optimizer_config."""
    names = ARGUMENTS[config.optimizer]
    return {names[name]: value for name, value in config.override_optimizer_config.items() if name in names}


@dataclass
class CheckpointConfig:
    """Contents of one role's checkpoints."""

    save_contents: list[str] = one_of(
        ["model", "optimizer", "extra"], ("model", "optimizer", "extra", "hf_model"), comma_separated=True
    )
    """What to save: model, optimizer, extra (schedule and random state), hf_model (a folder in Hugging Face format)."""

    load_contents: list[str] = one_of(
        "${.save_contents}", ("model", "optimizer", "extra", "hf_model"), comma_separated=True
    )
    """What to restore on resume; follows save_contents."""

    async_save: bool = False
    """Copy the state to memory and write the checkpoint while training continues. Enabled for all roles if any role
    enables it."""

    mbridge_config: dict[str, Any] = setting({})
    """Arguments of mbridge when Megatron saves a Hugging Face folder."""
