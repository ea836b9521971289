"""critic.*: the value model and its update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import II

from burnish.config.adapters import TrainedModelConfig
from burnish.config.engine import FsdpConfig, MegatronConfig
from burnish.config.fields import at_least, one_of, section, setting
from burnish.config.names import LOSS_AGGREGATIONS, STRATEGIES
from burnish.config.optim import CheckpointConfig, OptimConfig
from burnish.config.profiler import ProfilerConfig


@dataclass
class CriticModelConfig(TrainedModelConfig):
    """The value model."""

    path: str | None = setting(II("actor_rollout_ref.model.path"), verl="~/models/deepseek-llm-7b-chat")
    """Folder or name of the model the critic starts from; follows the policy's. Its value head is newly initialized."""

    tokenizer_path: str | None = II("actor_rollout_ref.model.path")
    """Folder or name of the critic's tokenizer; follows the policy's model."""

    override_config: dict[str, Any] = setting({})
    """Values to change in the critic's Hugging Face config."""

    external_lib: list[str] = setting(II("actor_rollout_ref.model.external_lib"), comma_separated=True)
    """Python modules to import before the critic is built; follows the policy's."""

    trust_remote_code: bool = II("actor_rollout_ref.model.trust_remote_code")
    """Allow the critic's repository to run its own Python code; follows the policy's."""

    use_remove_padding: bool = setting(True, verl=False)
    """Train on packed tokens without padding."""

    use_shm: bool = False
    """Copy the weights to shared memory before loading them."""

    fsdp_config: FsdpConfig = section(FsdpConfig)
    """FSDP settings of the critic."""


@dataclass
class CriticConfig:
    """The critic's update."""

    enable: bool | None = None
    """Train a critic; null trains one if the advantage estimator needs values (gae)."""

    strategy: str = one_of(II("actor_rollout_ref.actor.strategy"), STRATEGIES)
    """Training backend of the critic; follows the policy's."""

    rollout_n: int = at_least(II("actor_rollout_ref.rollout.n"), 1)
    """Responses per prompt in the critic's batches; follows rollout.n."""

    ppo_mini_batch_size: int = at_least(II("actor_rollout_ref.actor.ppo_mini_batch_size"), 1)
    """Prompts per update, over all ranks; follows the policy's."""

    ppo_micro_batch_size: int | None = at_least(None, 1)
    """Responses per forward and backward pass over all ranks; older form of ppo_micro_batch_size_per_gpu."""

    ppo_micro_batch_size_per_gpu: int | None = at_least(None, 1)
    """Responses per forward and backward pass on one rank; null packs by ppo_max_token_len_per_gpu."""

    use_dynamic_bsz: bool = II("actor_rollout_ref.actor.use_dynamic_bsz")
    """Form micro-batches by token count instead of by number of responses; follows the policy's."""

    ppo_max_token_len_per_gpu: int = at_least(32768, 1)
    """Token budget of one micro-batch on one rank."""

    forward_micro_batch_size: int | None = at_least(II(".ppo_micro_batch_size"), 1)
    """Responses per forward pass of value computation over all ranks; follows ppo_micro_batch_size."""

    forward_micro_batch_size_per_gpu: int | None = at_least(II(".ppo_micro_batch_size_per_gpu"), 1)
    """Responses per forward pass of value computation on one rank; follows ppo_micro_batch_size_per_gpu."""

    forward_max_token_len_per_gpu: int = at_least(II(".ppo_max_token_len_per_gpu"), 1)
    """Token budget of one forward pass of value computation on one rank; follows ppo_max_token_len_per_gpu."""

    ppo_epochs: int = at_least(II("actor_rollout_ref.actor.ppo_epochs"), 1)
    """Passes over a step's responses; follows the policy's."""

    shuffle: bool = II("actor_rollout_ref.actor.shuffle")
    """Shuffle the responses before each pass; follows the policy's."""

    shuffle_mini_batches: bool = II("actor_rollout_ref.actor.shuffle_mini_batches")
    """Shuffle the order of a step's mini-batches and keep the responses of each; follows the policy's."""

    data_loader_seed: int | None = II("actor_rollout_ref.actor.data_loader_seed")
    """Seed of both shuffles; follows the policy's."""

    cliprange_value: float = at_least(0.5, 0)
    """Clip range of new values around old ones in the value loss."""

    loss_agg_mode: str = one_of(II("actor_rollout_ref.actor.loss_agg_mode"), LOSS_AGGREGATIONS)
    """How token losses are aggregated; follows the policy's."""

    grad_clip: float = at_least(1.0, 0)
    """Maximum gradient norm; 0 disables clipping. Updates with a non-finite norm are skipped."""

    use_prefix_grouper: bool = II("actor_rollout_ref.actor.use_prefix_grouper")
    """Compute a prompt once for all its responses, in values and updates; follows the policy's."""

    ulysses_sequence_parallel_size: int = at_least(1, 1)
    """Ranks that share one sequence: Ulysses if they divide the number of heads, otherwise ring attention."""

    use_torch_compile: bool = II("actor_rollout_ref.actor.use_torch_compile")
    """Compile the critic's layers; follows the policy's."""

    nccl_timeout: int = at_least(600, 1)
    """Timeout in seconds of the critic's collective operations."""

    load_weight: bool = True
    """Load the weights from the model folder; false starts from random weights."""

    model: CriticModelConfig = section(CriticModelConfig)
    """The value model."""

    optim: OptimConfig = section(OptimConfig, lr=1e-5)
    """The optimizer."""

    checkpoint: CheckpointConfig = section(CheckpointConfig)
    """Contents of checkpoints."""

    megatron: MegatronConfig = section(MegatronConfig)
    """Megatron settings of the critic."""

    profiler: ProfilerConfig = section(ProfilerConfig)
    """Profiling of the critic."""
