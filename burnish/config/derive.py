"""Values that follow from others where an interpolation cannot say it: the older ways to set a key."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.megatron import read_megatron
from burnish.config.ranks import data_parallel_size
from burnish.config.reward_rules import read_overlong
from burnish.config.root import TrainConfig

KEEP = ("max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep")


def derive(cfg: TrainConfig) -> list[str]:
    """Fill such values in; the lines say what was filled in and why."""
    return [*_checkpoints_to_keep(cfg), *_micro_batches(cfg), *_raw_chat(cfg), *read_overlong(cfg), *read_megatron(cfg)]


def _checkpoints_to_keep(cfg: TrainConfig) -> Iterator[str]:
    unset = [name for name in KEEP if getattr(cfg.trainer, name) is None]
    if cfg.trainer.remove_previous_ckpt_in_save and unset:
        for name in unset:
            setattr(cfg.trainer, name, 1)
        yield _line("trainer.remove_previous_ckpt_in_save", *(f"trainer.{name}=1" for name in unset))


def _micro_batches(cfg: TrainConfig) -> Iterator[str]:
    """A size over all ranks becomes the size on one rank, so that the rooms read one key."""
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
        critic.forward_micro_batch_size = None  # it only followed, and the size on one rank is set
    for role, key, size in places:
        name = key.rpartition(".")[2]
        if size is not None and getattr(role, f"{name}_per_gpu") is None:
            setattr(role, name, None)  # the tree that is printed says it once
            # The engine's section says how the policy reads.
            share = max(1, size // data_parallel_size(cfg, actor if role is cfg.actor_rollout_ref.rollout else role))
            setattr(role, f"{name}_per_gpu", share)
            yield _line(key, f"{key}_per_gpu={share}")


def _raw_chat(cfg: TrainConfig) -> Iterator[str]:
    """A reward model with a template of its own reads the messages."""
    model = cfg.reward_model.model
    if cfg.reward_model.enable and model.input_tokenizer and not cfg.data.return_raw_chat:
        cfg.data.return_raw_chat = True
        yield "data.return_raw_chat=true: the reward model reads the messages (reward_model.model.input_tokenizer)."


def _line(key: str, *read_as: str) -> str:
    return f"{key} (an older verl name) is read as {' and '.join(read_as)}."
