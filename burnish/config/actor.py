"""actor_rollout_ref.actor.* and .ref.*: the policy update, and the frozen reference policy."""

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
    """The policy loss and its parameters."""

    loss_mode: str = one_of("vanilla", LOSSES, user_paths=True)
    """The policy loss: a name, or path/to/file.py:function."""

    clip_cov_ratio: float = between(0.0002, 0, 1)
    """clip_cov: fraction of tokens removed from the loss."""

    clip_cov_lb: float = 1.0
    """clip_cov: lowest covariance of a token that may be removed."""

    clip_cov_ub: float = 5.0
    """clip_cov: highest covariance of a token that may be removed."""

    kl_cov_ratio: float = between(0.0002, 0, 1)
    """kl_cov: fraction of tokens, those of highest covariance, that get the penalty."""

    ppo_kl_coef: float = at_least(0.1, 0)
    """kl_cov: weight of that penalty."""


@dataclass
class RouterReplayConfig:
    """Router replay: repeat earlier expert choices in training."""

    mode: str = one_of("disabled", ("disabled", "R2", "R3"))
    """Which choices of experts the update repeats: those of the pass over old log-probs (R2), the engine's, which that
    pass repeats too (R3; needs rollout.enable_rollout_routing_replay), or none."""

    record_file: str | None = None
    """verl: file to write the choices to. No effect."""

    replay_file: str | None = None
    """verl: file to read the choices from. No effect."""


@dataclass
class ActorConfig:
    """The policy's update."""

    strategy: str = one_of("fsdp", STRATEGIES)
    """Training backend. The other roles follow the policy's."""

    ppo_mini_batch_size: int = at_least(256, 1)
    """Prompts per update, over all ranks; each has rollout.n responses. The last mini-batch may be smaller."""

    ppo_micro_batch_size: int | None = at_least(None, 1)
    """Responses per forward and backward pass over all ranks; older form of ppo_micro_batch_size_per_gpu."""

    ppo_micro_batch_size_per_gpu: int | None = at_least(None, 1)
    """Responses per forward and backward pass on one rank; null packs by ppo_max_token_len_per_gpu.
    It does not change gradients."""

    use_dynamic_bsz: bool = False
    """Form micro-batches by token count (ppo_max_token_len_per_gpu) instead of by number of responses."""

    ppo_max_token_len_per_gpu: int = at_least(16384, 1)
    """Token budget of one micro-batch on one rank; a longer single response gets a micro-batch of its own."""

    grad_clip: float = at_least(1.0, 0)
    """Maximum gradient norm; 0 disables clipping. Updates with a non-finite norm are skipped."""

    clip_ratio: float = at_least(0.2, 0)
    """Clip range of the probability ratio; used where clip_ratio_low or clip_ratio_high is null."""

    clip_ratio_low: float | None = at_least(None, 0, verl=0.2)
    """How far the ratio may fall below 1; null means clip_ratio."""

    clip_ratio_high: float | None = at_least(None, 0, verl=0.2)
    """How far the ratio may rise above 1; null means clip_ratio. Above clip_ratio_low this is DAPO's clip-higher."""

    clip_ratio_c: float | None = above(3.0, 1)
    """Dual clip: upper bound of the ratio where the advantage is negative; null disables it."""

    policy_loss: PolicyLossConfig = section(PolicyLossConfig)
    """The policy loss and its parameters."""

    tau_pos: float = above(1.0, 0)
    """sapo: steepness of the gate for positive advantages."""

    tau_neg: float = above(1.05, 0)
    """sapo: steepness of the gate for negative advantages."""

    loss_agg_mode: str = one_of("token-mean", LOSS_AGGREGATIONS)
    """How token losses are aggregated over the global mini-batch."""

    loss_scale_factor: float | None = above(None, 0)
    """Length that seq-mean-token-sum-norm divides by; null means data.max_response_length."""

    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""

    calculate_entropy: bool = False
    """Log actor/entropy in every step, even if entropy_coeff is 0."""

    calculate_sum_pi_squared: bool = False
    """Compute the sum of squared probabilities that the optimal token baselines need."""

    sum_pi_squared_checkpointing: bool = False
    """Recompute that sum in the backward pass instead of storing intermediate values."""

    use_kl_loss: bool = False
    """Add the KL to the reference policy to the loss (GRPO). Not together with algorithm.use_kl_in_reward."""

    kl_loss_coef: float = at_least(0.001, 0)
    """Weight of the KL in the loss."""

    kl_loss_type: str = one_of("low_var_kl", KL_ESTIMATORS)
    """Estimator of the KL in the loss; a trailing + keeps its value and uses the gradient of k2."""

    kl_loss_clamp: float | None = above(None, 0)
    """Clamp the per-token KL in the loss to +-this value (OpenRLHF: 10); null does not clamp."""

    ppo_epochs: int = at_least(1, 1)
    """Passes over a step's responses."""

    shuffle: bool = False
    """Shuffle the responses before each pass; otherwise they keep the order of the prompts."""

    shuffle_mini_batches: bool = False
    """Shuffle the order of a step's mini-batches and keep the responses of each (MindSpeed RL's shuffle_mini_batch)."""

    data_loader_seed: int | None = None
    """Seed of both shuffles; null uses trainer.seed."""

    tis_imp_ratio_cap: float | None = above(None, 0, off=(-1,), verl=-1)
    """Upper bound of the per-token importance weight between trainer and engine; older form of
    algorithm.rollout_correction.rollout_is=token with rollout_is_threshold; null or -1 disables it."""

    ema_beta: float | None = between(None, 0, 1)
    """Keep an exponential moving average of the weights, ema = beta * ema + (1 - beta) * weights after each update
    (OpenRLHF: 0.992). It is saved with the model, and hf_model writes it; null keeps none."""

    aux_loss_coef: float = at_least(0.0, 0)
    """Weight of the router load-balancing loss of MoE models, computed per micro-batch."""

    aux_loss_scope: str = one_of("model", ("model", "layer", "sequence", "aux_loss", "seq_aux_loss"))
    """Scope of that loss: all layers together, each layer (summed over layers), or each sequence of each layer.
    aux_loss and seq_aux_loss are layer and sequence divided by the experts per token, as Megatron's of these names."""

    use_torch_compile: bool = True
    """Compile the decoder layers of dense models on one GPU, and the head unless it uses Triton: updates take two
    thirds of the time, the first one some seconds more. In one process on a CPU: C kernels for norms, MLP gates and
    RoPE."""

    entropy_from_logits_with_chunking: bool = False
    """Compute the entropy in chunks to save memory."""

    entropy_checkpointing: bool = False
    """Recompute the entropy in the backward pass instead of storing intermediate values."""

    use_fused_kernels: bool = II("actor_rollout_ref.model.use_fused_kernels")
    """Follows model.use_fused_kernels."""

    use_remove_padding: bool = II("actor_rollout_ref.model.use_remove_padding")
    """Follows model.use_remove_padding."""

    use_prefix_grouper: bool = False
    """Compute the prompt of a group once for all its responses, in log-probs and updates, instead of once per response.
    Micro-batches keep the responses of a prompt together. Results are the same up to rounding, and up to dropout."""

    ulysses_sequence_parallel_size: int = at_least(1, 1)
    """Ranks that share one sequence: Ulysses if they divide the number of heads, otherwise ring attention."""

    freeze_vision_tower: bool = False
    """Do not train the model's vision tower and its projector."""

    router_replay: RouterReplayConfig = section(RouterReplayConfig)
    """Router replay."""

    load_weight: bool = True
    """Load the weights from the model folder; false starts from random weights."""

    optim: OptimConfig = section(OptimConfig)
    """The optimizer."""

    checkpoint: CheckpointConfig = section(CheckpointConfig)
    """Contents of checkpoints."""

    fsdp_config: FsdpConfig = section(FsdpConfig)
    """FSDP settings of the policy."""

    megatron: MegatronConfig = section(MegatronConfig)
    """Megatron settings of the policy."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Profiling of the policy."""


@dataclass
class RefModelConfig:
    """Overrides of the reference model; by default it is the policy's."""

    path: str | None = None
    """Folder or name of another reference model; null uses the policy's. It must use the same vocabulary."""

    override_config: dict[str, Any] = setting({})
    """Values to change in the reference's Hugging Face config, in addition to those of the policy."""

    external_lib: list[str] = setting([], comma_separated=True)
    """Python modules to import before the reference is built, in addition to the policy's."""

    trust_remote_code: bool = II("actor_rollout_ref.model.trust_remote_code")
    """Allow the reference's repository to run its own Python code; follows the policy's."""


@dataclass
class RefConfig:
    """The reference policy: a frozen copy of the initial policy."""

    strategy: str = one_of(II("actor_rollout_ref.actor.strategy"), STRATEGIES)
    """Backend of the reference; follows the policy's."""

    log_prob_micro_batch_size: int | None = at_least(None, 1)
    """Responses per forward pass over all ranks; older form of log_prob_micro_batch_size_per_gpu."""

    log_prob_micro_batch_size_per_gpu: int | None = at_least(None, 1)
    """Responses per forward pass on one rank; null packs by log_prob_max_token_len_per_gpu."""

    log_prob_use_dynamic_bsz: bool = II("actor_rollout_ref.actor.use_dynamic_bsz")
    """Form forward passes by token count instead of by number of responses; follows the policy's."""

    log_prob_max_token_len_per_gpu: int = at_least(II("actor_rollout_ref.actor.ppo_max_token_len_per_gpu"), 1)
    """Token budget of one forward pass on one rank; follows the policy's."""

    use_prefix_grouper: bool = II("actor_rollout_ref.actor.use_prefix_grouper")
    """Compute a prompt once for all its responses; follows the policy's."""

    ulysses_sequence_parallel_size: int = at_least(II("actor_rollout_ref.actor.ulysses_sequence_parallel_size"), 1)
    """Ranks that share one sequence; follows the policy's."""

    use_torch_compile: bool = II("actor_rollout_ref.actor.use_torch_compile")
    """Compile the reference's layers and head; follows the policy's."""

    entropy_from_logits_with_chunking: bool = False
    """Compute the entropy in chunks."""

    entropy_checkpointing: bool = False
    """Recompute the entropy in a backward pass; the reference has none."""

    model: RefModelConfig = section(RefModelConfig)
    """Overrides of the reference model; by default it is the policy's."""

    load_weight: bool = True
    """Load the reference's weights from the model folder; false takes random weights, the same as the policy's."""

    fsdp_config: FsdpConfig = section(FsdpConfig)
    """FSDP settings of the reference."""

    megatron: MegatronConfig = section(MegatronConfig)
    """Megatron settings of the reference."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Profiling of the reference."""
