"""What /generate is asked and what it answers: our Sampling in SGLang's words, and its replies in ours.

SGLang reports log-softmax(logits / temperature) over all tokens, before top_k, top_p and min_p cut: what we promise.
But penalties, an end that is held back and banned tokens bend the logits first, and so the log-probs. Such responses
are scored again, as prompts; SGLang scores prompts at temperature 1 only, so at another temperature they are refused.
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

NEVER = -1e9  # added to the logit of a token that must not come
MOST_PENALTY = 2.0
BENDING = ("min_tokens", "presence_penalty", "frequency_penalty", "bad_words")

Top = list[list[tuple[int, float]]]


def refusals(sampling: Sampling, section: str) -> Iterator[UserError]:
    """What SGLang cannot do as our keys say it is done."""

    def no(name: str, value: object, why: str) -> UserError:
        return UserError(f"the engine sglang cannot do this: {why}", key=f"{section}.{name}", value=value)

    if sampling.fire:
        yield no("use_fire_sampling", True, "the first token has no temperature of its own there")
    if sampling.repetition_penalty != 1:
        why = "it would count the tokens of the response only, not those of the prompt"
        yield no("repetition_penalty", sampling.repetition_penalty, why)
    for name in ("presence_penalty", "frequency_penalty"):
        if abs(getattr(sampling, name)) > MOST_PENALTY:
            yield no(name, getattr(sampling, name), f"it takes penalties from {-MOST_PENALTY:g} to {MOST_PENALTY:g}")
    if any(len(word) > 1 for word in sampling.bad_words):
        yield no("bad_words", None, "it can ban single tokens only, and one of these words has several")
    if sampling.min_tokens and sampling.stop:
        yield no("min_tokens", sampling.min_tokens, f"a stop string ({section}.stop) would end a response before that")
    if sampling.min_tokens and sampling.ignore_eos and sampling.stop_token_ids:
        why = f"with {section}.ignore_eos a token of {section}.stop_token_ids would end a response before that"
        yield no("min_tokens", sampling.min_tokens, why)
    if any(getattr(sampling, name) for name in BENDING) and not sampling.greedy and sampling.temperature != 1:
        bent = ", ".join(name for name in BENDING if getattr(sampling, name))
        yield no("temperature", sampling.temperature, f"with {bent} it gives log-probs at temperature 1 only")


@dataclass
class Score:
    """Log-probs of some tokens, and the likeliest ones in the place of each."""

    log_probs: list[float]
    top: Top


@dataclass(eq=False)
class Asked:
    """A request on its way. A pause breaks it off and what it has is kept; the rest is asked for behind that."""

    request: Request
    future: Future[Completion]
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top: Top = field(default_factory=list)
    rid: str = ""  # of the call that runs now
    unwanted: bool = False  # its asker wants no more of it
    task: Any = None  # that sees to it; a task that nobody holds may be collected

    def body(self, eos_ids: Sequence[int], seeded: bool) -> dict[str, Any]:
        """The next call: all that is known so far is the prompt."""
        # A fresh name each time: an abort that comes too late must not hit the next call. The server aborts whatever
        # begins with the name it is given, so all names are equally long.
        self.rid = uuid.uuid4().hex
        params = sampling_params(self.request, eos_ids, seeded)
        params["max_new_tokens"] -= len(self.ids)
        return {
            "rid": self.rid,
            "input_ids": [*self.request.ids, *self.ids],
            "sampling_params": params,
            "return_logprob": True,
            "top_logprobs_num": self.request.sampling.logprobs or 0,
            "stream": False,
        }

    def take(self, reply: dict[str, Any], version: int) -> Finish | None:
        """Keep the reply's tokens; why the response ended in the server's eyes, None if it was broken off."""
        meta = reply["meta_info"]
        entries = meta.get("output_token_logprobs") or []  # none if it was broken off before its first token
        self.ids += [entry[1] for entry in entries]
        self.log_probs += [entry[0] for entry in entries]
        self.versions += [version] * len(entries)
        self.top += top_entries(meta.get("output_top_logprobs"), len(entries))
        reason = meta["finish_reason"]
        if reason["type"] == "abort":
            return None
        matched = reason.get("matched")
        return Finish(reason["type"], matched if isinstance(matched, int) else None)

    def forget(self) -> None:
        """Start again. Penalties count a response from its beginning, so its rest cannot be asked for alone."""
        self.ids, self.log_probs, self.versions, self.top = [], [], [], []

    def cut(self, length: int) -> None:
        for column in (self.ids, self.log_probs, self.versions, self.top):
            del column[length:]

    def completion(self, end: Finish) -> Completion:
        top = None if self.request.sampling.logprobs is None else self.top
        return Completion(self.ids, self.log_probs, self.versions, end.reason, end.stop, top)


def sampling_params(request: Request, eos_ids: Sequence[int], seeded: bool) -> dict[str, Any]:
    sampling = request.sampling
    # With ignore_eos the server looks at no token that might end a response; `ending` does, once it is whole.
    ends = [] if sampling.ignore_eos else sorted({*eos_ids, *sampling.stop_token_ids})
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
        "stop_token_ids": ends or None,
        "logit_bias": {str(word[0]): NEVER for word in sampling.bad_words} or None,
        "sampling_seed": request.seed if seeded else None,
    }
    return {name: value for name, value in params.items() if value is not None}


def scoring_body(ids: Sequence[int], start: int, num_top: int = 0) -> dict[str, Any]:
    """A call that makes no token and gives the log-probs of those it is given, from the place `start` on."""
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
    """Of the last `count` tokens; None if the call was broken off."""
    meta = reply["meta_info"]
    if meta["finish_reason"] is not None and meta["finish_reason"]["type"] == "abort":
        return None
    entries = meta["input_token_logprobs"][-count:] if count else []
    if len(entries) != count or any(entry[0] is None for entry in entries):
        raise RuntimeError(f"SGLang scored {len(entries)} tokens of {count}")
    top = (meta.get("input_top_logprobs") or [])[-count:] if count else []
    return Score([entry[0] for entry in entries], top_entries(top, count))


def top_entries(entries: Sequence[Any] | None, count: int) -> Top:
    """(token, log-prob) pairs of each place, best first."""
    if not entries:
        return [[] for _ in range(count)]
    return [sorted(((token, value) for value, token, _ in place or ()), key=lambda pair: -pair[1]) for place in entries]


def ending(
    ids: Sequence[int], start: int, sampling: Sampling, eos_ids: Collection[int], decode: Decode | None
) -> tuple[int, Finish] | None:
    """Where a response ends by our rules, and why; before the place `start` it does not. The server's are others."""
    window = max((len(text.encode()) for text in sampling.stop), default=0) + CONTEXT
    for place in range(start, len(ids)):
        end = finish(ids[max(0, place + 1 - window) : place + 1], sampling, eos_ids, decode)
        if end is not None:
            return place + 1, end
    return (len(ids), Finish("length")) if len(ids) >= sampling.max_tokens else None
