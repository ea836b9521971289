"""Batch arithmetic: the numbers of a step."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.doctor.arithmetic import sft_arithmetic, step_micro_batching, train_arithmetic
from burnish.sizing import CPU_MICRO_BATCH_TOKENS

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
BATCH = ["data.train_batch_size=64", f"{ROLLOUT}.n=4", f"{ACTOR}.ppo_mini_batch_size=16"]
LENGTHS = ["data.max_prompt_length=100", "data.max_response_length=300"]


def numbers(*overrides: str, rows: int | None = None) -> dict:
    return train_arithmetic(load([*BATCH, *LENGTHS, *overrides], check=False).cfg, False, rows)


def test_a_step():
    result = numbers(f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", f"{ACTOR}.ppo_epochs=2")
    assert result["responses_per_step"] == 256
    assert result["updates_per_step"] == 8
    assert result["responses_per_update"] == 64
    assert result["micro_batches_per_update"] == 8
    assert result["tokens_per_micro_batch"] == 8 * 400
    assert result["critic_updates_per_step"] == 8
    assert "forward_passes_of_the_reference" not in result


def test_ranks_share_the_batch():
    result = numbers(f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", "trainer.n_gpus_per_node=8")
    assert (result["responses_per_rank"], result["micro_batches_per_update"]) == (32, 1)


@pytest.mark.parametrize(("budget", "rows", "tokens"), [(1000, 2, 1000), (300, 1, 400), (10**6, 64, 25600)])
def test_a_token_budget(budget, rows, tokens):
    """Two whole rows and a part of a third; never less than one row, never more than there are."""
    result = numbers(f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu={budget}")
    assert result["responses_per_micro_batch"] == rows
    assert result["tokens_per_micro_batch"] == tokens


def test_sequence_parallel_ranks_share_the_tokens():
    cfg = load([*BATCH, *LENGTHS, f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"], check=False).cfg
    micro_batches = step_micro_batching(cfg, False).update_actor
    assert micro_batches.largest().num_tokens == 800
    assert (micro_batches.largest(4).num_tokens, micro_batches.largest(4).num_response_tokens) == (200, 150)


def test_sequence_parallel_ranks_share_rows_and_add_up_their_budgets():
    shared = ("trainer.n_gpus_per_node=8", f"{ACTOR}.ulysses_sequence_parallel_size=4")
    budget = (f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=300")
    result = numbers(*shared, *budget)
    assert result["responses_per_rank"] == 128  # of 256, on two ranks that share no row
    assert result["responses_per_micro_batch"] == 3  # of 400 tokens, in 4 x 300
    assert result["tokens_per_micro_batch"] == 1200


def test_a_cpu_takes_smaller_budgets():
    cfg = load([*BATCH, *LENGTHS, f"{ACTOR}.ppo_max_token_len_per_gpu=20000"], check=False).cfg
    assert step_micro_batching(cfg, True).update_actor.tokens == CPU_MICRO_BATCH_TOKENS
    assert step_micro_batching(cfg, False).update_actor.tokens == 20000


def test_epochs_need_rows():
    assert "steps_per_epoch" not in numbers()
    result = numbers(rows=1000)
    assert (result["steps_per_epoch"], result["rows_left_out_per_epoch"], result["steps"]) == (15, 40, 450)
    assert numbers("data.train_max_samples=128", rows=1000)["steps_per_epoch"] == 2
    assert numbers("trainer.total_training_steps=7", rows=1000)["steps"] == 7


def test_supervised_training():
    cfg = load(["data.train_batch_size=32", "data.micro_batch_size_per_gpu=4"], job="sft", check=False).cfg
    result = sft_arithmetic(cfg, False, 320)
    assert (result["micro_batches_per_update"], result["tokens_per_micro_batch"]) == (8, 4 * 1024)
    assert result["steps"] == 40


def test_supervised_training_over_ranks():
    """Sequence-parallel ranks share examples, and a batch over all ranks is divided by the others."""
    ranks = ["trainer.n_gpus_per_node=8", "ulysses_sequence_parallel_size=2", "data.micro_batch_size=8"]
    cfg = load(["data.train_batch_size=32", *ranks], job="sft", check=False).cfg
    result = sft_arithmetic(cfg, False, 320)
    assert (result["ranks"], result["examples_per_micro_batch"], result["micro_batches_per_update"]) == (8, 2, 4)
