"""When a response ends, and its visible text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from burnish.rollout.engine import FinishReason, Sampling

Decode = Callable[[Sequence[int]], str]

CONTEXT = 16  # tokens decoded before a stop string could start: decoding may drop a space or byte of the first tokens
INCOMPLETE_CHARACTER = "\ufffd"  # at the end of a text whose last character is still incomplete


class Finish(NamedTuple):
    reason: FinishReason
    stop: str | int | None = None  # the stop string or the stop token


def finish(tokens: Sequence[int], sampling: Sampling, eos_ids: Collection[int], decode: Decode | None) -> Finish | None:
    """Why the newest token ends the response; None if it does not. No earlier token may have ended it."""
    newest = tokens[-1]
    if newest in eos_ids and not sampling.ignore_eos:
        return Finish("stop")
    if newest in sampling.stop_token_ids:
        return Finish("stop", newest)
    if sampling.stop and decode is not None and len(tokens) > sampling.min_tokens:
        text = stop_string(tokens, sampling.stop, decode)
        if text is not None:
            return Finish("stop", text)
    return Finish("length") if len(tokens) >= sampling.max_tokens else None


def stop_string(tokens: Sequence[int], stop: Sequence[str], decode: Decode) -> str | None:
    """The first of these strings that the newest token completes."""
    longest = max(len(text.encode()) for text in stop)  # bytes; a token has at least one
    tail = tokens[-(longest + CONTEXT) :]
    return next((text for text in stop if completed_at(tail, text, decode) >= 0), None)


def completed_at(tokens: Sequence[int], stop: str, decode: Decode) -> int:
    """Index in the tokens' text of the stop string that the last token completes; -1 if it completes none."""
    num_before = len(decode(tokens[:-1]).rstrip(INCOMPLETE_CHARACTER))
    return decode(tokens).find(stop, max(0, num_before - len(stop) + 1))


def visible_text(ids: Sequence[int], stop_reason: str | int | None, decode: Decode) -> str:
    """The response's text without the stop token or stop string that ended it. Training keeps the tokens as sampled."""
    if isinstance(stop_reason, int):
        return decode(ids[:-1])
    return decode(ids) if stop_reason is None else decode(ids)[: completed_at(ids, stop_reason, decode)]
