"""Scale batch sizes down by one factor and shorten sequences, so that sizes that divided each other still do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from burnish.config.names import GROUPED_ADVANTAGES
from burnish.config.ranks import data_parallel_size, sft_data_size, sft_micro_batch_size
from burnish.config.root import TrainConfig
from burnish.config.rules import has_critic
from burnish.loop.build_agents import MULTI_TURN
from burnish.rehearsal.conversations import has_conversations
from burnish.rehearsal.plan import Plan

NUM_PROMPTS = 4  # per step, roughly
NUM_SAMPLES = 2  # per prompt, at most
RESPONSE_LENGTH = 12  # tokens, at most
PROMPT_LENGTH = 1024  # tokens, at most
CONVERSATION_LENGTH = 1024  # tokens of all turns and of what tools answer, at most
NUM_TURNS = 3  # of the model, at most
ANSWER_LENGTH = 128  # characters of a tool's answer, at most
NUM_EPOCHS = 2  # of ppo_epochs, at most

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
# Micro-batch sizes of forward passes, which need not divide a batch.
_FORWARD_SIZES = (
    f"{ROLLOUT}.log_prob_micro_batch_size",
    f"{REF}.log_prob_micro_batch_size",
    "critic.forward_micro_batch_size",
    "reward_model.micro_batch_size",
)
_TOKEN_BUDGETS = (
    f"{ACTOR}.ppo_max_token_len_per_gpu",
    f"{ROLLOUT}.log_prob_max_token_len_per_gpu",
    f"{REF}.log_prob_max_token_len_per_gpu",
    "critic.ppo_max_token_len_per_gpu",
    "critic.forward_max_token_len_per_gpu",
    "reward_model.forward_max_token_len_per_gpu",
)


def scale(plan: Plan, steps: int, *, real_tokenizer: bool) -> None:
    """Scale the job down; every change adds one line."""
    SCALES[plan.job](plan, steps, real_tokenizer)


def shrink(plan: Plan, key: str, size: int, why: str = "") -> None:
    """Set a key to a smaller number, with a line if that changes it."""
    before = plan.value(key)
    plan.put(key, size)
    if before != size:
        plan.scaled.append(f"{plan.user_name(key)}: {before} -> {size}{f' ({why})' if why else ''}")


def scale_factor(batch: int, mini_batch: int) -> int:
    """The divisor of prompt counts: a common divisor of both that leaves a few prompts, if there is one."""
    common = math.gcd(batch, mini_batch)
    fitting = [n for n in range(common, 0, -1) if common % n == 0 and 2 <= batch // n <= 2 * NUM_PROMPTS]
    return fitting[0] if fitting else max(1, -(-batch // NUM_PROMPTS))


def micro_batch_size(batch: int, real_micro_batch: int | None, real_batch: int) -> int:
    """A divisor of `batch` that gives about as many micro-batches as `real_micro_batch` gives of `real_batch`."""
    count = max(1, real_batch // real_micro_batch) if real_micro_batch else 1
    return next(size for size in range(1, batch + 1) if batch % size == 0 and batch // size <= count)


def scale_training(plan: Plan, steps: int, real_tokenizer: bool) -> None:
    cfg = plan.cfg
    mini_batch, n = cfg.actor_rollout_ref.actor.ppo_mini_batch_size, cfg.actor_rollout_ref.rollout.n
    batch = cfg.data.train_batch_size or mini_batch  # 0 with streamed prompts, where a step takes a mini-batch
    factor = scale_factor(batch, mini_batch)
    prompts = max(1, batch // factor)
    samples = min(n, NUM_SAMPLES)
    divided = f"divided by {factor}"
    shrink(plan, "data.train_batch_size", prompts, divided if cfg.data.train_batch_size else "one mini-batch")
    why = "at least a group of two" if cfg.algorithm.adv_estimator in GROUPED_ADVANTAGES else "responses per prompt"
    shrink(plan, f"{ROLLOUT}.n", samples, why)
    for key, role in trained_roles(cfg):
        _scale_update(plan, key, role, factor, prompts, samples)
    absent = () if has_critic(cfg) else ("critic.",)
    for name in [name for name in plan.settings if name.startswith(absent) and name != "critic.enable"]:
        plan.drop(name)
    for key in [key for key in _FORWARD_SIZES if not key.startswith(absent)]:
        plan.drop(key)
        size = plan.value(f"{key}_per_gpu")
        if size is not None:
            shrink(plan, f"{key}_per_gpu", max(1, min(size, prompts * samples)))
    if cfg.data.gen_batch_size is not None:
        shrink(plan, "data.gen_batch_size", max(prompts, cfg.data.gen_batch_size // factor), divided)
    _lengths(plan, real_tokenizer)
    _schedule(plan, steps)


def trained_roles(cfg: TrainConfig) -> list[tuple[str, Any]]:
    """(section, its config) of every trained role."""
    actor = (ACTOR, cfg.actor_rollout_ref.actor)
    return [actor, ("critic", cfg.critic)] if has_critic(cfg) else [actor]


def _scale_update(plan: Plan, key: str, role: Any, factor: int, prompts: int, samples: int) -> None:
    """Divide a role's mini-batch by the factor, and keep the number of micro-batches roughly."""
    small = min(prompts, max(1, role.ppo_mini_batch_size // factor))
    shrink(plan, f"{key}.ppo_mini_batch_size", small, f"divided by {factor}")
    per_rank, n = role.ppo_micro_batch_size_per_gpu, plan.cfg.actor_rollout_ref.rollout.n
    plan.drop(f"{key}.ppo_micro_batch_size")
    if per_rank is not None:
        real_batch = role.ppo_mini_batch_size * n // data_parallel_size(plan.cfg, role)
        micro_batch = micro_batch_size(small * samples, per_rank, real_batch)
        shrink(plan, f"{key}.ppo_micro_batch_size_per_gpu", micro_batch, f"of {small * samples} responses")
    if role.ppo_epochs > NUM_EPOCHS:
        shrink(plan, f"{key}.ppo_epochs", NUM_EPOCHS)


def _lengths(plan: Plan, real_tokenizer: bool) -> None:
    """Shorten responses; prompts keep their length up to a limit."""
    data = plan.cfg.data
    response = _response_length(plan, real_tokenizer)
    shrink(plan, "data.max_response_length", response, "tokens")
    prompt = min(data.max_prompt_length, PROMPT_LENGTH) if real_tokenizer else PROMPT_LENGTH
    if prompt != data.max_prompt_length:
        plan.put("data.max_prompt_length", prompt)
        plan.put("data.truncation", "left")
        plan.put("data.filter_overlong_prompts", False)
        why = "tokens" if real_tokenizer else "tokens of one byte each"
        plan.scaled.append(f"{plan.user_name('data.max_prompt_length')}: {data.max_prompt_length} -> {prompt} ({why})")
    for name in ("prompt_length", "response_length", "max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        plan.drop(f"{ROLLOUT}.{name}")
    if plan.cfg.actor_rollout_ref.rollout.min_tokens > response:
        shrink(plan, f"{ROLLOUT}.min_tokens", 0)
    total, before = prompt + response, data.max_prompt_length + data.max_response_length
    for key in _TOKEN_BUDGETS:
        if key in plan.settings:
            shrink(plan, key, max(total, plan.value(key) * total // before), "tokens, like prompt and response")
    _overlong(plan, response)


def _response_length(plan: Plan, real_tokenizer: bool) -> int:
    """Of a response, or of all turns and what tools answer; turns are shortened and few."""
    length = plan.cfg.data.max_response_length
    if not has_conversations(plan):
        return min(length, RESPONSE_LENGTH)
    shrink(plan, f"{MULTI_TURN}.max_assistant_turns", _at_most(plan, f"{MULTI_TURN}.max_assistant_turns", NUM_TURNS))
    turn = _at_most(plan, f"{MULTI_TURN}.max_turn_length", RESPONSE_LENGTH)
    shrink(plan, f"{MULTI_TURN}.max_turn_length", turn, "tokens")
    answer = _at_most(plan, f"{MULTI_TURN}.max_tool_response_length", ANSWER_LENGTH)
    shrink(plan, f"{MULTI_TURN}.max_tool_response_length", answer, "characters")
    return min(length, CONVERSATION_LENGTH) if real_tokenizer else CONVERSATION_LENGTH


def _at_most(plan: Plan, key: str, limit: int) -> int:
    value = plan.value(key)
    return limit if value is None else min(value, limit)


def _overlong(plan: Plan, response: int) -> None:
    """Keep the share of the response that DAPO's overlong buffer covers."""
    buffer, full = plan.cfg.reward_model.overlong_buffer, plan.cfg.data.max_response_length
    kwargs = plan.cfg.reward_model.reward_kwargs
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
    trainer, rollout = plan.cfg.trainer, plan.cfg.actor_rollout_ref.rollout
    plan.put("trainer.total_training_steps", steps)
    if trainer.critic_warmup >= steps:
        shrink(plan, "trainer.critic_warmup", 0, "so that the policy is updated too")
    validates = bool(plan.cfg.data.val_files) and (trainer.val_before_train or trainer.test_freq > 0)
    plan.put("trainer.val_before_train", validates)
    plan.put("trainer.profile_steps", None)
    plan.put("trainer.test_freq", -1)
    plan.put("trainer.save_freq", steps if trainer.save_freq > 0 else -1)
    if rollout.val_kwargs.n > NUM_SAMPLES:
        shrink(plan, f"{ROLLOUT}.val_kwargs.n", NUM_SAMPLES)
    plan.drop("data.val_batch_size")


def scale_sft(plan: Plan, steps: int, real_tokenizer: bool) -> None:
    data = plan.cfg.data
    batch = min(data.train_batch_size, NUM_PROMPTS)
    shrink(plan, "data.train_batch_size", batch, f"divided by {data.train_batch_size // batch}")
    micro_batch, rows = sft_micro_batch_size(plan.cfg), max(1, data.train_batch_size // sft_data_size(plan.cfg))
    plan.drop("data.micro_batch_size")
    size = micro_batch_size(batch, micro_batch, rows)
    shrink(plan, "data.micro_batch_size_per_gpu", size)
    if not real_tokenizer or data.max_length > PROMPT_LENGTH:
        shrink(plan, "data.max_length", PROMPT_LENGTH, "tokens")
        plan.put("data.truncation", "right")
    plan.put("data.max_token_len_per_gpu", max(PROMPT_LENGTH, min(data.max_token_len_per_gpu, 4 * PROMPT_LENGTH)))
    plan.put("trainer.total_training_steps", steps)
    plan.put("trainer.save_freq", -1)
    plan.put("trainer.test_freq", -1)


def scale_generation(plan: Plan, steps: int, real_tokenizer: bool) -> None:
    cfg = plan.cfg
    shrink(plan, "data.n_samples", min(cfg.data.n_samples, NUM_SAMPLES))
    shrink(plan, "data.batch_size", min(cfg.data.batch_size, NUM_PROMPTS))
    shrink(plan, "rollout.response_length", min(cfg.rollout.response_length, RESPONSE_LENGTH), "tokens")
    if not real_tokenizer or cfg.rollout.prompt_length > PROMPT_LENGTH:
        shrink(plan, "rollout.prompt_length", PROMPT_LENGTH, "tokens")
        plan.put("data.truncation", "left")
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        plan.drop(f"rollout.{name}")


def scale_evaluation(plan: Plan, steps: int, real_tokenizer: bool) -> None:
    """Nothing to scale: the files are already small."""


SCALES: dict[str, Callable[[Plan, int, bool], None]] = {
    "train": scale_training,
    "sft": scale_sft,
    "generate": scale_generation,
    "eval": scale_evaluation,
}
