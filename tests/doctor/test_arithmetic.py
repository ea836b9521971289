"""Batch arithmetic: the numbers of a step."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.doctor.arithmetic import CPU_TOKENS, cuts, sft_arithmetic, train_arithmetic

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
BATCH = ["data.train_batch_size=64", f"{ROLLOUT}.n=4", f"{ACTOR}.ppo_mini_batch_size=16"]
LENGTHS = ["data.max_prompt_length=100", "data.max_response_length=300"]


def numbers(*overrides: str, rows: int | None = None) -> dict:
    return train_arithmetic(load([*BATCH, *LENGTHS, *overrides], check=False).cfg, False, rows)


def test_a_step():
    found = numbers(f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", f"{ACTOR}.ppo_epochs=2")
    assert found["responses_per_step"] == 256
    assert found["updates_per_step"] == 8
    assert found["responses_per_update"] == 64
    assert found["micro_batches_per_update"] == 8
    assert found["tokens_per_micro_batch"] == 8 * 400
    assert found["critic_updates_per_step"] == 8
    assert "forward_passes_of_the_reference" not in found


def test_ranks_share_the_batch():
    found = numbers(f"{ACTOR}.ppo_micro_batch_size_per_gpu=8", "trainer.n_gpus_per_node=8")
    assert (found["responses_per_rank"], found["micro_batches_per_update"]) == (32, 1)


@pytest.mark.parametrize(("budget", "rows", "tokens"), [(1000, 2, 1000), (300, 1, 400), (10**6, 64, 25600)])
def test_a_token_budget(budget, rows, tokens):
    """Two whole rows and a part of a third; never less than one row, never more than there are."""
    found = numbers(f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu={budget}")
    assert found["responses_per_micro_batch"] == rows
    assert found["tokens_per_micro_batch"] == tokens


def test_sequence_parallel_ranks_share_the_tokens():
    cut = cuts(load([*BATCH, *LENGTHS, f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"], check=False).cfg, False).update_actor
    assert cut.largest().tokens == 800
    assert (cut.largest(4).tokens, cut.largest(4).responses) == (200, 150)


def test_sequence_parallel_ranks_share_rows_and_add_up_their_budgets():
    shared = ("trainer.n_gpus_per_node=8", f"{ACTOR}.ulysses_sequence_parallel_size=4")
    budget = (f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=300")
    found = numbers(*shared, *budget)
    assert found["responses_per_rank"] == 128  # of 256, on two ranks that share no row
    assert found["responses_per_micro_batch"] == 3  # of 400 tokens, in 4 x 300
    assert found["tokens_per_micro_batch"] == 1200


def test_a_cpu_takes_smaller_budgets():
    cfg = load([*BATCH, *LENGTHS, f"{ACTOR}.ppo_max_token_len_per_gpu=20000"], check=False).cfg
    assert cuts(cfg, True).update_actor.tokens == CPU_TOKENS
    assert cuts(cfg, False).update_actor.tokens == 20000


def test_epochs_need_rows():
    assert "steps_per_epoch" not in numbers()
    found = numbers(rows=1000)
    assert (found["steps_per_epoch"], found["rows_left_out_per_epoch"], found["steps"]) == (15, 40, 450)
    assert numbers("data.train_max_samples=128", rows=1000)["steps_per_epoch"] == 2
    assert numbers("trainer.total_training_steps=7", rows=1000)["steps"] == 7


def test_supervised_training():
    cfg = load(["data.train_batch_size=32", "data.micro_batch_size_per_gpu=4"], job="sft", check=False).cfg
    found = sft_arithmetic(cfg, False, 320)
    assert (found["micro_batches_per_update"], found["tokens_per_micro_batch"]) == (8, 4 * 1024)
    assert found["steps"] == 40
