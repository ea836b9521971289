"""Translate older forms of keys to the current ones, where an interpolation cannot express it."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.megatron import apply_megatron
from burnish.config.ranks import data_parallel_size
from burnish.config.reward_rules import apply_overlong_kwargs
from burnish.config.root import TrainConfig

KEEP = ("max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep")


def derive(cfg: TrainConfig) -> list[str]:
    """Apply all translations in place and return a notice for each."""
    return [
        *_checkpoints_to_keep(cfg),
        *_micro_batches(cfg),
        *_history(cfg),
        *_raw_chat(cfg),
        *apply_overlong_kwargs(cfg),
        *apply_megatron(cfg),
    ]


def _checkpoints_to_keep(cfg: TrainConfig) -> Iterator[str]:
    unset = [name for name in KEEP if getattr(cfg.trainer, name) is None]
    if cfg.trainer.remove_previous_ckpt_in_save and unset:
        for name in unset:
            setattr(cfg.trainer, name, 1)
        yield _notice("trainer.remove_previous_ckpt_in_save", *(f"trainer.{name}=1" for name in unset))


def _micro_batches(cfg: TrainConfig) -> Iterator[str]:
    """Convert sizes over all ranks to per-rank sizes, so that other packages read one key."""
    actor, critic = cfg.actor_rollout_ref.actor, cfg.critic
    places = (
        (actor, "actor_rollout_ref.actor.ppo_micro_batch_size", actor.ppo_micro_batch_size),
        (critic, "critic.ppo_micro_batch_size", critic.ppo_micro_batch_size),
        (critic, "critic.forward_micro_batch_size", critic.forward_micro_batch_size),
        (cfg.reward_model, "reward_model.micro_batch_size", cfg.reward_model.micro_batch_size),
        *(
            (role, f"actor_rollout_ref.{name}.log_prob_micro_batch_size", role.log_prob_micro_batch_size)
            for name, role in (("rollout", cfg.actor_rollout_ref.rollout), ("ref", cfg.actor_rollout_ref.ref))
        ),
    )
    if critic.forward_micro_batch_size == critic.ppo_micro_batch_size and critic.forward_micro_batch_size_per_gpu:
        critic.forward_micro_batch_size = None  # it only follows ppo_micro_batch_size, and the per-rank size is set
    for role, key, size in places:
        name = key.rpartition(".")[2]
        if size is not None and getattr(role, f"{name}_per_gpu") is None:
            setattr(role, name, None)  # so that the printed config has it once
            # rollout.log_prob_* are settings of the policy.
            share = max(1, size // data_parallel_size(cfg, actor if role is cfg.actor_rollout_ref.rollout else role))
            setattr(role, f"{name}_per_gpu", share)
            yield _notice(key, f"{key}_per_gpu={share}")


def _history(cfg: TrainConfig) -> Iterator[str]:
    turns = cfg.actor_rollout_ref.rollout.multi_turn
    if turns.use_inference_chat_template and turns.history == "append":
        turns.history = "faithful"
        key = "actor_rollout_ref.rollout.multi_turn"
        yield f"{key}.use_inference_chat_template is interpreted as {key}.history=faithful."


def _raw_chat(cfg: TrainConfig) -> Iterator[str]:
    """A reward model with its own chat template needs the messages; so do agents and faithful histories."""
    if cfg.actor_rollout_ref.rollout.multi_turn.history == "faithful" and not cfg.data.return_raw_chat:
        cfg.data.return_raw_chat = True
        yield "data.return_raw_chat=true: required by actor_rollout_ref.rollout.multi_turn.history=faithful."
    model = cfg.reward_model.model
    if cfg.reward_model.enable and model.input_tokenizer and not cfg.data.return_raw_chat:
        cfg.data.return_raw_chat = True
        yield "data.return_raw_chat=true: required by reward_model.model.input_tokenizer."
    turns, agent = cfg.actor_rollout_ref.rollout.multi_turn, cfg.actor_rollout_ref.rollout.agent
    keys = {
        "multi_turn.interaction_config_path": turns.interaction_config_path,
        "multi_turn.completion_callback": turns.completion_callback,
        "agent.agent_loop_config_path": agent.agent_loop_config_path,
        "agent.default_agent_loop": agent.default_agent_loop,
        "agent.environment": agent.environment,
    }
    needed_by = next((key for key, value in keys.items() if value), None)
    if needed_by is not None and not cfg.data.return_raw_chat:
        cfg.data.return_raw_chat = True
        yield f"data.return_raw_chat=true: required by actor_rollout_ref.rollout.{needed_by}."


def _notice(key: str, *settings: str) -> str:
    return f"{key} (an older verl name) is interpreted as {' and '.join(settings)}."
