"""Prompt lengths in tokens, in one process or several. Imports no torch, because worker processes load this."""

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
from burnish.media import InvalidMedia

CHUNK = 128  # prompts per task: large enough to hide the cost of pickling
CHUNK_WITH_MEDIA = 8  # encoded pictures are large, and decoding them costs more than pickling
WORKERS_KEY = "data.filter_overlong_prompts_workers"


@dataclass(frozen=True)
class PromptLength:
    """The length of a prompt, or why its template failed, or what is wrong with its pictures."""

    length: int
    failure: str | None = None
    media_error: UserError | None = None  # InvalidMedia if the row can be dropped
    spans: tuple[tuple[int, int], ...] = ()  # offset and number of tokens of each picture


Measured = Prompt | PromptLength  # a prompt, or what is known about it already


def measure(prompts: Iterable[Measured], encoder: PromptEncoder, workers: int | None) -> list[PromptLength]:
    """One result per prompt, in order; the result does not depend on the number of workers."""
    source, size = iter(prompts), CHUNK if encoder.vision is None else CHUNK_WITH_MEDIA
    chunks = iter(lambda: list(itertools.islice(source, size)), [])
    workers = min(workers or 1, os.cpu_count() or 1)
    results = map(LengthCounter(encoder), chunks) if workers <= 1 else _in_processes(chunks, encoder, workers)
    return [length for chunk in results for length in chunk]


@dataclass(frozen=True)
class LengthCounter:
    """Measures a chunk of prompts. A class, so that it can be pickled."""

    encoder: PromptEncoder

    def __call__(self, prompts: list[Measured]) -> list[PromptLength]:
        return [prompt if isinstance(prompt, PromptLength) else self._length(prompt) for prompt in prompts]

    def _length(self, prompt: Prompt) -> PromptLength:
        try:
            encoded = self.encoder.encode(prompt, pixels=False)
        except TemplateFailure as failure:
            return PromptLength(0, str(failure))
        except UserError as error:
            if not prompt.media and not isinstance(error, InvalidMedia):
                raise  # concerns all rows
            return PromptLength(0, media_error=error)
        return PromptLength(len(encoded.ids), spans=tuple((item.offset, item.num_tokens) for item in encoded.media))


_counter: LengthCounter | None = None  # set in worker processes only


def _start_worker(pickled: bytes) -> None:
    global _counter
    _counter = pickle.loads(pickled)


def _measure_chunk(prompts: list[Measured]) -> list[PromptLength]:
    assert _counter is not None
    return _counter(prompts)


def _in_processes(
    chunks: Iterator[list[Measured]], encoder: PromptEncoder, workers: int
) -> Iterator[list[PromptLength]]:
    """Results in order, with few chunks in flight, so that the rows are never all in memory."""
    try:
        pickled = pickle.dumps(LengthCounter(encoder))
    except Exception as error:  # a custom tokenizer may raise anything
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
            problem = "a worker process failed to start or died (scripts need `if __name__ == '__main__':`)"
            raise UserError(problem, key=WORKERS_KEY, value=workers, hint=f"{WORKERS_KEY}=1") from error
