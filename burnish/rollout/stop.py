"""When a response is over, and what its reader sees of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from burnish.rollout.engine import FinishReason, Sampling

Decode = Callable[[Sequence[int]], str]

CONTEXT = 16  # tokens decoded before a stop string could begin: the first tokens of a text may lose a space or a byte
HALF_A_CHARACTER = "\ufffd"  # how a text ends whose last character is not complete yet


class Finish(NamedTuple):
    reason: FinishReason
    stop: str | int | None = None  # the stop string or the stop token


def finish(tokens: Sequence[int], sampling: Sampling, eos_ids: Collection[int], decode: Decode | None) -> Finish | None:
    """Does the newest token end the response? It was not over before."""
    newest = tokens[-1]
    if newest in eos_ids and not sampling.ignore_eos:
        return Finish("stop")
    if newest in sampling.stop_token_ids:
        return Finish("stop", newest)
    if sampling.stop and len(tokens) > sampling.min_tokens:
        found = stop_string(tokens, sampling.stop, decode)
        if found is not None:
            return Finish("stop", found)
    return Finish("length") if len(tokens) >= sampling.max_tokens else None


def stop_string(tokens: Sequence[int], stop: Sequence[str], decode: Decode) -> str | None:
    """The first of these strings that the newest token completes."""
    longest = max(len(text.encode()) for text in stop)  # a token has at least a byte
    tail = tokens[-(longest + CONTEXT) :]
    return next((text for text in stop if completed_at(tail, text, decode) >= 0), None)


def completed_at(tokens: Sequence[int], stop: str, decode: Decode) -> int:
    """Where in the tokens' text the stop string begins that the last token completes; -1 if it does not."""
    known = len(decode(tokens[:-1]).rstrip(HALF_A_CHARACTER))
    return decode(tokens).find(stop, max(0, known - len(stop) + 1))


def visible_text(ids: Sequence[int], stop_reason: str | int | None, decode: Decode) -> str:
    """The response's text without the stop token or stop string that ended it. Training keeps the tokens as sampled."""
    if isinstance(stop_reason, int):
        return decode(ids[:-1])
    return decode(ids) if stop_reason is None else decode(ids)[: completed_at(ids, stop_reason, decode)]
