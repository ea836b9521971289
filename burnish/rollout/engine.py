"""The engine protocol: model inputs in, token ids and log-probs out, as a service with requests in flight."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from torch import Tensor

from burnish.errors import UserError, raise_all
from burnish.models.model_input import MediaKind, ModelInput
from burnish.models.tensor_group import TensorGroup
from burnish.registry import Entry, Registry

ENGINES = Registry("rollout engine", key="actor_rollout_ref.rollout.name")
# `follower`: what the other ranks run where several share an engine. `library`: what must be installed for it.
# `as_server`: the engine for rollout.mode=async, and for several devices of a run with several ranks. `quantizes`: the
# devices on which it rounds the weights of every sync to 8 bits on request.
ENGINES.register_lazy(
    "builtin",
    "burnish.rollout.engines.builtin.engine:BuiltinEngine",
    quantizes=("cpu", "cuda"),
    follower="burnish.rollout.engines.builtin.follower:FollowerEngine",
    records_experts=True,
)
ENGINES.register_lazy("hf", "burnish.rollout.engines.hf:HfEngine", records_experts=True)
ENGINES.register_lazy(
    "vllm",
    "burnish.rollout.engines.vllm.engine:VllmEngine",
    library="vllm",
    quantizes=("cuda",),
    as_server="burnish.rollout.engines.vllm.server:VllmServer",
    follower="burnish.rollout.engines.member:MemberRank",
)
# `out_of_process`: a separate process, which may die; engines/supervised.py restarts it.
ENGINES.register_lazy(
    "sglang",
    "burnish.rollout.engines.sglang.engine:SglangEngine",
    follower="burnish.rollout.engines.member:MemberRank",
    out_of_process=True,
)


def engine_row(name: str, mode: str, follows: bool = False) -> Entry:
    """The registry entry of an engine: its server for rollout.mode=async, if it has one; its `follower`."""
    entry = ENGINES[name]
    if follows:
        return Entry(name, entry.metadata["follower"])
    if mode != "async" or "as_server" not in entry.metadata:
        return entry
    return Entry(name, entry.metadata["as_server"], metadata={"out_of_process": True})


FinishReason = Literal["stop", "length", "abort"]


class EngineDied(RuntimeError):
    """The engine's process has exited or no longer answers; its requests are lost."""


@dataclass(frozen=True)
class Sampling:
    """How a response is sampled and when it ends, like vLLM's SamplingParams. Temperature 0 is greedy."""

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
    logprobs: int | None = None  # top tokens that a completion reports besides the sampled one
    fire: bool = False
    seed: int | None = None  # overrides the run's seed
    max_total_tokens: int | None = None  # of prompt and response together; shortens responses to long prompts

    def after(self, num_prompt: int) -> Sampling:
        """The same for a prompt of this length: max_tokens limited to what `max_total_tokens` leaves."""
        if self.max_total_tokens is None or num_prompt + self.max_tokens <= self.max_total_tokens:
            return self
        left = self.max_total_tokens - num_prompt
        return replace(self, max_tokens=left, min_tokens=min(self.min_tokens, left))

    @property
    def greedy(self) -> bool:
        return not self.do_sample or self.temperature == 0

    @property
    def penalized(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def restricts(self) -> bool:
        """Whether top_k, top_p or min_p exclude tokens."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def looks_back(self) -> bool:
        """Whether sampling depends on earlier tokens other than through the model."""
        return self.penalized or self.min_tokens > 0 or bool(self.bad_words)

    @property
    def biases(self) -> list[str]:
        """Settings that make the sampling distribution differ from the one whose log-probs are reported."""
        if self.greedy:
            return []
        settings = {
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
        return [name for name, is_set in settings.items() if is_set]

    @property
    def restricted(self) -> bool:
        """Whether importance ratios are biased, because the sampling distribution differs from the reported one."""
        return bool(self.biases)


@dataclass(frozen=True)
class TokenWatch:
    """Reports a response while it is sampled: `report` gets all its tokens so far whenever one of `ids` is among the
    new ones. It is called by the engine's thread, and not for tokens that end the response."""

    ids: frozenset[int]
    report: Callable[[list[int]], None]

    def check(self, new: Sequence[int], tokens: Sequence[int]) -> None:
        if not self.ids.isdisjoint(new):
            self.report(list(tokens))


@dataclass(frozen=True)
class Request:
    """One response to generate. The noise of token t depends on (seed, t) alone.

    Requests of a session extend each other: where the engine can, it keeps the KV of a finished request's prompt and
    response for the session's next request, until `Engine.end_session`.
    """

    input: ModelInput
    sampling: Sampling
    seed: int
    priority: int = 0
    session: str | None = None
    watch: TokenWatch | None = field(default=None, compare=False)  # only for engines whose capabilities.watch is set

    @property
    def ids(self) -> tuple[int, ...]:
        return self.input.ids


@dataclass(frozen=True)
class Completion:
    """The response tokens, and for each log-softmax(logits / temperature) and the version of the weights."""

    ids: list[int]
    log_probs: list[float]
    versions: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None = None  # the stop string or stop token that ended it; None for EOS
    top_log_probs: list[list[tuple[int, float]]] | None = None  # per token the top (id, log-prob) pairs, best first
    # Which experts each token of prompt and response but the last was sent to, [tokens - 1, mixtures, k], on request.
    routed_experts: Tensor | None = field(default=None, compare=False)
    queued: float = field(default=0.0, compare=False)  # seconds until the engine started it; 0 where it does not tell


@dataclass(frozen=True)
class Capabilities:
    """What an engine supports. `addressed`: whether noise is fixed per token, per request, or not at all."""

    addressed: Literal["token", "request", "none"]
    invariant: bool
    log_probs: bool = True
    score: bool = False
    score_at: float | None = None  # the only temperature at which `score` works; None: any
    abort: bool = False
    sleep: bool = False
    remarks: tuple[str, ...] = ()  # reported at the start of a run
    digests: bool = False  # `digests` works
    sessions: bool = False  # keeps the KV of a session's requests until `end_session`
    reads_sources: bool = False  # processes pictures itself, from Media.source
    drafts: bool = False  # verifies drafts; `stats` has draft_tokens and draft_accepted once it has
    watch: bool = False  # reports the tokens of requests with a TokenWatch while they are sampled


@dataclass(frozen=True)
class DraftOptions:
    """Speculative decoding with drafts from other responses."""

    num_tokens: int = 16  # drafted for a sequence in one step, at most
    max_num_seqs: int = 64  # no drafts while more sequences run


@dataclass
class EngineOptions:
    """What every engine is built from; an engine refuses options that it does not support."""

    model: Any  # ModelSource
    dtype: Any  # torch.dtype
    device: Any  # torch.device
    eos_ids: tuple[int, ...]
    max_model_len: int
    max_num_seqs: int = 1024
    max_sessions: int = 0  # conversations at once; more than max_num_seqs wait with their KV, for a tool or a slot
    max_num_batched_tokens: int = 8192
    memory_share: float = 0.5
    invariant: bool | None = None
    own_thread: bool = True  # False: the caller calls `step` (engines/builtin/worker.py)
    chunked_prefill: bool = True
    prefix_caching: bool = False
    decode: Callable[[Sequence[int]], str] | None = None  # response tokens to text; stop strings need it
    eager: bool = True  # no CUDA graphs
    sleeps: bool = True  # `sleep` is used between two rollouts
    beside: bool = False  # a trainer in the same process shares the device
    tensor_group: TensorGroup | None = None  # the ranks that share this engine; None: this one alone
    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 1
    pipeline_parallel: int = 1
    devices: tuple[str, ...] = ()  # of a server that uses those of several ranks: entries of CUDA_VISIBLE_DEVICES
    capture_sizes: list[int] | None = None  # batch sizes with a captured CUDA graph
    device_loop: bool | None = None  # decode several tokens between two host syncs; None: on GPUs
    load_format: str = "dummy"  # of an external engine's first weights
    bucket_megabytes: int = 512  # of weights sent at once to an engine in another process
    quantization: Literal["block", "tensor"] | None = None  # of the weights, to 8 bits with a scale per block or tensor
    drafts: DraftOptions | None = None  # None: no speculative decoding
    record_experts: bool = False  # completions say which experts of a mixture each token was sent to
    extra: dict[str, Any] = field(default_factory=dict)  # the engine's entries of engine_kwargs
    max_images: int | None = None  # of a prompt; None: no limit
    media_settings: Mapping[str, Any] = field(default_factory=dict)  # overrides of the model's image processor
    section: str = "actor_rollout_ref.rollout"  # config section of the options, for error messages


def check_requests(
    requests: Sequence[Request], options: EngineOptions, media_kinds: Collection[MediaKind] = ()
) -> None:
    """Refuse requests that no engine can answer: an empty prompt, no new token, or more of both than fits.

    `media_kinds`: what the engine's model takes besides text.
    """
    for request in requests:
        num_prompt, num_new, num_min = len(request.input), request.sampling.max_tokens, request.sampling.min_tokens
        check_media(request.input, media_kinds)
        if num_prompt == 0:
            raise UserError("a request needs at least one prompt token")
        if num_new < 1:
            raise UserError("a request needs at least one new token", key="data.max_response_length", value=num_new)
        if num_min > num_new:
            key = "actor_rollout_ref.rollout.min_tokens"
            raise UserError(f"exceeds the maximum response length of {num_new} tokens", key=key, value=num_min)
        if request.sampling.stop and options.decode is None:
            raise ValueError("stop strings need EngineOptions.decode")
        if num_prompt + num_new > options.max_model_len:
            raise UserError(
                f"a prompt of {num_prompt} tokens and {num_new} new ones do not fit",
                key="actor_rollout_ref.rollout.max_model_len",
                value=options.max_model_len,
                hint=f"actor_rollout_ref.rollout.max_model_len={num_prompt + num_new}",
            )


def check_media(input: ModelInput, kinds: Collection[MediaKind]) -> None:
    """Refuse images and videos that the model, or the engine, does not take."""
    refused = sorted({media.kind for media in input.media if media.kind not in kinds})
    if refused:
        what = " and ".join(f"{kind}s" for kind in refused)
        raise UserError(
            f"a prompt has {what}, which this model does not take with this rollout engine",
            key="actor_rollout_ref.model.path",
            allowed=sorted(kinds) or ["text"],
        )


def token_rows(rows: Sequence[ModelInput | Sequence[int]]) -> list[Sequence[int]]:
    """Rows to score, for an engine that can show no images then."""
    for row in rows:
        if isinstance(row, ModelInput):
            check_media(row, ())
    return [row.ids if isinstance(row, ModelInput) else row for row in rows]


def check_engine(engine: Any, extra: Mapping[str, Any], device: Any, section: str) -> None:
    """Refuse, before a model is loaded, an engine that is not installed or has unknown arguments."""
    check = getattr(engine, "check", None)
    if check is not None:
        check(extra, device, section)


def check_sampling(engine: Any, sampling: Sampling, section: str) -> None:
    """Refuse sampling settings that the engine does not support, each by its key."""
    refusals = getattr(engine, "refusals", None)
    if refusals is not None:
        raise_all(list(refusals(sampling, section)))


class Engine(Protocol):
    """Any number of requests may be in flight, and new ones may arrive while others run."""

    capabilities: Capabilities

    def generate(self, requests: Sequence[Request]) -> list[Future[Completion]]:
        """Start these; requests with equal inputs share one prefill where the engine can."""
        ...

    def abort(self, futures: Iterable[Future[Completion]]) -> None:
        """Finish these now with the tokens they have (finish reason `abort`)."""
        ...

    def end_session(self, session: str) -> None:
        """No more requests of this session will come: its KV can go."""
        ...

    def expect_return(self, session: str, seconds: float) -> None:
        """The session's next request will probably come in so many seconds.

        When memory is short, the engine drops the KV of sessions that are expected back last.
        """
        ...

    def pause(self) -> None:
        """Stop generating but keep all requests; returns when the engine is idle."""
        ...

    def resume(self) -> None: ...

    def load_weights(self, stream: Iterable[tuple[str, Tensor]], version: int) -> float | None:
        """Load new weights; drops all KV that later requests could reuse, sessions included.

        Returns the seconds spent comparing them, where the engine does that itself.
        """
        ...

    def digests(self) -> dict[str, Tensor]:
        """A checksum of every weight (engines/digests.py), where capabilities.digests."""
        ...

    def local_weight(self, name: str, whole: Tensor) -> Tensor:
        """What this process holds of a weight in the engine's dtype, where capabilities.digests: all of it unless other
        ranks have a part; of weights that it rounds, the bytes."""
        ...

    def score(self, rows: Sequence[ModelInput | Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        """Log-prob of each token given those before it (0 for the first token of a row)."""
        ...

    def sleep(self, level: int = 1) -> None:
        """Free memory: level 1 the cache, level 2 the weights too."""
        ...

    def wake(self) -> None: ...

    def stats(self) -> dict[str, float]:
        """Counters since the last call."""
        ...

    def step(self) -> bool:
        """One step of an engine without a thread of its own; False if there is nothing to do."""
        ...

    def close(self) -> None: ...
