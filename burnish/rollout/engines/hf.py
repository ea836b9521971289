"""HfEngine: transformers' own `generate`, for models that the built-in engine does not know. Slow, and right."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from burnish.models.load import load_causal_lm
from burnish.rollout.engine import Capabilities, Completion, EngineOptions, Request, check_requests
from burnish.rollout.engines.builtin.past import Past
from burnish.rollout.engines.builtin.sampling import Drawn, SamplingRows, draw
from burnish.rollout.engines.digests import digests_of
from burnish.rollout.engines.weights import copy_weights
from burnish.rollout.stop import Finish, finish


class HfEngine:
    """Takes what is waiting, left-pads it into one batch, and generates. What comes later waits for the next."""

    def __init__(self, options: EngineOptions) -> None:
        self.capabilities = Capabilities("token", invariant=False, score=True, digests=True)
        self.options = options
        self.eos_ids = frozenset(options.eos_ids)
        self.model = load_causal_lm(options.model, None, options.dtype, empty=True).to(options.device).eval()
        self.model.requires_grad_(False)
        self.model.generation_config = GenerationConfig()  # else it fills in what a request leaves out, such as EOS
        self.version = 0
        self.paused = self.closed = False
        self.counts: Counter[str] = Counter()
        self._standing = threading.Condition()  # held while the model is in use; a batch waits on it while paused
        self._inbox: queue.SimpleQueue[tuple[Request, Future[Completion]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, name="burnish-hf-engine", daemon=True)
        self._thread.start()

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        check_requests(requests, self.options)
        if self.closed:
            raise RuntimeError("the engine is closed")
        pairs: list[tuple[Request, Future[Completion]]] = [(request, Future()) for request in requests]
        for pair in pairs:
            pair[1].set_running_or_notify_cancel()  # a request cannot be taken back
            self._inbox.put(pair)
        return [future for _, future in pairs]

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        """A batch that runs cannot be cut short; its requests end by themselves."""
        raise NotImplementedError("the hf engine cannot abort a running batch (capabilities.abort is False)")

    def pause(self) -> None:
        with self._standing:
            self.paused = True

    def resume(self) -> None:
        with self._standing:
            self.paused = False
            self._standing.notify()

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        with self._standing:
            copy_weights(self.model, stream)
            self.version = version

    def digests(self) -> dict[str, Tensor]:
        with self._standing:
            return digests_of(self.model)

    @torch.inference_mode()
    def score(self, rows: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        with self._standing:
            return [self._score(row, temperature) for row in rows]

    def _score(self, row: Sequence[int], temperature: float) -> list[float]:
        ids = torch.tensor([list(row)], device=self.options.device)
        logits = self.model(ids, use_cache=False).logits[0, :-1].float() / temperature
        log_probs = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None]).squeeze(-1)
        return [0.0, *log_probs.tolist()]

    def sleep(self, level: int = 1) -> None:
        """Nothing to free: `generate` drops its cache after every batch."""

    def wake(self) -> None: ...

    def stats(self) -> dict[str, float]:
        counts, self.counts = dict(self.counts), Counter()
        return counts

    def step(self) -> bool:
        return False

    def close(self) -> None:
        """Let a running batch end; what waits behind it fails."""
        with self._standing:
            self.closed = True
            self._standing.notify()
        self._inbox.put(None)
        self._thread.join()

    def _live(self) -> None:
        while (first := self._inbox.get()) is not None:
            pairs = [first]
            while len(pairs) < self.options.max_num_seqs and not self._inbox.empty():
                following = self._inbox.get()
                if following is None:
                    self._inbox.put(None)
                    break
                pairs.append(following)
            try:
                with self._standing:
                    self._standing.wait_for(lambda: self.closed or not self.paused)
                    if self.closed:
                        raise RuntimeError("the engine was closed")
                    completions = self._batch([request for request, _ in pairs])
            except Exception as error:  # nobody must wait for ever on a future of a failed batch
                for _, future in pairs:
                    future.set_exception(error)
                continue
            for (_, future), completion in zip(pairs, completions, strict=True):
                future.set_result(completion)

    @torch.inference_mode()
    def _batch(self, requests: list[Request]) -> list[Completion]:
        device = self.options.device
        longest = max(len(request.ids) for request in requests)
        ids = torch.tensor([[0] * (longest - len(r.ids)) + list(r.ids) for r in requests], device=device)
        mask = torch.tensor([[0] * (longest - len(r.ids)) + [1] * len(r.ids) for r in requests], device=device)
        rows = [_Row(request, Past.of(request, self.eos_ids)) for request in requests]
        chooser = _Chooser(rows, device, partial(finish, eos_ids=self.eos_ids, decode=self.options.decode))
        most = max(request.sampling.max_tokens for request in requests)
        config = GenerationConfig(do_sample=False, max_new_tokens=most, pad_token_id=0, eos_token_id=None)
        self.model.generate(
            ids,
            attention_mask=mask,
            generation_config=config,
            logits_processor=LogitsProcessorList([chooser]),
            stopping_criteria=StoppingCriteriaList([_AllEnded(rows)]),
        )
        self.counts["decode_steps"] += chooser.steps
        self.counts["tokens"] += sum(len(row.tokens) for row in rows)
        return [row.completion(self.version) for row in rows]


@dataclass(eq=False)
class _Row:
    """One response in the making. The batch goes on for the others once it has ended."""

    request: Request
    past: Past | None
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    end: Finish | None = None

    def completion(self, version: int) -> Completion:
        versions = [version] * len(self.tokens)
        top = None if self.request.sampling.logprobs is None else self.top
        return Completion(self.tokens, self.log_probs, versions, self.end.reason, self.end.stop, top)


class _Chooser(LogitsProcessor):
    """Chooses the token with our addressed noise, and leaves `generate` nothing but that token to take."""

    def __init__(self, rows: list[_Row], device: torch.device, finish: Callable[..., Finish | None]) -> None:
        self.rows = rows
        self.finish = finish
        self.steps = 0
        requests = [row.request for row in rows]
        settings, seeds = [r.sampling for r in requests], [r.seed for r in requests]
        pasts = [row.past for row in rows]
        self.first = SamplingRows.of(settings, seeds, device, pasts, first=True)
        self.later = SamplingRows.of(settings, seeds, device, pasts)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        index = torch.full((len(scores),), self.steps, dtype=torch.int64, device=scores.device)
        drawn = draw(scores, self.later if self.steps else self.first, index)
        self.steps += 1
        for number, row in enumerate(self.rows):
            if row.end is None:
                self._append(row, drawn, number)
        tokens = torch.tensor(drawn.tokens, device=scores.device)
        return torch.full_like(scores, float("-inf")).scatter_(-1, tokens[:, None], 0.0)

    def _append(self, row: _Row, drawn: Drawn, number: int) -> None:
        row.tokens.append(drawn.tokens[number])
        row.log_probs.append(drawn.log_probs[number])
        if drawn.top is not None:
            row.top.append(drawn.top[number])
        if row.past is not None:
            row.past.add(drawn.tokens[number])
        row.end = self.finish(row.tokens, row.request.sampling)


class _AllEnded(StoppingCriteria):
    """Ends a row's part of the batch by our own rules; the batch ends with its last row."""

    def __init__(self, rows: list[_Row]) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Tensor, **options: object) -> Tensor:
        return torch.tensor([row.end is not None for row in self.rows], device=input_ids.device)
