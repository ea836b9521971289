"""The runner of ranks: results in order, and failures that say whose they are."""

from __future__ import annotations

import time

import pytest
import torch
from torch import distributed

from .ranks import run_ranks


def sum_of_ranks(rank, start):
    total = start + rank
    distributed.all_reduce(total)
    return rank, total


def fail_on_one(rank):
    if rank == 1:
        raise ValueError("the second one fails")
    distributed.barrier()


def hang_on_one(rank):
    if rank == 1:
        time.sleep(60)
    return rank


def test_ranks_talk_and_answer_in_order():
    assert run_ranks(2, sum_of_ranks, torch.tensor(10)) == [(0, torch.tensor(21)), (1, torch.tensor(21))]


def test_a_failure_names_the_rank_and_shows_its_traceback():
    with pytest.raises(AssertionError, match=r"rank 1 of 2: (?s:.)*the second one fails"):
        run_ranks(2, fail_on_one)


def test_a_time_limit_shows_where_a_rank_stands():
    with pytest.raises(AssertionError, match=r"no answer within 2 s(?s:.)*hang_on_one"):
        run_ranks(2, hang_on_one, limit=2)
