"""Rooms 2 and 3 together: responses are scored while others are still generated."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import torch

from burnish.batch import Batch, Column, Ragged
from burnish.loop.answers import Answer, drive, run_coroutine, start_groups
from burnish.loop.replay import replayed
from burnish.loop.run import Run
from burnish.reward.model_scorer import add_scores
from burnish.rollout.engine import Engine, Request
from burnish.rollout.respond import requests_for, response_columns


def gather(run: Run, prompts: Batch, step: int) -> Batch:
    """The step's batch: n scored responses to each prompt, in prompt order whatever finished first.

    Where groups are filtered, `prompts` are the first to be tried; others take the place of those that are rejected.
    """
    n = run.cfg.actor_rollout_ref.rollout.n
    with replayed(run, step) as engine:
        if run.filter is not None:
            run.scorer.begin()
            prompts, answers = run_coroutine(run.filter.gather(run, engine, prompts, step))
        else:
            answers = _answers(run, engine, prompts, requests_for(prompts, run.sampling, n, seed=run.seed, step=step))
        # A filter has asked the judge already.
        batch = _rows(prompts.repeat(n), answers, range(n), judged=run.reward_model is None or run.filter is not None)
        if "greedy" in run.estimator.needs:
            batch = batch.add(**_greedy_columns(run, engine, prompts, step, n))
    return batch


def gather_validation(run: Run, prompts: Batch) -> Batch:
    """The same for validation; its noise depends on the prompt and not on the step, so that validations compare."""
    n = run.cfg.actor_rollout_ref.rollout.val_kwargs.n
    requests = requests_for(prompts, run.val_sampling, n, seed=run.seed, step=-1)
    answers = _answers(run, run.engine, prompts, requests)
    return _rows(prompts.repeat(n), answers, range(n), judged=run.reward_model is None)


def reward_problems(run: Run) -> tuple[int, list[str]]:
    """On how many responses the reward failed since the last call, and a line for each distinct problem."""
    problems = run.scorer.drain_problems()
    lines = [
        f"reward problem, {problem.count} times: {problem.text}"
        f" (first: sample {problem.first.sample} of {problem.first.uid})"
        for problem in problems
    ]
    return sum(problem.count for problem in problems), lines


def _greedy_columns(run: Run, engine: Engine, prompts: Batch, step: int, n: int) -> dict[str, Column]:
    """Of each prompt's greedy response: score, the baseline of ReMax, and what shaping asks for; n times each."""
    greedy = replace(run.sampling, do_sample=False)
    answers = _answers(run, engine, prompts, requests_for(prompts, greedy, 1, seed=run.seed, step=step))
    each = [group[0] for group in answers for _ in range(n)]
    columns: dict[str, Column] = {
        "greedy_lengths": torch.tensor([len(answer.completion.ids) for answer in each]),
        "greedy_finish_reason": [answer.completion.finish_reason for answer in each],
    }
    if run.reward_model is None:
        scores = torch.tensor([answer.score.value for answer in each], dtype=torch.float32)
        return columns | {"greedy_scores": scores}
    responses = Ragged.of([answer.completion.ids for answer in each], torch.int64)
    return columns | {"greedy_responses": responses, "greedy_function_score": [answer.score for answer in each]}


def _answers(run: Run, engine: Engine, prompts: Batch, requests: list[list[Request]]) -> list[list[Answer]]:
    run.scorer.begin()
    return run_coroutine(_all_groups(run, engine, prompts, requests))


async def _all_groups(run: Run, engine: Engine, prompts: Batch, requests: list[list[Request]]) -> list[list[Answer]]:
    groups = start_groups(run, engine, prompts, requests)
    return await drive(engine, asyncio.gather(*(group.answers for group in groups)))


def _rows(prompts: Batch, answers: list[list[Answer]], samples: range, *, judged: bool) -> Batch:
    """Response and score columns; where a judge has still to read them, what the function gave waits for it."""
    flat = [answer for group in answers for answer in group]
    batch = prompts.add(
        sample=[sample for _ in answers for sample in samples],
        **response_columns([answer.completion for answer in flat]),
        response_text=[answer.text for answer in flat],
    )
    scores = [answer.score for answer in flat]
    return add_scores(batch, scores) if judged else batch.add(function_score=scores)
