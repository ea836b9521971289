"""Batch sizes, epochs and steps. OpenRLHF counts samples in train_batch_size, Burnish counts prompts."""

from __future__ import annotations

from burnish.dialects.openrlhf.roles import (
    ACTOR,
    REF,
    ROLLOUT,
    has_critic,
    has_reference,
    has_reward_model,
    num_data_parallel_ranks,
)
from burnish.dialects.openrlhf.translator import KeyMapping, Translator

MAPPINGS = (
    KeyMapping("rollout_batch_size", "data.train_batch_size", "both count prompts"),
    KeyMapping("n_samples_per_prompt", f"{ROLLOUT}.n"),
    KeyMapping("num_episodes", "trainer.total_epochs"),
)
MANY_EPOCHS = 8  # larger values are usually meant for --num_episodes


def translate(t: Translator) -> None:
    t.set_all(MAPPINGS)
    _mini_batch(t)
    _micro_batches(t)
    _token_budgets(t)
    _epochs(t)
    if t.has("max_steps"):
        t.set("max_steps", "trainer.total_training_steps", why="counts iterations; v0.9.2 has no such flag")


def _mini_batch(t: Translator) -> None:
    samples, n, prompts = t.get("train_batch_size"), t.get("n_samples_per_prompt"), t.get("rollout_batch_size")
    if min(samples, n, prompts) < 1:
        name = min(("train_batch_size", "n_samples_per_prompt", "rollout_batch_size"), key=t.get)
        return t.refuse(name, "must be at least 1")
    formula = f"{samples} samples / {n} per prompt"
    if samples % n:
        why = f"{formula} is not a whole number of prompts: {_suggest_sizes(samples, n, prompts)}"
        return t.refuse("train_batch_size", why)
    mini = samples // n
    if prompts % mini:
        why = (
            f"{prompts} prompts x {n} samples is not a multiple of {samples} samples per update, and OpenRLHF drops the"
            f" rest: {_suggest_sizes(samples, n, prompts)}"
        )
        return t.refuse("train_batch_size", why)
    t.set("train_batch_size", f"{ACTOR}.ppo_mini_batch_size", mini, f"{formula} = {mini} prompts")
    keeps_order = t.get("use_dynamic_batch") or t.get("ring_attn_size") > 1 or t.get("ds_tensor_parallel_size") > 1
    if mini != prompts and not keeps_order:
        t.set_implicit(
            f"{ACTOR}.shuffle", True, "OpenRLHF shuffles samples before each epoch, unless batches are dynamic"
        )
    return None


def _suggest_sizes(samples: int, n: int, prompts: int) -> str:
    """The nearest valid sizes."""
    valid = [size * n for size in range(1, prompts + 1) if prompts % size == 0]
    below = [size for size in valid if size < samples][-1:]
    above = [size for size in valid if size > samples][:1]
    return f"use {' or '.join(map(str, below + above))}"


def _micro_batches(t: Translator) -> None:
    micro, forward = t.get("micro_train_batch_size"), t.get("micro_rollout_batch_size")
    if t.get("use_dynamic_batch"):
        for name in ("micro_train_batch_size", "micro_rollout_batch_size"):
            t.inert(name, f"{t.spelling('use_dynamic_batch')} splits by tokens")
        return
    samples, num_ranks = t.get("train_batch_size"), num_data_parallel_ranks(t)
    if micro < 1 or samples % (micro * num_ranks):
        why = f"{samples} samples / ({micro} x {num_ranks} ranks) is not a whole number of backward passes"
        t.refuse(
            "micro_train_batch_size", f"{why}: {t.spelling('train_batch_size')} {_round(samples, micro * num_ranks)} is"
        )
    else:
        roles = (ACTOR, "critic") if has_critic(t) else (ACTOR,)
        t.set("micro_train_batch_size", [f"{role}.ppo_micro_batch_size_per_gpu" for role in roles])
    keys = [f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"]
    keys += [f"{REF}.log_prob_micro_batch_size_per_gpu"] if has_reference(t) else []
    keys += ["critic.forward_micro_batch_size_per_gpu"] if has_critic(t) else []
    keys += ["reward_model.micro_batch_size_per_gpu"] if has_reward_model(t) else []
    passes = t.get("n_samples_per_prompt") * t.get("rollout_batch_size") // max(1, forward)
    if passes < num_ranks:
        t.refuse("micro_rollout_batch_size", f"too large: {passes} forward passes for {num_ranks} ranks")
    else:
        t.set("micro_rollout_batch_size", keys, why="forward passes of all roles" if len(keys) > 1 else "")


def _round(samples: int, step: int) -> int:
    return max(1, round(samples / max(1, step))) * max(1, step)


def _token_budgets(t: Translator) -> None:
    critic = has_critic(t)
    if not t.get("use_dynamic_batch"):
        for name in ("train_max_tokens_per_gpu", "rollout_max_tokens_per_gpu"):
            t.inert(name, f"micro-batches have a fixed number of samples without {t.spelling('use_dynamic_batch')}")
        t.handled.add("use_dynamic_batch")
        return
    t.set("use_dynamic_batch", f"{ACTOR}.use_dynamic_bsz")
    keys = (f"{ACTOR}.ppo_max_token_len_per_gpu", "critic.ppo_max_token_len_per_gpu")
    t.set("train_max_tokens_per_gpu", keys if critic else keys[:1])
    if t.get("rollout_max_tokens_per_gpu") is not None:
        keys = (f"{ROLLOUT}.log_prob_max_token_len_per_gpu", f"{REF}.log_prob_max_token_len_per_gpu")
        keys = keys if has_reference(t) else keys[:1]
        scores = critic or has_reward_model(t)
        t.set("rollout_max_tokens_per_gpu", (*keys, "critic.forward_max_token_len_per_gpu") if scores else keys)


def _epochs(t: Translator) -> None:
    epochs = t.get("max_epochs")
    why = f"epochs over the samples of an iteration; epochs over the data are {t.spelling('num_episodes')}"
    if epochs > MANY_EPOCHS:
        why = f"WARNING: {epochs} {why}. Did you mean {t.spelling('num_episodes')} {epochs}?"
    t.set("max_epochs", f"{ACTOR}.ppo_epochs", why=why if t.has("max_epochs") else "")
    frozen = t.get("freezing_actor_steps")
    why = f"the first {frozen} + 1 iterations train the critic only"
    t.set("freezing_actor_steps", "trainer.critic_warmup", max(0, frozen + 1), why if frozen >= 0 else "")
