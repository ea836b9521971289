"""Bodies and replies of SGLang's /generate: our Sampling as its parameters, its replies as our completions.

SGLang reports log-softmax(logits / temperature) over all tokens, before top_k, top_p and min_p, as the engine protocol
wants it. But penalties, min_tokens and banned tokens change the logits before, and so the log-probs. Such responses are
scored again, as prompts; SGLang scores prompts at temperature 1 only, so other temperatures are refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from burnish.errors import UserError
from burnish.rollout.engine import Completion, Request, Sampling
from burnish.rollout.stop import CONTEXT, Decode, Finish, finish

BAN = -1e9  # added to the logit of a banned token
MAX_PENALTY = 2.0
LOGIT_CHANGES = ("min_tokens", "presence_penalty", "frequency_penalty", "bad_words")

Top = list[list[tuple[int, float]]]


def refusals(sampling: Sampling, section: str) -> Iterator[UserError]:
    """Sampling settings that SGLang does not support."""

    def refusal(name: str, value: object, reason: str) -> UserError:
        return UserError(f"not supported by the sglang engine: {reason}", key=f"{section}.{name}", value=value)

    if sampling.fire:
        yield refusal("use_fire_sampling", True, "it has no separate temperature for the first token")
    if sampling.repetition_penalty != 1:
        reason = "it counts only response tokens, not prompt tokens"
        yield refusal("repetition_penalty", sampling.repetition_penalty, reason)
    for name in ("presence_penalty", "frequency_penalty"):
        if abs(getattr(sampling, name)) > MAX_PENALTY:
            yield refusal(
                name, getattr(sampling, name), f"it accepts penalties from {-MAX_PENALTY:g} to {MAX_PENALTY:g}"
            )
    if any(len(word) > 1 for word in sampling.bad_words):
        yield refusal("bad_words", None, "it can ban only words of one token; one of these has several")
    if sampling.min_tokens and sampling.stop:
        yield refusal("min_tokens", sampling.min_tokens, f"a stop string ({section}.stop) would end a response earlier")
    if sampling.min_tokens and sampling.ignore_eos and sampling.stop_token_ids:
        reason = f"with {section}.ignore_eos a token of {section}.stop_token_ids would end a response earlier"
        yield refusal("min_tokens", sampling.min_tokens, reason)
    if any(getattr(sampling, name) for name in LOGIT_CHANGES) and not sampling.greedy and sampling.temperature != 1:
        names = ", ".join(name for name in LOGIT_CHANGES if getattr(sampling, name))
        yield refusal("temperature", sampling.temperature, f"with {names} it reports log-probs at temperature 1 only")


@dataclass
class Score:
    """Log-probs of some tokens, and the top tokens at each position."""

    log_probs: list[float]
    top: Top


@dataclass(eq=False)
class RunningRequest:
    """A request in progress. A pause aborts its call and keeps the tokens; the next call continues after them."""

    request: Request
    future: Future[Completion]
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: Top = field(default_factory=list)
    rid: str = ""  # of the current call
    aborted: bool = False  # by the caller
    task: Any = None  # its asyncio task; without a reference it could be garbage collected

    def body(self, eos_ids: Sequence[int], seeded: bool) -> dict[str, Any]:
        """The next call; its prompt is everything so far."""
        # A new rid each time, so that a late abort cannot hit the next call. The server aborts every request whose rid
        # starts with the given one, so all have the same length.
        self.rid = uuid.uuid4().hex
        params = sampling_params(self.request, eos_ids, seeded)
        params["max_new_tokens"] -= len(self.ids)
        return {
            "rid": self.rid,
            "input_ids": [*self.request.input.ids, *self.ids],
            "sampling_params": params,
            "return_logprob": True,
            "top_logprobs_num": self.request.sampling.logprobs or 0,
            "stream": False,
        }

    def take(self, reply: dict[str, Any], version: int) -> Finish | None:
        """Append the reply's tokens; returns why the server ended the response, None if the call was aborted."""
        meta = reply["meta_info"]
        entries = meta.get("output_token_logprobs") or []  # none if it was aborted before its first token
        self.ids += [entry[1] for entry in entries]
        self.log_probs += [entry[0] for entry in entries]
        self.versions += [version] * len(entries)
        self.top += top_entries(meta.get("output_top_logprobs"), len(entries))
        reason = meta["finish_reason"]
        if reason["type"] == "abort":
            return None
        matched = reason.get("matched")
        return Finish(reason["type"], matched if isinstance(matched, int) else None)

    def restart(self) -> None:
        """Discard all tokens. Penalties count from the beginning of a response, so it cannot be continued."""
        self.ids, self.log_probs, self.versions, self.top = [], [], [], []

    def truncate(self, length: int) -> None:
        for column in (self.ids, self.log_probs, self.versions, self.top):
            del column[length:]

    def completion(self, end: Finish) -> Completion:
        top = None if self.request.sampling.logprobs is None else self.top
        return Completion(self.ids, self.log_probs, self.versions, end.reason, end.stop, top)


def sampling_params(request: Request, eos_ids: Sequence[int], seeded: bool) -> dict[str, Any]:
    sampling = request.sampling
    # With ignore_eos the server ignores all stop tokens; `find_end` applies them afterwards.
    end_ids = [] if sampling.ignore_eos else sorted({*eos_ids, *sampling.stop_token_ids})
    params = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_k": sampling.top_k if sampling.top_k > 0 else -1,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "min_new_tokens": 0 if sampling.ignore_eos else sampling.min_tokens,
        "ignore_eos": sampling.ignore_eos,
        "stop": list(sampling.stop) or None,
        "stop_token_ids": end_ids or None,
        "logit_bias": {str(word[0]): BAN for word in sampling.bad_words} or None,
        "sampling_seed": request.seed if seeded else None,
    }
    return {name: value for name, value in params.items() if value is not None}


def scoring_body(ids: Sequence[int], start: int, num_top: int = 0) -> dict[str, Any]:
    """A call that generates nothing and returns the log-probs of `ids` from position `start` on."""
    return {
        "rid": uuid.uuid4().hex,
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": max(0, start - 1),
        "top_logprobs_num": num_top,
        "stream": False,
    }


def score_of(reply: dict[str, Any], count: int) -> Score | None:
    """Of the last `count` tokens; None if the call was aborted."""
    meta = reply["meta_info"]
    if meta["finish_reason"] is not None and meta["finish_reason"]["type"] == "abort":
        return None
    entries = meta["input_token_logprobs"][-count:] if count else []
    if len(entries) != count or any(entry[0] is None for entry in entries):
        raise RuntimeError(f"SGLang returned log-probs of {len(entries)} tokens instead of {count}")
    top = (meta.get("input_top_logprobs") or [])[-count:] if count else []
    return Score([entry[0] for entry in entries], top_entries(top, count))


def top_entries(entries: Sequence[Any] | None, count: int) -> Top:
    """(token, log-prob) pairs of each position, best first."""
    if not entries:
        return [[] for _ in range(count)]
    return [
        sorted(((token, value) for value, token, _ in position or ()), key=lambda pair: -pair[1])
        for position in entries
    ]


def find_end(
    ids: Sequence[int], start: int, sampling: Sampling, eos_ids: Collection[int], decode: Decode | None
) -> tuple[int, Finish] | None:
    """Length at which a response ends by our rules, which differ from the server's, and why; not before `start`."""
    window = max((len(text.encode()) for text in sampling.stop), default=0) + CONTEXT
    for length in range(start + 1, len(ids) + 1):
        end = finish(ids[max(0, length - window) : length], sampling, eos_ids, decode)
        if end is not None:
            return length, end
    return (len(ids), Finish("length")) if len(ids) >= sampling.max_tokens else None
