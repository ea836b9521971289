"""Roles: the config sections of the policy and the critic, and batch sizes derived from several keys."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from burnish.dialects.mindspeed.translator import Section, Setting, Translator

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Role:
    """`key` is its section of Burnish's config, `model` that of its model; `parallel` all sections with its layout."""

    section: Section
    key: str
    model: str
    fsdp: str
    parallel: tuple[str, ...]


def trained_roles(t: Translator) -> list[Role]:
    """The policy, and the critic if the stage has one."""
    policy_layout = (ACTOR, REF) if uses_reference(t) else (ACTOR,)
    roles = [Role(t.actor, ACTOR, MODEL, f"{ACTOR}.fsdp_config", policy_layout)]
    if t.stage.critic:
        roles.append(Role(t.critic, "critic", "critic.model", "critic.model.fsdp_config", ("critic",)))
    return roles


def initial_weights(t: Translator) -> Setting:
    """Where the policy's first weights are: `load` with finetune, else the folder of the tokenizer."""
    load, path = t.actor["load"], t.actor["tokenizer_name_or_path"]
    from_load = t.actor.value("finetune") and load.value is not None and not same_folder(load.value, path.value)
    return load if from_load else path


def same_folder(one: Any, other: Any) -> bool:
    """Whether two paths are written alike, but for a trailing slash or a leading ./"""
    return one is not None and other is not None and os.path.normpath(str(one)) == os.path.normpath(str(other))


def uses_reference(t: Translator) -> bool:
    """Whether the run needs log-probs of the reference model."""
    if t.stage.kl == "reward":
        return bool(t.rl.value("use_kl_in_reward"))
    return t.stage.kl == "loss" and bool(t.rl.value("init_kl_coef"))


def prompts_per_step(t: Translator) -> int | None:
    """Number of prompts per iteration whose responses are trained on."""
    if t.stage.filters and t.rl.value("filter_groups_enable"):
        return t.rl.value("filter_groups_train_batch_size")
    return t.actor.value("global_batch_size")


def prompts_per_update(t: Translator) -> int | None:
    """min(mini_batch_size, prompts per step)."""
    prompts, mini = prompts_per_step(t), t.rl.value("mini_batch_size")
    return min(prompts, mini) if isinstance(prompts, int) and isinstance(mini, int) else None


def is_sharded(t: Translator) -> bool:
    """Whether any parallel size of a trained model exceeds 1."""
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
    return any(
        (role.section.value(name) or 1) > 1 for role in trained_roles(t) for name in (*sizes, "context_parallel_size")
    )
