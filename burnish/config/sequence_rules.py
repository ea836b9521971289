"""Rules for groups of ranks that share a sequence (ulysses_sequence_parallel_size) or a copy of weights (fsdp_size),
and for sequences that share a prompt (use_prefix_grouper)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from burnish.config.actor import ActorConfig
from burnish.config.expert_rules import replays_routing
from burnish.config.model_rules import trained_models
from burnish.config.ranks import (
    num_role_ranks,
    pipeline_parallel_size,
    sequence_parallel_size,
    tensor_parallel_size,
    uses_megatron,
)
from burnish.config.root import TrainConfig
from burnish.errors import UserError

NAME = "ulysses_sequence_parallel_size"
GROUPER = "use_prefix_grouper"
# Estimators that compare two models over the whole vocabulary.
EXACT_KL = frozenset({"full", "full+"})
TRAINER = "trainer.nnodes x trainer.n_gpus_per_node"


def roles_in_use(cfg: TrainConfig) -> Iterator[tuple[str, Any]]:
    """(section, config) of every role that this run uses."""
    actor = cfg.actor_rollout_ref.actor
    yield "actor_rollout_ref.actor", actor
    if actor.use_kl_loss or cfg.algorithm.use_kl_in_reward:
        yield "actor_rollout_ref.ref", cfg.actor_rollout_ref.ref
    if "critic.model" in dict(trained_models(cfg)):
        yield "critic", cfg.critic
    if cfg.reward_model.enable:
        yield "reward_model", cfg.reward_model


def groups(cfg: TrainConfig) -> Iterator[UserError]:
    """The sequence-parallel size divides the number of ranks."""
    reward_model = cfg.reward_model
    for section, role in roles_in_use(cfg):
        source = TRAINER
        if role is reward_model and reward_model.enable_resource_pool:
            source = "reward_model.nnodes x reward_model.n_gpus_per_node"
        if not uses_megatron(role):
            size = role.ulysses_sequence_parallel_size
            yield from check_groups(num_role_ranks(cfg, role), size, f"{section}.{NAME}", source)


def check_groups(total: int, size: int, key: str, source: str = TRAINER) -> Iterator[UserError]:
    """`size` ranks that share a sequence divide `total`."""
    if total % size:
        valid = [number for number in range(1, total + 1) if total % number == 0]
        yield UserError(
            f"{total} rank{'s' * (total > 1)} ({source}) cannot be divided into groups of {size}",
            key=key,
            value=size,
            allowed=valid,
            hint=f"{key}={max(number for number in valid if number <= size)}",
        )


def shards(cfg: TrainConfig) -> Iterator[UserError]:
    """The ranks that share one copy of the weights divide those of a stage."""
    for section, role in roles_in_use(cfg):
        is_model = hasattr(role.model, "fsdp_config") if hasattr(role, "model") else False
        key, fsdp = (f"{section}.model", role.model.fsdp_config) if is_model else (section, role.fsdp_config)
        total = num_role_ranks(cfg, role) // (tensor_parallel_size(role) * pipeline_parallel_size(role))
        yield from check_shards(total, fsdp.fsdp_size, f"{key}.fsdp_config.fsdp_size")


def check_shards(total: int, size: int, key: str) -> Iterator[UserError]:
    """`size` ranks that share one copy of the weights divide `total`; -1, and as many or more, are all of them."""
    if 0 < size < total and total % size:
        valid = [number for number in range(1, total + 1) if total % number == 0]
        problem = f"the {total} ranks that hold the same layers cannot be divided into groups of {size}"
        hint = f"{key}={max(number for number in valid if number <= size)}"
        yield UserError(problem, key=key, value=size, allowed=[-1, *valid], hint=hint)


def wants_exact_kl(cfg: TrainConfig) -> bool:
    """Whether the KL to the reference is computed over the whole vocabulary."""
    actor = cfg.actor_rollout_ref.actor
    used = {actor.kl_loss_type} if actor.use_kl_loss else set()
    used |= {cfg.algorithm.kl_penalty} if cfg.algorithm.use_kl_in_reward else set()
    return bool(used & EXACT_KL)


def exact_kl(cfg: TrainConfig) -> Iterator[UserError]:
    """The exact KL needs each token on the same rank for policy and reference."""
    actor, ref = cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.ref
    if uses_megatron(actor) or uses_megatron(ref):
        return  # megatron.exact_kl_sizes checks these
    size, other = actor.ulysses_sequence_parallel_size, ref.ulysses_sequence_parallel_size
    if size != other and wants_exact_kl(cfg):
        key = f"actor_rollout_ref.ref.{NAME}"
        problem = f"the exact KL needs equal parallel sizes of policy and reference, and the policy's is {size}"
        yield UserError(problem, key=key, value=other, allowed=[size], hint=f"{key}={size}")


def shared_prompts(cfg: TrainConfig) -> Iterator[UserError]:
    """Prompts that are computed once are on one rank, and nothing counts their tokens once per response."""
    for section, role in roles_in_use(cfg):
        if not getattr(role, GROUPER, False):
            continue
        key, size = f"{section}.{GROUPER}", sequence_parallel_size(role)
        problem = None
        if size > 1:
            problem = f"{size} ranks share each sequence, and then prompts cannot be shared by sequences"
        elif getattr(role, "aux_loss_coef", 0.0) > 0:
            problem = "the balancing loss of routers (aux_loss_coef) counts every token of every response's prompt"
        elif isinstance(role, ActorConfig) and replays_routing(role):
            problem = "choices of experts (router_replay.mode) are recorded per response, also for its prompt"
        if problem is not None:
            yield UserError(problem, key=key, value=True, hint=f"{key}=false")


SEQUENCE_RULES = (groups, shards, exact_kl, shared_prompts)
