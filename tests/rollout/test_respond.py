"""Prompts to requests, completions to columns."""

from __future__ import annotations

import torch

from burnish.batch import Batch, Ragged
from burnish.rollout.engine import Completion, Sampling
from burnish.rollout.respond import requests_for, response_columns


def prompts():
    return Batch(prompt_ids=Ragged.of([[5, 6], [7, 8, 9], [5, 6]], torch.int64), uid=["a", "b", "c"])


def seeds(n=2, seed=1, step=4, batch=None):
    return [[r.seed for r in group] for group in requests_for(batch or prompts(), Sampling(3), n, seed=seed, step=step)]


def test_one_request_per_sample():
    sampling = Sampling(3, temperature=0.5)
    groups = requests_for(prompts(), sampling, 2, seed=1, step=4)
    assert [[request.ids for request in group] for group in groups] == [[(5, 6)] * 2, [(7, 8, 9)] * 2, [(5, 6)] * 2]
    assert all(request.sampling is sampling for group in groups for request in group)


def test_every_part_of_the_address_matters():
    flat = [seed for group in seeds() for seed in group]
    assert len(set(flat)) == 6  # equal prompts of different uid too
    assert all(0 <= seed < 1 << 63 for seed in flat)
    assert not set(flat) & {s for group in seeds(seed=2) for s in group}
    assert not set(flat) & {s for group in seeds(step=5) for s in group}
    renamed = Batch(prompt_ids=prompts()["prompt_ids"], uid=["a", "b", "d"])
    assert [a == b for a, b in zip(seeds(), seeds(batch=renamed), strict=True)] == [True, True, False]


def test_a_seed_of_the_sampling_takes_the_place_of_the_runs():
    own = [[r.seed for r in group] for group in requests_for(prompts(), Sampling(3, seed=2), 2, seed=1, step=4)]
    assert own == seeds(seed=2)


def test_nothing_else_matters():
    assert seeds() == seeds()
    assert [group[:2] for group in seeds(n=5)] == seeds(n=2)
    turned = prompts().select([2, 0, 1])
    assert seeds(batch=turned) == [seeds()[i] for i in (2, 0, 1)]


def test_response_columns():
    completions = [
        Completion([4, 2], [-0.5, -0.25], [7, 8], "stop"),
        Completion([], [], [], "abort"),
        Completion([9], [-1.5], [8], "length"),
    ]
    batch = Batch(uid=["a", "a", "b"]).add(**response_columns(completions))  # add checks that the columns are aligned
    assert batch["responses"].lists() == [[4, 2], [], [9]]
    assert batch["response_mask"].lists() == [[1, 1], [], [1]]
    assert batch["rollout_log_probs"].lists() == [[-0.5, -0.25], [], [-1.5]]
    assert batch["weight_version"].lists() == [[7, 8], [], [8]]
    assert batch["finish_reason"] == ["stop", "abort", "length"]
    assert batch["responses"].flat.dtype == torch.int64 and batch["rollout_log_probs"].flat.dtype == torch.float32


def test_likeliest_tokens_are_a_column_where_asked_for():
    asked = [Completion([4], [-0.5], [7], "stop", None, [[(4, -0.5), (5, -1.0)]])]
    assert response_columns(asked)["top_log_probs"] == [[[(4, -0.5), (5, -1.0)]]]
    assert "top_log_probs" not in response_columns([Completion([4], [-0.5], [7], "stop")])


def test_no_token_at_all():
    columns = response_columns([Completion([], [], [], "abort")])
    assert columns["responses"].lists() == [[]] and columns["responses"].flat.dtype == torch.int64


def test_a_response_gets_what_its_prompt_leaves():
    groups = requests_for(prompts(), Sampling(3, min_tokens=3, room=5), 1, seed=1, step=4)
    assert [group[0].sampling.max_tokens for group in groups] == [3, 2, 3]
    assert [group[0].sampling.min_tokens for group in groups] == [3, 2, 3]
