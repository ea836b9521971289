"""Batches, passes and steps. Theirs counts samples where ours counts prompts."""

from __future__ import annotations

from burnish.dialects.openrlhf.estimators import (
    ACTOR,
    REF,
    ROLLOUT,
    has_critic,
    has_reference,
    has_reward_model,
    ranks,
)
from burnish.dialects.openrlhf.writing import Row, Writing

ROWS = (
    Row("rollout_batch_size", "data.train_batch_size", "both count prompts"),
    Row("n_samples_per_prompt", f"{ROLLOUT}.n"),
    Row("num_episodes", "trainer.total_epochs"),
)
MANY_EPOCHS = 8  # more passes over one rollout are almost always num_episodes, misnamed


def write(w: Writing) -> None:
    w.rows(ROWS)
    _mini_batch(w)
    _micro_batches(w)
    _tokens(w)
    _passes(w)
    if w.given("max_steps"):
        w.put("max_steps", "trainer.total_training_steps", why="counted in iterations; v0.9.2 has no such flag")


def _mini_batch(w: Writing) -> None:
    samples, n, prompts = w.get("train_batch_size"), w.get("n_samples_per_prompt"), w.get("rollout_batch_size")
    if min(samples, n, prompts) < 1:
        name = min(("train_batch_size", "n_samples_per_prompt", "rollout_batch_size"), key=w.get)
        return w.refuse(name, "must be at least 1")
    sum_ = f"{samples} samples / {n} per prompt"
    if samples % n:
        why = f"{sum_} is no whole number of prompts: {_nearest(samples, n, prompts)}"
        return w.refuse("train_batch_size", why)
    mini = samples // n
    if prompts % mini:
        why = (
            f"{prompts} prompts x {n} samples are no whole number of updates of {samples} samples, and theirs loses the"
            f" rest: {_nearest(samples, n, prompts)}"
        )
        return w.refuse("train_batch_size", why)
    w.put("train_batch_size", f"{ACTOR}.ppo_mini_batch_size", mini, f"{sum_} = {mini} prompts")
    still = w.get("use_dynamic_batch") or w.get("ring_attn_size") > 1 or w.get("ds_tensor_parallel_size") > 1
    if mini != prompts and not still:
        w.itself(f"{ACTOR}.shuffle", True, "samples are shuffled before each pass, unless batches are dynamic")
    return None


def _nearest(samples: int, n: int, prompts: int) -> str:
    """The sizes next to the one asked for that do divide."""
    fitting = [size * n for size in range(1, prompts + 1) if prompts % size == 0]
    below = [size for size in fitting if size < samples][-1:]
    above = [size for size in fitting if size > samples][:1]
    return " or ".join(map(str, below + above)) + " would do"


def _micro_batches(w: Writing) -> None:
    micro, forward = w.get("micro_train_batch_size"), w.get("micro_rollout_batch_size")
    if w.get("use_dynamic_batch"):
        for name in ("micro_train_batch_size", "micro_rollout_batch_size"):
            w.inert(name, f"{w.name('use_dynamic_batch')} cuts by tokens")
        return
    samples, share = w.get("train_batch_size"), ranks(w)
    if micro < 1 or samples % (micro * share):
        why = f"{samples} samples / ({micro} x {share} ranks) is no whole number of backward passes"
        w.refuse("micro_train_batch_size", f"{why}: {w.name('train_batch_size')} {_round(samples, micro * share)} is")
    else:
        roles = (ACTOR, "critic") if has_critic(w) else (ACTOR,)
        w.put("micro_train_batch_size", [f"{role}.ppo_micro_batch_size_per_gpu" for role in roles])
    keys = [f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"]
    keys += [f"{REF}.log_prob_micro_batch_size_per_gpu"] if has_reference(w) else []
    keys += ["critic.forward_micro_batch_size_per_gpu"] if has_critic(w) else []
    keys += ["reward_model.micro_batch_size_per_gpu"] if has_reward_model(w) else []
    passes = w.get("n_samples_per_prompt") * w.get("rollout_batch_size") // max(1, forward)
    if passes < share:
        w.refuse("micro_rollout_batch_size", f"gives {passes} forward passes for {share} ranks: it must be smaller")
    else:
        w.put("micro_rollout_batch_size", keys, why="every role's forward pass" if len(keys) > 1 else "")


def _round(samples: int, step: int) -> int:
    return max(1, round(samples / max(1, step))) * max(1, step)


def _tokens(w: Writing) -> None:
    critic = has_critic(w)
    if not w.get("use_dynamic_batch"):
        for name in ("train_max_tokens_per_gpu", "rollout_max_tokens_per_gpu"):
            w.inert(name, f"batches are cut by samples without {w.name('use_dynamic_batch')}")
        w.told.add("use_dynamic_batch")
        return
    w.put("use_dynamic_batch", f"{ACTOR}.use_dynamic_bsz")
    keys = (f"{ACTOR}.ppo_max_token_len_per_gpu", "critic.ppo_max_token_len_per_gpu")
    w.put("train_max_tokens_per_gpu", keys if critic else keys[:1])
    if w.get("rollout_max_tokens_per_gpu") is not None:
        keys = (f"{ROLLOUT}.log_prob_max_token_len_per_gpu", f"{REF}.log_prob_max_token_len_per_gpu")
        keys = keys if has_reference(w) else keys[:1]
        scores = critic or has_reward_model(w)
        w.put("rollout_max_tokens_per_gpu", (*keys, "critic.forward_max_token_len_per_gpu") if scores else keys)


def _passes(w: Writing) -> None:
    epochs = w.get("max_epochs")
    why = f"passes over one iteration's samples; passes over the data are {w.name('num_episodes')}"
    if epochs > MANY_EPOCHS:
        why = f"WARNING: {epochs} {why}. Did you mean {w.name('num_episodes')} {epochs}?"
    w.put("max_epochs", f"{ACTOR}.ppo_epochs", why=why if w.given("max_epochs") else "")
    frozen = w.get("freezing_actor_steps")
    why = f"the policy learns from iteration {frozen + 2} on: {frozen} + 1 iterations of the critic alone"
    w.put("freezing_actor_steps", "trainer.critic_warmup", max(0, frozen + 1), why if frozen >= 0 else "")
