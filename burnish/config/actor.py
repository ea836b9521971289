"""actor_rollout_ref.actor.* and .ref.*: how the policy is taught, and its frozen reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from burnish.config.engine import FsdpConfig, MegatronConfig
from burnish.config.fields import above, at_least, between, one_of, section, setting
from burnish.config.names import KL_ESTIMATORS, LOSS_AGGREGATIONS, LOSSES, STRATEGIES
from burnish.config.optim import CheckpointConfig, OptimConfig
from burnish.config.profiler import ProfilerConfig


@dataclass
class PolicyLossConfig:
    """Which policy loss, and the numbers of those that have their own."""

    loss_mode: str = one_of("vanilla", LOSSES, user_paths=True)
    """The policy loss: a name, or path/to/file.py:function."""

    clip_cov_ratio: float = between(0.0002, 0, 1)
    """clip_cov: share of tokens taken out of the loss."""

    clip_cov_lb: float = 1.0
    """clip_cov: lowest covariance of a token that may be taken out."""

    clip_cov_ub: float = 5.0
    """clip_cov: highest covariance of a token that may be taken out."""

    kl_cov_ratio: float = between(0.0002, 0, 1)
    """kl_cov: share of tokens, those of highest covariance, that get the penalty."""

    ppo_kl_coef: float = at_least(0.1, 0)
    """kl_cov: weight of that penalty."""


@dataclass
class RouterReplayConfig:
    """Replaying the experts that the engine chose."""

    mode: str = one_of("disabled", ("disabled", "R2", "R3"))
    """Which choice of experts training repeats: its own first pass (R2), the engine's (R3), or none."""

    record_file: str | None = None
    """File to write the choices to."""

    replay_file: str | None = None
    """File to read the choices from."""


@dataclass
class ActorConfig:
    """The policy's update."""

    strategy: str = one_of("fsdp", STRATEGIES)
    """Training backend. The other roles follow the policy's."""

    ppo_mini_batch_size: int = at_least(256, 1)
    """Prompts per update, over all ranks; each brings its rollout.n responses. A short last mini-batch is legal."""

    ppo_micro_batch_size: int | None = at_least(None, 1)
    """Responses per forward and backward pass over all ranks; the older way to set ppo_micro_batch_size_per_gpu."""

    ppo_micro_batch_size_per_gpu: int | None = at_least(None, 1)
    """Responses per forward and backward pass on one rank; null packs by ppo_max_token_len_per_gpu.
    It never changes a gradient."""

    use_dynamic_bsz: bool = False
    """Cut micro-batches by tokens (ppo_max_token_len_per_gpu) instead of by responses."""

    ppo_max_token_len_per_gpu: int = at_least(16384, 1)
    """Token budget of one micro-batch on one rank; a longer single response gets a micro-batch of its own."""

    grad_clip: float = at_least(1.0, 0)
    """Largest gradient norm of an update; 0 does not clip. An update whose norm is not finite is skipped."""

    clip_ratio: float = at_least(0.2, 0)
    """Clip range of the probability ratio, where clip_ratio_low or clip_ratio_high is null."""

    clip_ratio_low: float | None = at_least(None, 0, verl=0.2)
    """How far the ratio may fall below 1; null means clip_ratio."""

    clip_ratio_high: float | None = at_least(None, 0, verl=0.2)
    """How far the ratio may rise above 1; null means clip_ratio. Above clip_ratio_low this is DAPO's clip-higher."""

    clip_ratio_c: float | None = above(3.0, 1)
    """Dual clip: where the advantage is negative, the ratio counts at most this much; null is off."""

    policy_loss: PolicyLossConfig = section(PolicyLossConfig)
    """Which policy loss."""

    tau_pos: float = above(1.0, 0)
    """sapo: steepness of the gate where the advantage is positive."""

    tau_neg: float = above(1.05, 0)
    """sapo: steepness of the gate where the advantage is negative."""

    loss_agg_mode: str = one_of("token-mean", LOSS_AGGREGATIONS)
    """How token losses become one number, over the whole mini-batch on all ranks."""

    loss_scale_factor: float | None = above(None, 0)
    """Length that seq-mean-token-sum-norm divides by; null means data.max_response_length."""

    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""

    calculate_entropy: bool = False
    """Report the entropy in every update, also when entropy_coeff is 0."""

    use_kl_loss: bool = False
    """Add the KL to the reference policy to the loss (GRPO). Not together with algorithm.use_kl_in_reward."""

    kl_loss_coef: float = at_least(0.001, 0)
    """Weight of the KL in the loss."""

    kl_loss_type: str = one_of("low_var_kl", KL_ESTIMATORS)
    """Estimator of the KL in the loss; a + takes its value with the gradient of k2."""

    kl_loss_clamp: float | None = above(None, 0)
    """Hold the KL in the loss within +- this on each token (OpenRLHF: 10); null leaves it as it is."""

    ppo_epochs: int = at_least(1, 1)
    """Passes over a step's responses."""

    shuffle: bool = False
    """Shuffle the responses before each pass; else they keep the order of the prompts."""

    data_loader_seed: int | None = None
    """Seed of that shuffle; null uses trainer.seed."""

    tis_imp_ratio_cap: float | None = above(None, 0, off=(-1,), verl=-1)
    """Cap of the token's importance weight between engine and trainer, the older way to set
    algorithm.rollout_correction.rollout_is=token with rollout_is_threshold; null or -1 is off."""

    ema_beta: float | None = between(None, 0, 1)
    """Keep a moving average of the weights, average = beta average + (1 - beta) weights after each update (OpenRLHF:
    0.992). It is saved with the model, and is what hf_model writes; null keeps none."""

    aux_loss_coef: float = at_least(0.0, 0)
    """Weight of the load-balancing loss of a mixture of experts' routers; each micro-batch is balanced for itself."""

    aux_loss_scope: str = one_of("model", ("model", "layer", "sequence"))
    """What that loss balances as one: the routers of all layers together, each layer (Megatron: the layers' losses add
    up), or each sequence in each layer."""

    use_torch_compile: bool = True
    """Compile the decoder layers of dense models on one GPU, and the head where it is not in Triton: updates take two
    thirds of the time, the first one some seconds more. In one process on a CPU, norms, gates and rotations in C."""

    entropy_from_logits_with_chunking: bool = False
    """Compute the entropy in chunks, for less memory."""

    entropy_checkpointing: bool = False
    """Recompute the entropy in the backward pass instead of keeping its intermediate values."""

    use_fused_kernels: bool = II("actor_rollout_ref.model.use_fused_kernels")
    """Follows model.use_fused_kernels."""

    use_remove_padding: bool = II("actor_rollout_ref.model.use_remove_padding")
    """Follows model.use_remove_padding."""

    ulysses_sequence_parallel_size: int = at_least(1, 1)
    """Ranks that share one sequence: by Ulysses where they divide the heads, else by ring attention."""

    freeze_vision_tower: bool = False
    """Do not train the vision part of the model."""

    router_replay: RouterReplayConfig = section(RouterReplayConfig)
    """Replaying the engine's choice of experts."""

    load_weight: bool = True
    """Load the weights from the model's folder; off starts at random (Megatron)."""

    optim: OptimConfig = section(OptimConfig)
    """The optimizer."""

    checkpoint: CheckpointConfig = section(CheckpointConfig)
    """What a checkpoint holds."""

    fsdp_config: FsdpConfig = section(FsdpConfig)
    """FSDP settings of the policy."""

    megatron: MegatronConfig = section(MegatronConfig)
    """Megatron settings of the policy."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Profiling of the policy."""


@dataclass
class RefModelConfig:
    """The reference's model where it differs from the policy's."""

    path: str | None = None
    """Folder or name of another reference model; null is the policy's. Its tokens must mean the same."""

    override_config: dict[str, Any] = setting({})
    """Values to change in the reference's Hugging Face config, beyond those of the policy's."""

    external_lib: list[str] = setting([], comma_separated=True)
    """Python modules to import before the reference is built, beyond the policy's."""

    trust_remote_code: bool = II("actor_rollout_ref.model.trust_remote_code")
    """Allow the reference's repository to run its own Python code; follows the policy's."""


@dataclass
class RefConfig:
    """The reference policy: the policy's model at the start, frozen."""

    strategy: str = one_of(II("actor_rollout_ref.actor.strategy"), STRATEGIES)
    """Backend of the reference; follows the policy's."""

    log_prob_micro_batch_size: int | None = at_least(None, 1)
    """Responses per forward pass over all ranks; the older way to set log_prob_micro_batch_size_per_gpu."""

    log_prob_micro_batch_size_per_gpu: int | None = at_least(None, 1)
    """Responses per forward pass on one rank; null packs by log_prob_max_token_len_per_gpu."""

    log_prob_use_dynamic_bsz: bool = II("actor_rollout_ref.actor.use_dynamic_bsz")
    """Cut forward passes by tokens instead of by responses; follows the policy's."""

    log_prob_max_token_len_per_gpu: int = at_least(II("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"), 1)
    """Token budget of one forward pass on one rank; follows the policy's."""

    ulysses_sequence_parallel_size: int = at_least(II("actor_rollout_ref.actor.ulysses_sequence_parallel_size"), 1)
    """Ranks that share one sequence, as the policy's do; follows the policy's."""

    use_torch_compile: bool = II("actor_rollout_ref.actor.use_torch_compile")
    """Compile the reference's layers and head; follows the policy's."""

    entropy_from_logits_with_chunking: bool = False
    """Compute the entropy in chunks."""

    entropy_checkpointing: bool = False
    """Recompute the entropy in a backward pass; the reference has none."""

    model: RefModelConfig = section(RefModelConfig)
    """The reference's model where it differs from the policy's."""

    load_weight: bool = True
    """Load the weights from the model's folder (Megatron)."""

    fsdp_config: FsdpConfig = section(FsdpConfig)
    """FSDP settings of the reference."""

    megatron: MegatronConfig = section(MegatronConfig)
    """Megatron settings of the reference."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Profiling of the reference."""
