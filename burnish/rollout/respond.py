"""Room 2: prompts -> requests -> completions -> response columns."""

from __future__ import annotations

import torch

from burnish.batch import Batch, Ragged
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Completion, Request, Sampling
from burnish.seeding import derive_seed


def requests_for(prompts: Batch, sampling: Sampling, n: int, *, seed: int, step: int) -> list[list[Request]]:
    """n requests per prompt. A request's seed names it: run seed (or the sampling's own), step, prompt, sample."""
    seed = seed if sampling.seed is None else sampling.seed
    return [
        [
            Request(ModelInput(tuple(ids)), sampling.after(len(ids)), derive_seed(seed, step, uid, sample))
            for sample in range(n)
        ]
        for ids, uid in zip(prompts["prompt_ids"].lists(), prompts["uid"], strict=True)
    ]


def response_columns(completions: list[Completion]) -> dict[str, Ragged | list]:
    """responses, response_mask, rollout_log_probs, weight_version, finish_reason; one row per completion.

    And top_log_probs where the likeliest tokens were asked for.
    """
    responses = Ragged.of([c.ids for c in completions], torch.int64)
    top = [c.top_log_probs for c in completions]
    return {
        **({"top_log_probs": top} if top and None not in top else {}),
        "responses": responses,
        "response_mask": Ragged.like(torch.ones(len(responses.flat)), responses),
        "rollout_log_probs": Ragged.of([c.log_probs for c in completions], torch.float32),
        "weight_version": Ragged.of([c.versions for c in completions], torch.int64),
        "finish_reason": [c.finish_reason for c in completions],
    }
