"""Batch numbers made small by one factor, and lengths cut; what divided before divides after."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from burnish.config.names import GROUPED_ADVANTAGES
from burnish.config.ranks import data_parallel_size
from burnish.config.root import TrainConfig
from burnish.config.rules import has_critic
from burnish.rehearsal.plan import Plan

PROMPTS = 4  # of a step, about
SAMPLES = 2  # of a prompt
RESPONSE = 12  # tokens
PROMPT = 1024  # tokens, at most
EPOCHS = 2

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
# Responses per forward pass that nothing has to divide.
_READING = (
    f"{ROLLOUT}.log_prob_micro_batch_size",
    f"{REF}.log_prob_micro_batch_size",
    "critic.forward_micro_batch_size",
    "reward_model.micro_batch_size",
)
_BUDGETS = (
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{REF}.log_prob_max_token_len_per_gpu",
    "critic.ppo_max_token_len_per_gpu",
    "critic.forward_max_token_len_per_gpu",
    "reward_model.forward_max_token_len_per_gpu",
)


def scale(plan: Plan, steps: int, *, own_tokenizer: bool) -> None:
    """Make the numbers of the job small, one line for each that changed."""
    SCALES[plan.job](plan, steps, own_tokenizer)


def shrink(plan: Plan, key: str, size: int, why: str = "") -> None:
    """Set a key to a smaller number and say so."""
    before = plan.value(key)
    plan.put(key, size)
    if before != size:
        plan.scaled.append(f"{plan.their_word(key)}: {before} -> {size}{f' ({why})' if why else ''}")


def factor_of(batch: int, mini: int) -> int:
    """By how much prompts are divided: a common divisor that leaves a few, else what leaves a few."""
    common = math.gcd(batch, mini)
    fitting = [one for one in range(common, 0, -1) if common % one == 0 and 2 <= batch // one <= 2 * PROMPTS]
    return fitting[0] if fitting else max(1, -(-batch // PROMPTS))


def parts(whole: int, micro: int | None, share: int) -> int:
    """A divisor of `whole` that cuts it into about as many parts as `micro` cuts `share`."""
    wanted = max(1, share // micro) if micro else 1
    return next(size for size in range(1, whole + 1) if whole % size == 0 and whole // size <= wanted)


def scale_training(plan: Plan, steps: int, own_tokenizer: bool) -> None:
    cfg = plan.asked
    mini, n = cfg.actor_rollout_ref.actor.ppo_mini_batch_size, cfg.actor_rollout_ref.rollout.n
    batch = cfg.data.train_batch_size or mini  # where prompts are streamed, a mini-batch is what a step takes
    factor = factor_of(batch, mini)
    prompts = max(1, batch // factor)
    samples = min(n, SAMPLES)
    divided = f"divided by {factor}"
    shrink(plan, "data.train_batch_size", prompts, divided if cfg.data.train_batch_size else "as in a mini-batch")
    why = "a group stays a group" if cfg.algorithm.adv_estimator in GROUPED_ADVANTAGES else "responses per prompt"
    shrink(plan, f"{ROLLOUT}.n", samples, why)
    for key, role in trained_roles(cfg):
        _scale_update(plan, key, role, factor, prompts, samples)
    absent = () if has_critic(cfg) else ("critic.",)
    for name in [name for name in plan.settings if name.startswith(absent) and name != "critic.enable"]:
        plan.drop(name)
    for key in [key for key in _READING if not key.startswith(absent)]:
        plan.drop(key)
        size = plan.value(f"{key}_per_gpu")
        if size is not None:
            shrink(plan, f"{key}_per_gpu", max(1, min(size, prompts * samples)))
    if cfg.data.gen_batch_size is not None:
        shrink(plan, "data.gen_batch_size", max(prompts, cfg.data.gen_batch_size // factor), divided)
    _lengths(plan, own_tokenizer)
    _schedule(plan, steps)


def trained_roles(cfg: TrainConfig) -> list[tuple[str, Any]]:
    """(section, its config) of every role that is taught."""
    actor = (ACTOR, cfg.actor_rollout_ref.actor)
    return [actor, ("critic", cfg.critic)] if has_critic(cfg) else [actor]


def _scale_update(plan: Plan, key: str, role: Any, factor: int, prompts: int, samples: int) -> None:
    """A role's mini-batch by the factor, its micro-batches about as many as before."""
    small = min(prompts, max(1, role.ppo_mini_batch_size // factor))
    shrink(plan, f"{key}.ppo_mini_batch_size", small, f"divided by {factor}")
    per_rank, n = role.ppo_micro_batch_size_per_gpu, plan.asked.actor_rollout_ref.rollout.n
    plan.drop(f"{key}.ppo_micro_batch_size")
    if per_rank is not None:
        cut = parts(small * samples, per_rank, role.ppo_mini_batch_size * n // data_parallel_size(plan.asked, role))
        shrink(plan, f"{key}.ppo_micro_batch_size_per_gpu", cut, f"of {small * samples} responses")
    if role.ppo_epochs > EPOCHS:
        shrink(plan, f"{key}.ppo_epochs", EPOCHS)


def _lengths(plan: Plan, own_tokenizer: bool) -> None:
    """Short responses; prompts as long as they are, up to a bound."""
    data = plan.asked.data
    response = min(data.max_response_length, RESPONSE)
    shrink(plan, "data.max_response_length", response, "tokens")
    prompt = min(data.max_prompt_length, PROMPT) if own_tokenizer else PROMPT
    if prompt != data.max_prompt_length:
        plan.put("data.max_prompt_length", prompt)
        plan.put("data.truncation", "left")
        plan.put("data.filter_overlong_prompts", False)
        why = "tokens" if own_tokenizer else "tokens, which are bytes here"
        plan.scaled.append(f"{plan.their_word('data.max_prompt_length')}: {data.max_prompt_length} -> {prompt} ({why})")
    for name in ("prompt_length", "response_length", "max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        plan.drop(f"{ROLLOUT}.{name}")
    if plan.asked.actor_rollout_ref.rollout.min_tokens > response:
        shrink(plan, f"{ROLLOUT}.min_tokens", 0)
    longest, before = prompt + response, data.max_prompt_length + data.max_response_length
    for key in _BUDGETS:
        if key in plan.settings:
            shrink(plan, key, max(longest, plan.value(key) * longest // before), "tokens, as prompt and response are")
    _overlong(plan, response)


def _overlong(plan: Plan, response: int) -> None:
    """DAPO's stretch of the response that costs, as long a share of it as before."""
    buffer, full = plan.asked.reward_model.overlong_buffer, plan.asked.data.max_response_length
    kwargs = plan.asked.reward_model.reward_kwargs
    plan.drop("reward_model.reward_kwargs.overlong_buffer_cfg")
    plan.drop("reward_model.reward_kwargs.max_resp_len")
    plan.put("reward_model.reward_kwargs", dict(kwargs)) if kwargs else plan.drop("reward_model.reward_kwargs")
    if not buffer.enable:
        return
    for name in ("enable", "penalty_factor", "log"):
        plan.put(f"reward_model.overlong_buffer.{name}", getattr(buffer, name))
    limit = buffer.max_resp_len or full
    shrink(plan, "reward_model.overlong_buffer.len", max(1, buffer.len * response // max(1, limit)), "the same share")
    plan.put("reward_model.overlong_buffer.max_resp_len", response)


def _schedule(plan: Plan, steps: int) -> None:
    trainer, rollout = plan.asked.trainer, plan.asked.actor_rollout_ref.rollout
    plan.put("trainer.total_training_steps", steps)
    if trainer.critic_warmup >= steps:
        shrink(plan, "trainer.critic_warmup", 0, "so that the policy is taught too")
    validates = bool(plan.asked.data.val_files) and (trainer.val_before_train or trainer.test_freq > 0)
    plan.put("trainer.val_before_train", validates)
    plan.put("trainer.test_freq", -1)
    plan.put("trainer.save_freq", steps if trainer.save_freq > 0 else -1)
    if rollout.val_kwargs.n > SAMPLES:
        shrink(plan, f"{ROLLOUT}.val_kwargs.n", SAMPLES)
    plan.drop("data.val_batch_size")


def scale_imitation(plan: Plan, steps: int, own_tokenizer: bool) -> None:
    data = plan.asked.data
    ranks = plan.asked.trainer.nnodes * plan.asked.trainer.n_gpus_per_node
    batch = min(data.train_batch_size, PROMPTS)
    shrink(plan, "data.train_batch_size", batch, f"divided by {data.train_batch_size // batch}")
    over_all = data.micro_batch_size
    micro = data.micro_batch_size_per_gpu if over_all is None else max(1, over_all // ranks)
    plan.drop("data.micro_batch_size")
    shrink(plan, "data.micro_batch_size_per_gpu", parts(batch, micro, max(1, data.train_batch_size // ranks)))
    if not own_tokenizer or data.max_length > PROMPT:
        shrink(plan, "data.max_length", PROMPT, "tokens")
        plan.put("data.truncation", "right")
    plan.put("data.max_token_len_per_gpu", max(PROMPT, min(data.max_token_len_per_gpu, 4 * PROMPT)))
    plan.put("trainer.total_training_steps", steps)
    plan.put("trainer.save_freq", -1)
    plan.put("trainer.test_freq", -1)


def scale_generation(plan: Plan, steps: int, own_tokenizer: bool) -> None:
    cfg = plan.asked
    shrink(plan, "data.n_samples", min(cfg.data.n_samples, SAMPLES))
    shrink(plan, "data.batch_size", min(cfg.data.batch_size, PROMPTS))
    shrink(plan, "rollout.response_length", min(cfg.rollout.response_length, RESPONSE), "tokens")
    if not own_tokenizer or cfg.rollout.prompt_length > PROMPT:
        shrink(plan, "rollout.prompt_length", PROMPT, "tokens")
        plan.put("data.truncation", "left")
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        plan.drop(f"rollout.{name}")


def scale_evaluation(plan: Plan, steps: int, own_tokenizer: bool) -> None:
    """A few rows are all there is to scale."""


SCALES: dict[str, Callable[[Plan, int, bool], None]] = {
    "train": scale_training,
    "sft": scale_imitation,
    "generate": scale_generation,
    "eval": scale_evaluation,
}
