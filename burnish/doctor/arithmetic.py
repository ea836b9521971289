"""Batch arithmetic: how many prompts, responses, updates and micro-batches one step makes, and how many tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config import SftConfig, TrainConfig
from burnish.config.ranks import data_parallel_size, num_ranks, sequence_parallel_size
from burnish.config.rules import has_critic
from burnish.doctor.activations import Pass

CPU_TOKENS = 3072  # the largest token budget of a micro-batch that a CPU is given; a test compares it with training's


@dataclass(frozen=True)
class Micro:
    """How one role's pass is cut: so many rows, or as many as a token budget holds, of so many on a rank."""

    rows: int | None
    tokens: int | None
    of: int  # rows of the mini-batch (or of the batch that is read) on one rank
    longest: int  # tokens of the longest row
    responses: int  # of these, response tokens

    @property
    def rows_at_once(self) -> int:
        """Rows of full length in a micro-batch."""
        if self.tokens is not None:
            return max(1, min(self.of, self.tokens // self.longest))
        assert self.rows is not None
        return min(self.rows, self.of)

    @property
    def count(self) -> int:
        """Micro-batches, if every row has full length."""
        return -(-self.of // self.rows_at_once)

    def largest(self, ranks_per_sequence: int = 1) -> Pass:
        """The micro-batch that needs most memory: rows of full length, and a budget filled up by a shorter one."""
        lengths = [self.longest] * self.rows_at_once
        if self.tokens is not None and self.rows_at_once < self.of:
            rest = max(0, self.tokens - sum(lengths))
            lengths += [rest] if rest else []
        share = self.responses / self.longest
        tokens = [max(1, length // ranks_per_sequence) for length in lengths]
        return Pass.of(tokens, round(sum(tokens) * share))

    @property
    def tokens_at_once(self) -> int:
        return self.largest().tokens


def micro(
    rows: int | None,
    dynamic: bool,
    budget: int,
    of: int,
    longest: int,
    responses: int,
    on_cpu: bool,
    sharing: int = 1,
) -> Micro:
    """The three keys of a role as one choice; without a row count the budget decides, of all ranks that share a row."""
    if dynamic or rows is None:
        budget = sharing * (min(budget, CPU_TOKENS) if on_cpu else budget)
        return Micro(None, budget, max(1, of), longest, responses)
    return Micro(rows, None, max(1, of), longest, responses)


@dataclass(frozen=True)
class Cuts:
    """How every role's passes are cut."""

    update_actor: Micro
    old_log_probs: Micro
    reference: Micro
    update_critic: Micro
    values: Micro
    reward_model: Micro


def cuts(cfg: TrainConfig, on_cpu: bool) -> Cuts:
    actor, rollout, ref = cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.rollout, cfg.actor_rollout_ref.ref
    critic, judge = cfg.critic, cfg.reward_model
    longest, response = rollout.prompt_length + rollout.response_length, rollout.response_length

    def of(role: Any, rows: int | None, dynamic: bool, budget: int, mini: int | None = None) -> Micro:
        prompts = cfg.data.train_batch_size if mini is None else min(mini, cfg.data.train_batch_size)
        here = -(-prompts * rollout.n // data_parallel_size(cfg, role))
        return micro(rows, dynamic, budget, here, longest, response, on_cpu, sequence_parallel_size(role))

    return Cuts(
        update_actor=of(
            actor,
            actor.ppo_micro_batch_size_per_gpu,
            actor.use_dynamic_bsz,
            actor.ppo_max_token_len_per_gpu,
            actor.ppo_mini_batch_size,
        ),
        old_log_probs=of(
            actor,
            rollout.log_prob_micro_batch_size_per_gpu,
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_max_token_len_per_gpu,
        ),
        reference=of(
            ref,
            ref.log_prob_micro_batch_size_per_gpu,
            ref.log_prob_use_dynamic_bsz,
            ref.log_prob_max_token_len_per_gpu,
        ),
        update_critic=of(
            critic,
            critic.ppo_micro_batch_size_per_gpu,
            critic.use_dynamic_bsz,
            critic.ppo_max_token_len_per_gpu,
            critic.ppo_mini_batch_size,
        ),
        values=of(
            critic,
            critic.forward_micro_batch_size_per_gpu,
            critic.use_dynamic_bsz,
            critic.forward_max_token_len_per_gpu,
        ),
        reward_model=of(
            judge, judge.micro_batch_size_per_gpu, judge.use_dynamic_bsz, judge.forward_max_token_len_per_gpu
        ),
    )


def train_arithmetic(cfg: TrainConfig, on_cpu: bool, num_rows: int | None = None) -> dict[str, Any]:
    """The numbers of one step, by name; `num_rows` training rows make the epochs."""
    data, actor, rollout = cfg.data, cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.rollout
    cut = cuts(cfg, on_cpu)
    longest = rollout.prompt_length + rollout.response_length
    mini_batches = -(-data.train_batch_size // actor.ppo_mini_batch_size)
    found: dict[str, Any] = {
        "prompts_per_step": data.train_batch_size,
        "responses_per_prompt": rollout.n,
        "responses_per_step": data.train_batch_size * rollout.n,
        "ranks": num_ranks(cfg),
        "responses_per_rank": data.train_batch_size * rollout.n / data_parallel_size(cfg, actor),
        "updates_per_step": actor.ppo_epochs * mini_batches,
        "responses_per_update": min(actor.ppo_mini_batch_size, data.train_batch_size) * rollout.n,
        "micro_batches_per_update": cut.update_actor.count,
        "responses_per_micro_batch": cut.update_actor.rows_at_once,
        "tokens_per_micro_batch": cut.update_actor.tokens_at_once,
        "tokens_per_response_at_most": longest,
        "tokens_per_step_at_most": data.train_batch_size
        * rollout.n
        * (rollout.prompt_length + rollout.response_length),
        "forward_passes_for_old_log_probs": cut.old_log_probs.count,
    }
    if actor.use_kl_loss or cfg.algorithm.use_kl_in_reward:
        found["forward_passes_of_the_reference"] = cut.reference.count
    if has_critic(cfg):
        found["critic_updates_per_step"] = cfg.critic.ppo_epochs * -(
            -data.train_batch_size // cfg.critic.ppo_mini_batch_size
        )
        found["critic_micro_batches_per_update"] = cut.update_critic.count
    if cfg.algorithm.filter_groups.enable:
        found["prompts_generated_at_once"] = data.gen_batch_size or data.train_batch_size
    return found | _length(num_rows, data.train_max_samples, data.train_batch_size, cfg.trainer)


def sft_arithmetic(cfg: SftConfig, on_cpu: bool, num_rows: int | None = None) -> dict[str, Any]:
    """The same for supervised training, where an update is a step."""
    trainer = cfg.trainer
    cut = sft_cut(cfg, on_cpu)
    found = {
        "examples_per_update": cfg.data.train_batch_size,
        "ranks": trainer.nnodes * trainer.n_gpus_per_node,
        "micro_batches_per_update": cut.count,
        "examples_per_micro_batch": cut.rows_at_once,
        "tokens_per_micro_batch": cut.tokens_at_once,
    }
    return found | _length(num_rows, cfg.data.train_max_samples, cfg.data.train_batch_size, trainer)


def sft_cut(cfg: SftConfig, on_cpu: bool) -> Micro:
    here = -(-cfg.data.train_batch_size // (cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node))
    data = cfg.data
    length = data.max_length
    return micro(
        data.micro_batch_size_per_gpu, data.use_dynamic_bsz, data.max_token_len_per_gpu, here, length, length, on_cpu
    )


def _length(num_rows: int | None, limit: int, batch: int, trainer: Any) -> dict[str, Any]:
    """Steps of an epoch and of the run; a last incomplete batch is dropped."""
    steps = trainer.total_training_steps
    if num_rows is None:
        return {} if steps is None else {"steps": steps}
    rows = num_rows if limit is None or limit < 0 else min(num_rows, limit)
    per_epoch = rows // batch
    return {
        "training_rows": rows,
        "steps_per_epoch": per_epoch,
        "rows_left_out_per_epoch": rows - per_epoch * batch,
        "steps": steps if steps is not None else trainer.total_epochs * per_epoch,
    }
