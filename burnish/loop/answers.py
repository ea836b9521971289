"""Groups on their way: one coroutine per response waits for the engine, then for the score."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from burnish.batch import Batch
from burnish.loop.run import Run
from burnish.loop.sampling import decoder
from burnish.reward.sample import Sample, Score
from burnish.rollout.engine import Completion, Engine, Request
from burnish.rollout.stop import visible_text

PAUSE = 0.05  # seconds between two looks at an engine that has nothing to drive


@dataclass(frozen=True)
class Answer:
    """One response and its score."""

    completion: Completion
    text: str
    score: Score


@dataclass(frozen=True)
class Group:
    """The responses to one prompt, some perhaps still to come."""

    completions: list[Future[Completion]]
    answers: asyncio.Future[list[Answer]]


def start_groups(run: Run, engine: Engine, prompts: Batch, requests: Sequence[Sequence[Request]]) -> list[Group]:
    """All requests go to the engine at once: it prefills a prompt once for its samples."""
    run.scorer.expect(sum(map(len, requests)))
    made = iter(engine.generate([request for group in requests for request in group]))
    groups = []
    for row, group in enumerate(requests):
        futures = [next(made) for _ in group]
        answers = asyncio.gather(*(_answer(run, prompts, row, sample, future) for sample, future in enumerate(futures)))
        answers.add_done_callback(_seen)
        groups.append(Group(futures, answers))
    return groups


async def drive(engine: Engine, awaited: asyncio.Future) -> Any:
    """Wait, and meanwhile take the turns of an engine that has no thread of its own."""
    awaited.add_done_callback(_seen)
    while not awaited.done():
        if engine.step():
            await asyncio.sleep(0)  # let finished responses go to their rewards
        else:  # nothing to drive; an engine that is paused for new weights goes on later
            await asyncio.wait([awaited], timeout=PAUSE)
    return await awaited


async def drop_groups(engine: Engine, groups: Sequence[Group]) -> None:
    """Nobody wants these any more: no more rewards, and no more tokens where the engine can stop."""
    for group in groups:
        group.answers.cancel()
    futures = [future for group in groups for future in group.completions if not future.done()]
    if engine.capabilities.abort:
        engine.abort(futures)
    await drive(engine, asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True))


def run_coroutine(coroutine: Coroutine) -> Any:
    """Run to the end, also where the caller (a notebook) already has a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


async def _answer(run: Run, prompts: Batch, row: int, sample: int, future: Future[Completion]) -> Answer:
    """Wait for the response, then for its score."""
    completion = await asyncio.wrap_future(future)
    text = visible_text(completion, decoder(run.tokenizer))
    asked = Sample(
        data_source=prompts["data_source"][row],
        solution_str=text,
        ground_truth=prompts["ground_truth"][row],
        extra_info=prompts["extra_info"][row],
        uid=prompts["uid"][row],
        sample=sample,
        **(_whole_texts(run, prompts, row, completion) if run.scorer.reads_prompts else {}),
    )
    return Answer(completion, text, await asyncio.wrap_future(run.scorer.submit(asked)))


def _whole_texts(run: Run, prompts: Batch, row: int, completion: Completion) -> dict[str, str]:
    """Prompt, and prompt with response, as the model saw them: special tokens are part of the text."""
    ids = prompts["prompt_ids"][row].tolist()
    return {"prompt": run.tokenizer.decode(ids), "query": run.tokenizer.decode([*ids, *completion.ids])}


def _seen(done: asyncio.Future) -> None:
    """What went wrong is told by whoever awaits it, or was given up by Ctrl-C."""
    if not done.cancelled():
        done.exception()
