"""HfEngine: transformers' own `generate`, for models that the built-in engine does not support. Slow but correct."""

from __future__ import annotations

import inspect
import queue
import threading
from collections import defaultdict
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
from burnish.models.model_input import ModelInput, features_of
from burnish.models.routing import Routing
from burnish.models.vision.family import vision_family
from burnish.rollout.engine import Capabilities, Completion, EngineOptions, Request, check_requests
from burnish.rollout.engines.builtin.penalties import PenaltyState
from burnish.rollout.engines.builtin.sampling import SampledTokens, SamplingBatch, sample_to_host
from burnish.rollout.engines.digests import digests_of
from burnish.rollout.engines.weights import copy_weights
from burnish.rollout.stop import Finish, finish


class HfEngine:
    """Left-pads all waiting requests into one batch and generates it; later requests wait for the next batch."""

    def __init__(self, options: EngineOptions) -> None:
        self.capabilities = Capabilities("token", invariant=False, score=True, digests=True)
        self.options = options
        self.eos_ids = frozenset(options.eos_ids)
        self.model = load_causal_lm(options.model, None, options.dtype, empty=True).to(options.device).eval()
        self.model.requires_grad_(False)
        self.family = vision_family(self.model.config)
        self.routing = None  # where completions say which experts their tokens were sent to
        if options.record_experts:
            self.routing = Routing(self.model, f"{options.section}.enable_rollout_routing_replay")
        self.model.generation_config = GenerationConfig()  # else its defaults, such as EOS, would be merged in
        self.version = 0
        self.paused = self.closed = False
        self.counts: defaultdict[str, float] = defaultdict(int)
        self._model_lock = threading.Condition()  # held while the model is in use; a batch waits on it while paused
        self._inbox: queue.SimpleQueue[tuple[Request, Future[Completion]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="burnish-hf-engine", daemon=True)
        self._thread.start()

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        check_requests(requests, self.options, frozenset() if self.family is None else self.family.kinds)
        if self.closed:
            raise RuntimeError("the engine is closed")
        pairs: list[tuple[Request, Future[Completion]]] = [(request, Future()) for request in requests]
        for pair in pairs:
            pair[1].set_running_or_notify_cancel()  # a request cannot be canceled
            self._inbox.put(pair)
        return [future for _, future in pairs]

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        """A running batch cannot be interrupted."""
        raise NotImplementedError("the hf engine cannot abort a running batch (capabilities.abort is False)")

    def end_session(self, session: str) -> None:
        """Sessions are ignored: every batch prefills its prompts."""

    def expect_return(self, session: str, seconds: float) -> None:
        """Sessions are ignored."""

    def pause(self) -> None:
        with self._model_lock:
            self.paused = True

    def resume(self) -> None:
        with self._model_lock:
            self.paused = False
            self._model_lock.notify()

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> None:
        with self._model_lock:
            copy_weights(self.model, stream)
            self.version = version

    def local_weight(self, name: str, whole: Tensor) -> Tensor:
        return whole

    def digests(self) -> dict[str, Tensor]:
        with self._model_lock:
            return digests_of(self.model)

    @torch.inference_mode()
    def score(self, rows: Sequence[ModelInput | Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        with self._model_lock:
            inputs = [row if isinstance(row, ModelInput) else ModelInput(tuple(row)) for row in rows]
            return [self._score(row, temperature) for row in inputs]

    def _score(self, row: ModelInput, temperature: float) -> list[float]:
        ids = torch.tensor([row.ids], device=self.options.device)
        logits = self.model(ids, use_cache=False, **self._media_arguments(row)).logits[0, :-1].float() / temperature
        log_probs = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None]).squeeze(-1)
        return [0.0, *log_probs.tolist()]

    def sleep(self, level: int = 1) -> None:
        """Nothing to free: `generate` frees its cache after every batch."""

    def wake(self) -> None: ...

    def stats(self) -> dict[str, float]:
        counts = dict(self.counts)
        self.counts = defaultdict(int)
        return counts

    def step(self) -> bool:
        return False

    def close(self) -> None:
        """Wait for a running batch; waiting requests fail."""
        with self._model_lock:
            self.closed = True
            self._model_lock.notify()
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._inbox.get()) is not None:
            pairs = [first]
            while len(pairs) < self.options.max_num_seqs and not self._inbox.empty():
                pair = self._inbox.get()
                if pair is None:
                    self._inbox.put(None)
                    break
                pairs.append(pair)
            try:
                with self._model_lock:
                    self._model_lock.wait_for(lambda: self.closed or not self.paused)
                    if self.closed:
                        raise RuntimeError("the engine was closed")
                    completions = self._batches([request for request, _ in pairs])
            except Exception as error:  # without this, callers would wait forever
                for _, future in pairs:
                    future.set_exception(error)
                continue
            for (_, future), completion in zip(pairs, completions, strict=True):
                future.set_result(completion)

    def _batches(self, requests: list[Request]) -> list[Completion]:
        """Text in one batch; a prompt with images alone, because families join the images of a batch in many ways."""
        text = iter(self._batch([request for request in requests if not request.input.media]))
        return [self._batch([request])[0] if request.input.media else next(text) for request in requests]

    def _media_arguments(self, input: ModelInput) -> dict[str, Tensor]:
        """The images as transformers' own processor would give them, and which tokens they are."""
        if self.family is None:
            return {}
        kinds = torch.zeros(1, len(input), dtype=torch.long)
        for media in input.media:
            span = kinds[0, media.offset : media.offset + media.num_tokens]
            span[:] = torch.where(features_of(media), 2 if media.kind == "video" else 1, 0)
        taken = inspect.signature(self.model.forward).parameters
        given = {name: kinds for name in ("mm_token_type_ids", "token_type_ids") if name in taken}
        media = self.family.model_arguments(input.media) if input.media else {}
        return {name: tensor.to(self.options.device) for name, tensor in {**given, **media}.items()}

    def _text_arguments(self, mask: Tensor) -> dict[str, Tensor]:
        """The same for a batch of text, which a vision model must be told."""
        if self.family is None:
            return {}
        taken = inspect.signature(self.model.forward).parameters
        return {name: torch.zeros_like(mask) for name in ("mm_token_type_ids", "token_type_ids") if name in taken}

    @torch.inference_mode()
    def _batch(self, requests: list[Request]) -> list[Completion]:
        if not requests:
            return []
        device = self.options.device
        prompts = [request.input.ids for request in requests]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        sequences = [_Sequence(request, PenaltyState.of(request, self.eos_ids)) for request in requests]
        experts = None if self.routing is None else _Experts(self.routing, len(requests))
        sampler = _Sampler(
            sequences, device, experts, partial(finish, eos_ids=self.eos_ids, decode=self.options.decode)
        )
        max_tokens = max(request.sampling.max_tokens for request in requests)
        config = GenerationConfig(do_sample=False, max_new_tokens=max_tokens, pad_token_id=0, eos_token_id=None)
        self.model.generate(  # pyright: ignore[reportCallIssue]
            ids,
            attention_mask=mask,
            **(self._media_arguments(requests[0].input) if len(requests) == 1 else self._text_arguments(mask)),
            generation_config=config,
            logits_processor=LogitsProcessorList([sampler]),
            stopping_criteria=StoppingCriteriaList([_AllEnded(sequences)]),
        )
        self.counts["decode_steps"] += sampler.steps
        self.counts["tokens"] += sum(len(sequence.tokens) for sequence in sequences)
        if experts is not None:
            experts.give(sequences, longest)
        return [sequence.completion(self.version) for sequence in sequences]


@dataclass(eq=False)
class _Sequence:
    """One response. The batch continues for the others after it has ended."""

    request: Request
    penalties: PenaltyState | None
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    end: Finish | None = None
    experts: Tensor | None = None

    def completion(self, version: int) -> Completion:
        versions = [version] * len(self.tokens)
        top = None if self.request.sampling.logprobs is None else self.top
        end = self.end or Finish("length")
        return Completion(self.tokens, self.log_probs, versions, end.reason, end.stop, top, self.experts)


class _Experts:
    """Which experts the passes of a batch have sent its tokens to."""

    def __init__(self, routing: Routing, num_rows: int) -> None:
        self.routing, self.num_rows = routing, num_rows
        self.passes: list[Tensor] = []  # [rows, tokens, mixtures, k]
        routing.record()

    def after_pass(self) -> None:
        self.passes.append(self.routing.recorded().unflatten(0, (self.num_rows, -1)).cpu())

    def give(self, sequences: list[_Sequence], longest: int) -> None:
        """Each sequence's own, without the padding on its left and what the batch did after its end."""
        whole = torch.cat(self.passes, dim=1)
        for row, sequence in zip(whole, sequences, strict=True):
            begin = longest - len(sequence.request.input)
            sequence.experts = row[begin : longest + len(sequence.tokens) - 1]


class _Sampler(LogitsProcessor):
    """Samples with our counter-based noise and masks all other tokens, so that `generate` has to take that one."""

    def __init__(
        self,
        sequences: list[_Sequence],
        device: torch.device,
        experts: _Experts | None,
        finish: Callable[..., Finish | None],
    ) -> None:
        self.sequences = sequences
        self.experts = experts
        self.finish = finish
        self.steps = 0
        requests = [sequence.request for sequence in sequences]
        settings, seeds = [r.sampling for r in requests], [r.seed for r in requests]
        penalties = [sequence.penalties for sequence in sequences]
        self.first = SamplingBatch.of(settings, seeds, device, penalties, first=True)
        self.later = SamplingBatch.of(settings, seeds, device, penalties)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.experts is not None:
            self.experts.after_pass()
        index = torch.full((len(scores),), self.steps, dtype=torch.int64, device=scores.device)
        sampled = sample_to_host(scores, self.later if self.steps else self.first, index)
        self.steps += 1
        for number, sequence in enumerate(self.sequences):
            if sequence.end is None:
                self._append(sequence, sampled, number)
        tokens = torch.tensor(sampled.tokens, device=scores.device)
        return torch.full_like(scores, float("-inf")).scatter_(-1, tokens[:, None], 0.0)

    def _append(self, sequence: _Sequence, sampled: SampledTokens, number: int) -> None:
        sequence.tokens.append(sampled.tokens[number])
        sequence.log_probs.append(sampled.log_probs[number])
        if sampled.top is not None:
            sequence.top.append(sampled.top[number])
        if sequence.penalties is not None:
            sequence.penalties.add(sampled.tokens[number])
        sequence.end = self.finish(sequence.tokens, sequence.request.sampling)


class _AllEnded(StoppingCriteria):
    """Ends each sequence by our own rules, and the batch with its last sequence."""

    def __init__(self, sequences: list[_Sequence]) -> None:
        self.sequences = sequences

    def __call__(self, input_ids: Tensor, scores: Tensor, **options: object) -> Tensor:
        return torch.tensor([sequence.end is not None for sequence in self.sequences], device=input_ids.device)
