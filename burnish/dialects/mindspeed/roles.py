"""Where the settings of one trained model go: the policy's or the critic's part of our tree."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.dialects.mindspeed.reading import Reading, Section

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Role:
    """`key` is the section of its update, `model` that of its model; `parallel` all that are laid out like it."""

    section: Section
    key: str
    model: str
    fsdp: str
    parallel: tuple[str, ...]


def trained(reading: Reading) -> list[Role]:
    """The policy, and the critic where the stage has one."""
    alike = (ACTOR, REF) if reads_reference(reading) else (ACTOR,)
    roles = [Role(reading.actor, ACTOR, MODEL, f"{ACTOR}.fsdp_config", alike)]
    if reading.stage.critic:
        roles.append(Role(reading.critic, "critic", "critic.model", "critic.model.fsdp_config", ("critic",)))
    return roles


def reads_reference(reading: Reading) -> bool:
    """Does anything need the reference's log-probs?"""
    if reading.stage.kl == "reward":
        return bool(reading.rl.value("use_kl_in_reward"))
    return reading.stage.kl == "loss" and bool(reading.rl.value("init_kl_coef"))


def prompts_per_step(reading: Reading) -> int | None:
    """Prompts whose responses are trained on in one iteration."""
    if reading.stage.filters and reading.rl.value("filter_groups_enable"):
        return reading.rl.value("filter_groups_train_batch_size")
    return reading.actor.value("global_batch_size")


def prompts_per_update(reading: Reading) -> int | None:
    """min(mini_batch_size, prompts of the step)."""
    prompts, mini = prompts_per_step(reading), reading.rl.value("mini_batch_size")
    return min(prompts, mini) if isinstance(prompts, int) and isinstance(mini, int) else None


def uses_megatron(reading: Reading) -> bool:
    """Is any model spread over several ranks?"""
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
    return any(
        (role.section.value(name) or 1) > 1 for role in trained(reading) for name in (*sizes, "context_parallel_size")
    )
