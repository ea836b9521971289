"""Checks that models divide over ranks and stages, from their configs, before any weight is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnish.config.expert_rules import MODE, RECORD, replays_routing
from burnish.config.ranks import (
    engine_size,
    expert_parallel_size,
    pipeline_parallel_size,
    sequence_parallel_size,
    tensor_parallel_size,
    uses_megatron,
    virtual_pipeline_size,
)
from burnish.config.sequence_rules import wants_exact_kl
from burnish.config.stage_rules import counted_parts, layers_per_stage
from burnish.errors import UserError
from burnish.loop.build_reward_model import reward_model_source
from burnish.loop.pools import wants_critic, wants_reference, wants_reward_model
from burnish.loop.roles import critic_source, reference_source
from burnish.models import tensor_slices
from burnish.models.load import ModelSource, load_config
from burnish.models.routing import check_routing
from burnish.models.sequence.method import Method, choose_method
from burnish.training.expert_parallel import check_experts
from burnish.training.stages import ONE_STAGE, StageOptions, check_stages
from burnish.training.tensor_parallel import check_sizes

if TYPE_CHECKING:
    from burnish.config import TrainConfig


ROLLOUT = "actor_rollout_ref.rollout"
COMPARED = ("actor_rollout_ref.actor", "actor_rollout_ref.ref")  # by the exact KL, token by token


def check_sharing(cfg: TrainConfig, source: ModelSource) -> list[str]:
    """Raise where heads, layers or experts do not divide over ranks; returns notices on how ranks share models."""
    notices: list[str] = []
    _check_engine(cfg, source)
    policy, critic = cfg.actor_rollout_ref, cfg.critic
    if replays_routing(policy.actor):
        check_routing(load_config(source), MODE, policy.actor.router_replay.mode, f"{MODE}=disabled")
    if policy.rollout.enable_rollout_routing_replay:
        check_routing(load_config(source), RECORD, True, f"{RECORD}=false")
    models: list[tuple[str, Any, ModelSource]] = [("actor_rollout_ref.actor", policy.actor, source)]
    if wants_reference(cfg):
        models.append(("actor_rollout_ref.ref", policy.ref, reference_source(cfg, source)))
    if wants_critic(cfg):
        models.append(("critic", critic, critic_source(cfg)))
    if wants_reward_model(cfg):
        models.append(("reward_model", cfg.reward_model, reward_model_source(cfg)))
    methods: dict[str, Method] = {}
    for key, role, model_source in models:
        config = load_config(model_source)
        tensor, sequence = tensor_parallel_size(role), sequence_parallel_size(role)
        check_sizes(config, tensor, f"{key}.megatron.tensor_model_parallel_size")
        check_stages(config, stage_options(key, role))
        check_experts(config, expert_parallel_size(role), f"{key}.megatron.expert_model_parallel_size", tensor)
        if sequence > 1:
            name = "megatron.context_parallel_size" if uses_megatron(role) else "ulysses_sequence_parallel_size"
            choice = choose_method(config, sequence, f"{key}.{name}", tensor)
            methods[key] = choice.method
            notices.append(choice.notice)
    if wants_exact_kl(cfg) and len({methods.get(key) for key in COMPARED}) > 1:
        problem = "the exact KL needs policy and reference to share sequences alike, and their heads do not allow it"
        name = "actor_rollout_ref.actor.kl_loss_type"
        raise UserError(problem, key=name, value=policy.actor.kl_loss_type, hint=f"{name}=low_var_kl")
    return notices


def _check_engine(cfg: TrainConfig, source: ModelSource) -> None:
    """Raise where several ranks cannot share an engine of this model; servers check its sizes themselves."""
    size = engine_size(cfg)
    if size > 1 and cfg.actor_rollout_ref.rollout.name == "builtin":
        tensor_slices.check_sizes(load_config(source), size, f"{ROLLOUT}.tensor_model_parallel_size")


def engine_notices(cfg: TrainConfig) -> list[str]:
    """How ranks share rollout engines."""
    size, rollout = engine_size(cfg), cfg.actor_rollout_ref.rollout
    server = ", and runs as a server" if rollout.name == "vllm" and rollout.mode != "async" else ""
    return [f"each {rollout.name} engine uses {size} devices{server}"] if size > 1 else []


def stage_options(section: str, role: Any) -> StageOptions:
    """How the role's model is cut into pipeline stages."""
    size = pipeline_parallel_size(role)
    if size == 1:
        return ONE_STAGE
    first, last, each = layers_per_stage(role)
    counts_embedding, counts_head = counted_parts(role)
    return StageOptions(
        size=size,
        virtual=virtual_pipeline_size(role),
        schedule=role.megatron.pipeline_schedule,
        num_first=first,
        num_last=last,
        num_each=each,
        counts_embedding=counts_embedding,
        counts_head=counts_head,
        key=f"{section}.megatron",
    )
