"""The engine protocol: token ids in, token ids and log-probs out. A service, not a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from torch import Tensor

from burnish.errors import UserError, raise_all
from burnish.models.model_input import ModelInput
from burnish.registry import Entry, Registry

ENGINES = Registry("rollout engine", key="actor_rollout_ref.rollout.name")
ENGINES.register_lazy("builtin", "burnish.rollout.engines.builtin.choice:builtin_engine")
ENGINES.register_lazy("hf", "burnish.rollout.engines.hf:HfEngine")
# `library`: what must be installed for it.
ENGINES.register_lazy(
    "vllm",
    "burnish.rollout.engines.vllm.engine:VllmEngine",
    library="vllm",
    as_server="burnish.rollout.engines.vllm.server:VllmServer",  # where rollout.mode=async
)
# `out_of_process`: it lives in a process of its own, which may die without us (see rollout/supervised.py).
ENGINES.register_lazy("sglang", "burnish.rollout.engines.sglang.engine:SglangEngine", out_of_process=True)


def engine_row(name: str, mode: str) -> Entry:
    """The row of that name; where the engine can also be a server, the one that rollout.mode asks for."""
    row = ENGINES[name]
    if mode != "async" or "as_server" not in row.metadata:
        return row
    return Entry(name, row.metadata["as_server"], metadata={"out_of_process": True})


FinishReason = Literal["stop", "length", "abort"]


class EngineDied(RuntimeError):
    """The engine is gone: its process ended, or it no longer answers. What it was asked is lost with it."""


@dataclass(frozen=True)
class Sampling:
    """How a response is sampled and when it ends, as vLLM's SamplingParams has it. Temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    do_sample: bool = True
    ignore_eos: bool = False
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()  # as tokens
    logprobs: int | None = None  # how many of the likeliest tokens a completion reports beside the sampled one
    fire: bool = False
    seed: int | None = None  # in the place of the run's seed
    room: int | None = None  # prompt and response together: a response gets no more than its prompt leaves

    def after(self, num_prompt: int) -> Sampling:
        """The same after a prompt of this length."""
        if self.room is None or num_prompt + self.max_tokens <= self.room:
            return self
        left = self.room - num_prompt
        return replace(self, max_tokens=left, min_tokens=min(self.min_tokens, left))

    @property
    def greedy(self) -> bool:
        return not self.do_sample or self.temperature == 0

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def restricts(self) -> bool:
        """Are only some tokens drawn from: the likeliest, by number or by probability?"""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def looks_back(self) -> bool:
        """Does the choice of a token depend on those before it by more than the model?"""
        return self.penalised or self.min_tokens > 0 or bool(self.bad_words)

    @property
    def biases(self) -> list[str]:
        """What makes tokens be drawn from another distribution than the one whose log-probs are reported."""
        if self.greedy:
            return []
        found = {
            "top_k": self.top_k > 0,
            "top_p": self.top_p < 1,
            "min_p": self.min_p > 0,
            "min_tokens": self.min_tokens > 0,
            "repetition_penalty": self.repetition_penalty != 1,
            "presence_penalty": self.presence_penalty != 0,
            "frequency_penalty": self.frequency_penalty != 0,
            "bad_words": bool(self.bad_words),
            "use_fire_sampling": self.fire,
        }
        return [name for name, there in found.items() if there]

    @property
    def restricted(self) -> bool:
        """Are importance ratios biased, because sampling leaves out or bends part of the distribution?"""
        return bool(self.biases)


@dataclass(frozen=True)
class Request:
    """One response to generate. The noise of token t is a function of (seed, t) alone.

    Requests of a session extend each other: where the engine can, it keeps the KV of a finished request's prompt and
    response for the session's next request, until `Engine.end_session`.
    """

    input: ModelInput
    sampling: Sampling
    seed: int
    priority: int = 0
    session: str | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        return self.input.ids


@dataclass(frozen=True)
class Completion:
    """The response tokens, log-softmax(logits / temperature) of each, and the weights' version that sampled each."""

    ids: list[int]
    log_probs: list[float]
    versions: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None = None  # the stop string or stop token that ended it; None for EOS
    top_log_probs: list[list[tuple[int, float]]] | None = None  # per token the likeliest (id, log-prob), best first


@dataclass(frozen=True)
class Capabilities:
    """What an engine can promise. `addressed` says how far noise is fixed by the request alone."""

    addressed: Literal["token", "request", "none"]
    invariant: bool
    log_probs: bool = True
    score: bool = False
    score_at: float | None = None  # the one temperature at which it can; None: any
    abort: bool = False
    sleep: bool = False
    remarks: tuple[str, ...] = ()  # what else a run should say at its start
    digests: bool = False  # can it say what weights it holds?


@dataclass
class EngineOptions:
    """What every engine is built from; an engine that cannot honour an option says so."""

    model: Any  # ModelSource
    dtype: Any  # torch.dtype
    device: Any  # torch.device
    eos_ids: tuple[int, ...]
    max_model_len: int
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    memory_share: float = 0.5
    invariant: bool | None = None
    own_thread: bool = True  # False: the caller drives it by `turn` (see rollout/builtin/worker.py)
    chunked_prefill: bool = True
    prefix_caching: bool = False
    decode: Callable[[Sequence[int]], str] | None = None  # response tokens to text; stop strings need it
    eager: bool = True  # no CUDA graphs
    sleeps: bool = True  # memory is given back between two generations
    beside: bool = False  # a trainer in the same process uses the device meanwhile
    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1
    pipeline_parallel: int = 1
    capture_sizes: list[int] | None = None  # batch sizes that CUDA graphs are captured for
    device_loop: bool | None = None  # decode many tokens between two looks of the host; None: as the device has it
    load_format: str = "dummy"  # of a foreign engine's first weights
    bucket_megabytes: int = 512  # of weights sent at once to an engine in another process
    extra: dict[str, Any] = field(default_factory=dict)  # what engine_kwargs has for this engine
    section: str = "actor_rollout_ref.rollout"  # the key that the options stand under, to name in errors


def check_requests(requests: Sequence[Request], options: EngineOptions) -> None:
    """Refuse what no engine can answer: an empty prompt, no new token, or more of both than fits."""
    for request in requests:
        num_prompt, num_new, num_least = len(request.ids), request.sampling.max_tokens, request.sampling.min_tokens
        if num_prompt == 0:
            raise UserError("a request needs at least one prompt token")
        if num_new < 1:
            raise UserError("a request needs at least one new token", key="data.max_response_length", value=num_new)
        if num_least > num_new:
            key = "actor_rollout_ref.rollout.min_tokens"
            raise UserError(f"is more than the {num_new} tokens that a response may have", key=key, value=num_least)
        if request.sampling.stop and options.decode is None:
            raise ValueError("stop strings need EngineOptions.decode")
        if num_prompt + num_new > options.max_model_len:
            raise UserError(
                f"a prompt of {num_prompt} tokens and {num_new} new ones do not fit",
                key="actor_rollout_ref.rollout.max_model_len",
                value=options.max_model_len,
                hint=f"actor_rollout_ref.rollout.max_model_len={num_prompt + num_new}",
            )


def check_engine(engine: Any, extra: Mapping[str, Any], device: Any, section: str) -> None:
    """Refuse, before a model is loaded, an engine that is not installed, or told what it does not know."""
    check = getattr(engine, "check", None)
    if check is not None:
        check(extra, device, section)


def check_sampling(engine: Any, sampling: Sampling, section: str) -> None:
    """The same for ways to sample that it does not have, each by its key's name."""
    refusals = getattr(engine, "refusals", None)
    if refusals is not None:
        raise_all(list(refusals(sampling, section)))


class Engine(Protocol):
    """Any number of requests may be in flight, and new ones may arrive while others run."""

    capabilities: Capabilities

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        """Start these; requests with equal ids share one prefill where the engine can."""
        ...

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        """Finish these now with what they have (finish reason `abort`)."""
        ...

    def pause(self) -> None:
        """Stop making tokens, keep all requests; returns when the engine stands still."""
        ...

    def resume(self) -> None: ...

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> float | None:
        """Take new weights; caches computed with the old ones are dropped.

        Returns the seconds spent comparing them, where the engine does that itself.
        """
        ...

    def digests(self) -> dict[str, Tensor]:
        """A number for every weight it holds (rollout/digests.py), where capabilities.digests."""
        ...

    def score(self, rows: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        """Log-prob of each token given those before it (the first token of a row has none and gets 0)."""
        ...

    def sleep(self, level: int = 1) -> None:
        """Give memory back: level 1 the cache, level 2 the weights too."""
        ...

    def wake(self) -> None: ...

    def stats(self) -> dict[str, float]:
        """Counters since the last call."""
        ...

    def step(self) -> bool:
        """One token for everybody, by an engine without a thread of its own; False if there is nothing to drive."""
        ...

    def close(self) -> None: ...
