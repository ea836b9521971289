"""Lengths of all prompts in tokens, in this process or in several. No torch: worker processes import this."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from burnish.data.encode import PromptEncoder, TemplateFailure
from burnish.data.prompt import Prompt
from burnish.errors import UserError

CHUNK = 128  # prompts per task: large enough that pickling does not show
WORKERS_KEY = "data.filter_overlong_prompts_workers"


@dataclass(frozen=True)
class Measured:
    """The length of a prompt, or why its template failed."""

    length: int
    failure: str | None = None


def measure(prompts: Iterable[Prompt], encoder: PromptEncoder, workers: int | None) -> list[Measured]:
    """One result per prompt, in order; the number of workers changes nothing but the time."""
    source = iter(prompts)
    chunks = iter(lambda: list(itertools.islice(source, CHUNK)), [])
    workers = min(workers or 1, os.cpu_count() or 1)
    results = map(Ruler(encoder), chunks) if workers <= 1 else _in_processes(chunks, encoder, workers)
    return [measured for chunk in results for measured in chunk]


@dataclass(frozen=True)
class Ruler:
    """Measures chunks of prompts; a class, so that it can be sent to a worker process."""

    encoder: PromptEncoder

    def __call__(self, prompts: list[Prompt]) -> list[Measured]:
        return [self._one(prompt) for prompt in prompts]

    def _one(self, prompt: Prompt) -> Measured:
        try:
            return Measured(len(self.encoder.ids(prompt)))
        except TemplateFailure as failure:
            return Measured(0, str(failure))


_ruler: Ruler | None = None  # in a worker process: what it was started with


def _start_worker(pickled: bytes) -> None:
    global _ruler
    _ruler = pickle.loads(pickled)


def _measure_chunk(prompts: list[Prompt]) -> list[Measured]:
    assert _ruler is not None
    return _ruler(prompts)


def _in_processes(chunks: Iterator[list[Prompt]], encoder: PromptEncoder, workers: int) -> Iterator[list[Measured]]:
    """Results in order, with few chunks on the way at a time, so that the rows are never in memory all at once."""
    try:
        pickled = pickle.dumps(Ruler(encoder))
    except Exception as error:  # a tokenizer of the user's own may hold anything
        problem = f"the tokenizer cannot be sent to worker processes: {error}"
        raise UserError(problem, key=WORKERS_KEY, value=workers, hint=f"{WORKERS_KEY}=1") from error
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(pickled,)) as pool:
        pending: deque[Future] = deque()
        try:
            for chunk in chunks:
                pending.append(pool.submit(_measure_chunk, chunk))
                if len(pending) > 4 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            problem = (
                "a worker process could not start or died (a script that trains needs `if __name__ == '__main__':`)"
            )
            raise UserError(problem, key=WORKERS_KEY, value=workers, hint=f"{WORKERS_KEY}=1") from error
