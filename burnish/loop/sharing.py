"""Checks that models divide over tensor and sequence ranks, from their configs, before any weight is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnish.config.ranks import sequence_parallel_size, tensor_parallel_size, uses_megatron
from burnish.loop.build_reward_model import reward_model_source
from burnish.loop.pools import wants_critic, wants_reference, wants_reward_model
from burnish.loop.roles import critic_source, reference_source
from burnish.models.load import ModelSource, load_config
from burnish.models.sequence.method import choose_method
from burnish.training.tensor_parallel import check_sizes

if TYPE_CHECKING:
    from burnish.config import TrainConfig


def check_sharing(cfg: TrainConfig, source: ModelSource) -> list[str]:
    """Raise where heads do not divide over tensor or sequence ranks; returns notices on sequence parallelism."""
    notices = []
    policy, critic = cfg.actor_rollout_ref, cfg.critic
    models: list[tuple[str, Any, ModelSource]] = [("actor_rollout_ref.actor", policy.actor, source)]
    if wants_reference(cfg):
        models.append(("actor_rollout_ref.ref", policy.ref, reference_source(cfg, source)))
    if wants_critic(cfg):
        models.append(("critic", critic, critic_source(cfg)))
    if wants_reward_model(cfg):
        models.append(("reward_model", cfg.reward_model, reward_model_source(cfg)))
    for key, role, model_source in models:
        config = load_config(model_source)
        tensor, sequence = tensor_parallel_size(role), sequence_parallel_size(role)
        check_sizes(config, tensor, f"{key}.megatron.tensor_model_parallel_size")
        if sequence > 1:
            name = "megatron.context_parallel_size" if uses_megatron(role) else "ulysses_sequence_parallel_size"
            notices.append(choose_method(config, sequence, f"{key}.{name}", tensor).notice)
    return notices
