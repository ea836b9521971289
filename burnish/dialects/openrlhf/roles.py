"""The models of a command: which exist, which are trained, and their sections in Burnish's config."""

from __future__ import annotations

from burnish.dialects.openrlhf.estimators import get_estimator
from burnish.dialects.openrlhf.translator import Translator

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"


def has_critic(t: Translator) -> bool:
    return get_estimator(t).critic


def has_reference(t: Translator) -> bool:
    """OpenRLHF loads a reference model only if the KL coefficient is positive."""
    return t.get("init_kl_coef") > 0


def has_custom_reward(t: Translator) -> bool:
    """Whether a function, a server or an agent computes scores; OpenRLHF then loads no reward model."""
    return bool(t.get("remote_rm_url") or t.get("agent_func_path"))


def has_reward_model(t: Translator) -> bool:
    return bool(t.get("reward_pretrain")) and not has_custom_reward(t)


def trained_models(t: Translator) -> tuple[str, ...]:
    """The model section of each trained model."""
    return (MODEL, "critic.model") if has_critic(t) else (MODEL,)


def trained_sections(t: Translator) -> tuple[str, ...]:
    """The fsdp_config section of each trained model."""
    policy = f"{ACTOR}.fsdp_config"
    return (policy, "critic.model.fsdp_config") if has_critic(t) else (policy,)


def frozen_sections(t: Translator) -> tuple[str, ...]:
    """The fsdp_config section of each frozen model."""
    reference = (f"{REF}.fsdp_config",) if has_reference(t) else ()
    return (*reference, "reward_model.model.fsdp_config") if has_reward_model(t) else reference


def num_data_parallel_ranks(t: Translator) -> int:
    """Data-parallel size of the policy: GPUs / ring attention size / tensor-parallel size."""
    gpus = t.get("actor_num_nodes") * t.get("actor_num_gpus_per_node")
    return max(1, gpus // max(1, t.get("ring_attn_size")) // max(1, t.get("ds_tensor_parallel_size")))
