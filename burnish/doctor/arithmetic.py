"""Batch arithmetic: how many prompts, responses, updates and micro-batches one step has, and how many tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config import SftConfig, TrainConfig
from burnish.config.ranks import (
    data_parallel_size,
    engine_size,
    has_engine_pool,
    num_ranks,
    sequence_parallel_size,
    sft_data_size,
    sft_micro_batch_size,
)
from burnish.config.rollout import SamplingConfig
from burnish.config.rules import has_critic
from burnish.doctor.activations import MicroBatch
from burnish.sizing import CPU_MICRO_BATCH_TOKENS


@dataclass(frozen=True)
class MicroBatching:
    """How one role's batch is divided into micro-batches: by sequence count, or by token budget."""

    sequences: int | None
    tokens: int | None
    batch: int  # sequences of the mini-batch (or of the whole batch, in forward passes) on one rank
    max_length: int  # tokens of the longest sequence
    max_response: int  # response tokens among them

    @property
    def size(self) -> int:
        """Sequences of full length in a micro-batch."""
        if self.tokens is not None:
            return max(1, min(self.batch, self.tokens // self.max_length))
        assert self.sequences is not None
        return min(self.sequences, self.batch)

    @property
    def count(self) -> int:
        """Micro-batches, if every sequence has full length."""
        return -(-self.batch // self.size)

    def largest(self, ranks_per_sequence: int = 1) -> MicroBatch:
        """The micro-batch with the most memory: sequences of full length, and a shorter one that fills the budget."""
        lengths = [self.max_length] * self.size
        if self.tokens is not None and self.size < self.batch:
            rest = max(0, self.tokens - sum(lengths))
            lengths += [rest] if rest else []
        local = [max(1, length // ranks_per_sequence) for length in lengths]
        return MicroBatch.of(local, round(sum(local) * (self.max_response / self.max_length)))

    @property
    def num_tokens(self) -> int:
        return self.largest().num_tokens


def micro_batching(
    sequences: int | None,
    dynamic: bool,
    budget: int,
    batch: int,
    max_length: int,
    max_response: int,
    on_cpu: bool,
    sequence_parallel: int = 1,
) -> MicroBatching:
    """Without a sequence count the token budget applies. Ranks that share a sequence add up their budgets."""
    if dynamic or sequences is None:
        budget = sequence_parallel * (min(budget, CPU_MICRO_BATCH_TOKENS) if on_cpu else budget)
        return MicroBatching(None, budget, max(1, batch), max_length, max_response)
    return MicroBatching(sequences, None, max(1, batch), max_length, max_response)


def max_sequence_length(rollout: SamplingConfig) -> int:
    """Tokens of the longest sequence: prompt and response, and never more than the engine's max_model_len."""
    length = rollout.prompt_length + rollout.response_length
    return length if rollout.max_model_len is None else min(length, rollout.max_model_len)


def responses_per_engine(cfg: TrainConfig) -> int:
    """Responses of a step that one engine generates."""
    prompts = cfg.data.train_batch_size
    if cfg.algorithm.filter_groups.enable:
        prompts = cfg.data.gen_batch_size or prompts
    pool = cfg.rollout.nnodes * cfg.rollout.n_gpus_per_node if has_engine_pool(cfg) else num_ranks(cfg)
    num_engines = max(1, pool // engine_size(cfg))
    return max(1, -(-prompts * cfg.actor_rollout_ref.rollout.n // num_engines))


@dataclass(frozen=True)
class StepMicroBatching:
    """The micro-batches of every phase of a step."""

    update_actor: MicroBatching
    old_log_probs: MicroBatching
    reference: MicroBatching
    update_critic: MicroBatching
    values: MicroBatching
    reward_model: MicroBatching


def step_micro_batching(cfg: TrainConfig, on_cpu: bool) -> StepMicroBatching:
    actor, rollout, ref = cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.rollout, cfg.actor_rollout_ref.ref
    critic, reward_model = cfg.critic, cfg.reward_model
    max_length = max_sequence_length(rollout)

    def of(
        role: Any, sequences: int | None, dynamic: bool, budget: int, mini_batch: int | None = None
    ) -> MicroBatching:
        prompts = cfg.data.train_batch_size if mini_batch is None else min(mini_batch, cfg.data.train_batch_size)
        batch = -(-prompts * rollout.n // data_parallel_size(cfg, role))
        max_response = min(rollout.response_length, max_length)
        return micro_batching(
            sequences, dynamic, budget, batch, max_length, max_response, on_cpu, sequence_parallel_size(role)
        )

    return StepMicroBatching(
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
            reward_model,
            reward_model.micro_batch_size_per_gpu,
            reward_model.use_dynamic_bsz,
            reward_model.forward_max_token_len_per_gpu,
        ),
    )


def train_arithmetic(cfg: TrainConfig, on_cpu: bool, num_rows: int | None = None) -> dict[str, Any]:
    """The numbers of one step, by name; and those of an epoch, where the number of training rows is known."""
    data, actor, rollout = cfg.data, cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.rollout
    micro_batches = step_micro_batching(cfg, on_cpu)
    max_length = max_sequence_length(rollout)
    num_responses = data.train_batch_size * rollout.n
    num_mini_batches = -(-data.train_batch_size // actor.ppo_mini_batch_size)
    numbers: dict[str, Any] = {
        "prompts_per_step": data.train_batch_size,
        "responses_per_prompt": rollout.n,
        "responses_per_step": num_responses,
        "ranks": num_ranks(cfg),
        "responses_per_rank": num_responses / data_parallel_size(cfg, actor),
        "updates_per_step": actor.ppo_epochs * num_mini_batches,
        "responses_per_update": min(actor.ppo_mini_batch_size, data.train_batch_size) * rollout.n,
        "micro_batches_per_update": micro_batches.update_actor.count,
        "responses_per_micro_batch": micro_batches.update_actor.size,
        "tokens_per_micro_batch": micro_batches.update_actor.num_tokens,
        "tokens_per_response_at_most": max_length,
        "tokens_per_step_at_most": num_responses * max_length,
        "forward_passes_for_old_log_probs": micro_batches.old_log_probs.count,
    }
    if actor.use_kl_loss or cfg.algorithm.use_kl_in_reward:
        numbers["forward_passes_of_the_reference"] = micro_batches.reference.count
    if has_critic(cfg):
        num_mini_batches = -(-data.train_batch_size // cfg.critic.ppo_mini_batch_size)
        numbers["critic_updates_per_step"] = cfg.critic.ppo_epochs * num_mini_batches
        numbers["critic_micro_batches_per_update"] = micro_batches.update_critic.count
    if cfg.algorithm.filter_groups.enable:
        numbers["prompts_generated_at_once"] = data.gen_batch_size or data.train_batch_size
    return numbers | _epoch(num_rows, data.train_max_samples, data.train_batch_size, cfg.trainer)


def sft_arithmetic(cfg: SftConfig, on_cpu: bool, num_rows: int | None = None) -> dict[str, Any]:
    """The numbers of one step of supervised training, which is one update."""
    trainer = cfg.trainer
    micro_batches = sft_micro_batching(cfg, on_cpu)
    numbers = {
        "examples_per_update": cfg.data.train_batch_size,
        "ranks": trainer.nnodes * trainer.n_gpus_per_node,
        "micro_batches_per_update": micro_batches.count,
        "examples_per_micro_batch": micro_batches.size,
        "tokens_per_micro_batch": micro_batches.num_tokens,
    }
    return numbers | _epoch(num_rows, cfg.data.train_max_samples, cfg.data.train_batch_size, trainer)


def sft_micro_batching(cfg: SftConfig, on_cpu: bool) -> MicroBatching:
    data = cfg.data
    return micro_batching(
        sft_micro_batch_size(cfg),
        data.use_dynamic_bsz,
        data.max_token_len_per_gpu,
        -(-data.train_batch_size // sft_data_size(cfg)),
        data.max_length,
        data.max_length,
        on_cpu,
        cfg.ulysses_sequence_parallel_size,
    )


def _epoch(num_rows: int | None, max_samples: int, batch_size: int, trainer: Any) -> dict[str, Any]:
    """Steps of an epoch and of the run. An incomplete last batch is dropped."""
    steps = trainer.total_training_steps
    if num_rows is None:
        return {} if steps is None else {"steps": steps}
    rows = num_rows if max_samples is None or max_samples < 0 else min(num_rows, max_samples)
    steps_per_epoch = rows // batch_size
    return {
        "training_rows": rows,
        "steps_per_epoch": steps_per_epoch,
        "rows_left_out_per_epoch": rows - steps_per_epoch * batch_size,
        "steps": steps if steps is not None else trainer.total_epochs * steps_per_epoch,
    }
