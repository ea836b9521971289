"""optim.*: the optimizer and its learning rate, the same for policy and critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.fields import at_least, between, one_of, setting
from burnish.config.names import SCHEDULES


@dataclass
class OptimConfig:
    """AdamW and its learning-rate schedule."""

    lr: float = at_least(1e-6, 0)
    """Peak learning rate."""

    lr_warmup_steps: int = at_least(-1, -1)
    """Steps of linear warm-up; -1 takes the ratio. The first step runs at 1/warm-up of the peak, not at 0."""

    lr_warmup_steps_ratio: float = between(0.0, 0, 1)
    """Warm-up as a share of all steps, where lr_warmup_steps is -1."""

    min_lr_ratio: float | None = between(0.0, 0, 1)
    """Floor of a decaying schedule, as a share of lr; null means 0."""

    num_cycles: float = at_least(0.5, 0)
    """Cosine waves over the run; 0.5 is one way down."""

    warmup_style: str = one_of("constant", SCHEDULES)
    """Schedule after the warm-up."""

    total_training_steps: int = at_least(-1, -1)
    """Steps the schedule is stretched over; -1 takes the run's length."""

    lr_step_unit: str = one_of("step", ("step", "update"))
    """What the schedule counts: turns of the loop (step), or optimizer steps (update)."""

    weight_decay: float = at_least(0.01, 0)
    """Weight decay of AdamW, on all parameters unless decay_matrices_only."""

    decay_matrices_only: bool = False
    """No weight decay on biases and norms (parameters of one dimension), as OpenRLHF and Megatron have it."""

    betas: list[float] = setting([0.9, 0.999], low=0, high=1)
    """The two decay rates of AdamW."""

    optimizer: str = one_of("adam", ("adam", "sgd"))
    """Optimizer of the Megatron backend."""

    lr_warmup_init: float = at_least(0.0, 0)
    """Learning rate at which Megatron's warm-up starts."""

    lr_decay_steps: int | None = at_least(None, 1)
    """Steps over which Megatron decays; null means all."""

    lr_decay_style: str = one_of("constant", ("constant", "linear", "cosine", "inverse_square_root", "WSD"))
    """Megatron's schedule after warm-up; constant leaves it to warmup_style."""

    min_lr: float = at_least(0.0, 0)
    """Megatron's lowest learning rate; 0 leaves it to min_lr_ratio."""

    weight_decay_incr_style: str = one_of("constant", ("constant", "linear", "cosine"))
    """How Megatron's weight decay grows."""

    lr_wsd_decay_style: str = one_of("exponential", ("constant", "linear", "cosine", "exponential", "minus_sqrt"))
    """Last part of Megatron's warm-up, stable, decay schedule."""

    lr_wsd_decay_steps: int | None = at_least(None, 1)
    """Steps of that last part."""

    use_checkpoint_opt_param_scheduler: bool = False
    """Take Megatron's schedule from the checkpoint instead of the config."""

    override_optimizer_config: dict[str, Any] = setting({})
    """Further arguments of Megatron's optimizer, for instance optimizer_cpu_offload."""


@dataclass
class CheckpointConfig:
    """What a checkpoint of one role holds."""

    save_contents: list[str] = one_of(
        ["model", "optimizer", "extra"], ("model", "optimizer", "extra", "hf_model"), comma_separated=True
    )
    """What to save: model, optimizer, extra (schedule and random state), hf_model (a Hugging Face folder)."""

    load_contents: list[str] = one_of(
        "${.save_contents}", ("model", "optimizer", "extra", "hf_model"), comma_separated=True
    )
    """What to restore on resume; follows save_contents."""

    async_save: bool = False
    """Copy the state to memory and write the checkpoint while training goes on. On for one role, it holds for all."""

    mbridge_config: dict[str, Any] = setting({})
    """Arguments of mbridge when Megatron saves a Hugging Face folder."""
