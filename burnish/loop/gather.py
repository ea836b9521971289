"""Rooms 2 and 3 together: one coroutine per group responds and scores, so that rewards run while others generate."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from burnish.batch import Batch, Ragged
from burnish.loop.run import Run
from burnish.reward.sample import Sample, Score
from burnish.rollout.engine import Completion, Request, Sampling
from burnish.rollout.respond import requests_for, response_columns


@dataclass(frozen=True)
class Answer:
    """One response and its score."""

    completion: Completion
    text: str
    score: Score


def gather(run: Run, prompts: Batch, step: int) -> Batch:
    """The step's batch: n scored responses to each prompt, in prompt order whatever finished first."""
    n = run.cfg.actor_rollout_ref.rollout.n
    requests = requests_for(prompts, run.sampling, n, seed=run.seed, step=step)
    batch = _rows(prompts.repeat(n), _answers(run, prompts, requests), range(n))
    if "greedy" in run.estimator.needs:
        batch = batch.add(greedy_scores=_greedy_scores(run, prompts, step).repeat_interleave(n))
    return batch


def gather_validation(run: Run, prompts: Batch) -> Batch:
    """The same for validation; its noise depends on the prompt and not on the step, so that validations compare."""
    n = run.cfg.actor_rollout_ref.rollout.val_kwargs.n
    requests = requests_for(prompts, run.val_sampling, n, seed=run.seed, step=-1)
    return _rows(prompts.repeat(n), _answers(run, prompts, requests), range(n))


def _greedy_scores(run: Run, prompts: Batch, step: int) -> torch.Tensor:
    """The score of each prompt's greedy response, the baseline of ReMax."""
    greedy: Sampling = replace(run.sampling, do_sample=False)
    answers = _answers(run, prompts, requests_for(prompts, greedy, 1, seed=run.seed, step=step))
    return torch.tensor([group[0].score.value for group in answers], dtype=torch.float32)


def _answers(run: Run, prompts: Batch, requests: list[list[Request]]) -> list[list[Answer]]:
    return _run_coroutine(_all_groups(run, prompts, requests))


async def _all_groups(run: Run, prompts: Batch, requests: list[list[Request]]) -> list[list[Answer]]:
    # All requests go to the engine at once: it prefills a prompt once for its samples.
    futures = iter(run.engine.generate([request for group in requests for request in group]))
    groups = [
        asyncio.gather(*(_answer(run, prompts, row, sample, next(futures)) for sample in range(len(group))))
        for row, group in enumerate(requests)
    ]
    answers = asyncio.gather(*groups)
    answers.add_done_callback(lambda done: done.cancelled() or done.exception())  # told below, or given up by Ctrl-C
    while not answers.done() and run.engine.turn():
        await asyncio.sleep(0)  # let finished responses go to their rewards
    return list(await answers)


async def _answer(run: Run, prompts: Batch, row: int, sample: int, future: Future[Completion]) -> Answer:
    """Wait for the response, then for its score."""
    completion = await asyncio.wrap_future(future)
    text = run.tokenizer.decode(completion.ids, skip_special_tokens=True)
    asked = Sample(
        data_source=prompts["data_source"][row],
        solution_str=text,
        ground_truth=prompts["ground_truth"][row],
        extra_info=prompts["extra_info"][row],
        uid=prompts["uid"][row],
        sample=sample,
    )
    return Answer(completion, text, await asyncio.wrap_future(run.scorer.submit(asked)))


def _rows(prompts: Batch, answers: list[list[Answer]], samples: range) -> Batch:
    """Response and score columns. A score stands on the response's last token."""
    flat = [answer for group in answers for answer in group]
    columns = response_columns([answer.completion for answer in flat])
    responses: Ragged = columns["responses"]
    scores = torch.zeros(len(responses.flat))
    has_tokens = responses.lengths > 0
    values = torch.tensor([answer.score.value for answer in flat], dtype=torch.float32)
    scores[(responses.lengths.cumsum(0) - 1)[has_tokens]] = values[has_tokens]
    return prompts.add(
        sample=[sample for _ in answers for sample in samples],
        **columns,
        token_level_scores=Ragged.like(scores, responses),
        response_text=[answer.text for answer in flat],
        reward_extras=[answer.score.extras for answer in flat],
        reward_problem=[answer.score.problem for answer in flat],
    )


def _run_coroutine(coroutine: Coroutine) -> list[list[Answer]]:
    """Run to the end, also where the caller (a notebook) already has a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()
