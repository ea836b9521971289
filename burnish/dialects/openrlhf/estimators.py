"""OpenRLHF's advantage estimators, as ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from burnish.dialects.openrlhf.writing import Writing

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"


@dataclass(frozen=True)
class Estimator:
    """`settings` are the keys that it needs beside its name."""

    ours: str
    critic: bool = False
    grouped: bool = False  # compares the responses of a prompt: n > 1, and gamma is 1
    whitened: bool = False  # its advantages are scaled over the batch
    discounts: bool = False  # reads gamma
    settings: dict[str, Any] = field(default_factory=dict)


ESTIMATORS = {
    "gae": Estimator("gae", critic=True, whitened=True, discounts=True),
    "reinforce": Estimator("reinforce_plus_plus", whitened=True, discounts=True),
    "reinforce_baseline": Estimator("reinforce_plus_plus_baseline", grouped=True, whitened=True),
    "group_norm": Estimator("grpo", grouped=True, settings={"algorithm.group_std_epsilon": 1e-9}),
    "rloo": Estimator("rloo", grouped=True),
    "dr_grpo": Estimator("grpo", grouped=True, settings={"algorithm.norm_adv_by_std_in_grpo": False}),
}


def estimator(w: Writing) -> Estimator:
    return ESTIMATORS[w.get("advantage_estimator")]


def has_critic(w: Writing) -> bool:
    return estimator(w).critic


def has_reference(w: Writing) -> bool:
    """Theirs builds a reference only where the KL counts."""
    return w.get("init_kl_coef") > 0


def is_remote(w: Writing) -> bool:
    """Do scores come from a function, a server or an agent? Then no reward model is built."""
    return bool(w.get("remote_rm_url") or w.get("agent_func_path"))


def has_reward_model(w: Writing) -> bool:
    return bool(w.get("reward_pretrain")) and not is_remote(w)


def trained_models(w: Writing) -> tuple[str, ...]:
    return (MODEL, "critic.model") if has_critic(w) else (MODEL,)


def trained_sections(w: Writing) -> tuple[str, ...]:
    """The fsdp_config of each model that is taught."""
    policy = f"{ACTOR}.fsdp_config"
    return (policy, "critic.model.fsdp_config") if has_critic(w) else (policy,)


def frozen_sections(w: Writing) -> tuple[str, ...]:
    """The fsdp_config of each model that is only read."""
    reference = (f"{REF}.fsdp_config",) if has_reference(w) else ()
    return (*reference, "reward_model.model.fsdp_config") if has_reward_model(w) else reference


def ranks(w: Writing) -> int:
    """Data-parallel ranks of the policy: a ring or a tensor-parallel group is one."""
    gpus = w.get("actor_num_nodes") * w.get("actor_num_gpus_per_node")
    return max(1, gpus // max(1, w.get("ring_attn_size")) // max(1, w.get("ds_tensor_parallel_size")))
