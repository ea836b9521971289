"""Tokenization drift: a conversation's text against what the chat template renders from its messages."""

from __future__ import annotations

import logging
from collections.abc import Callable

from burnish.registry import Registry
from burnish.rollout.chat.history import AppendHistory
from burnish.rollout.chat.template import NotAppendOnly, squeeze

logger = logging.getLogger(__name__)

CONTEXT = 10  # characters that are shown before and after the first difference
TOKENIZATION_CHECKS = Registry(
    "tokenization check", key="actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode"
)

Normalize = Callable[[str], str]


@TOKENIZATION_CHECKS.register("disable")
def no_check() -> None:
    return None


@TOKENIZATION_CHECKS.register("strict")
def strict() -> DriftCheck:
    return DriftCheck(lambda text: text)


@TOKENIZATION_CHECKS.register("ignore_strippable")
def ignore_strippable() -> DriftCheck:
    """White space may differ."""
    return DriftCheck(squeeze)


class DriftCheck:
    """Counts conversations that differ, and reports the first of them."""

    def __init__(self, normalize: Normalize) -> None:
        self.normalize = normalize
        self.num_drifted = 0

    def drifted(self, history: AppendHistory) -> bool | None:
        """Whether the newest row differs from a rendering of the messages; None where there are no messages."""
        if history.messages is None:
            return None
        difference = self._difference(history)
        if difference is not None:
            self.num_drifted += 1
            if self.num_drifted == 1:
                logger.warning(
                    "tokenization drift: a conversation differs from what the chat template renders from its messages"
                    " (metric rollout/tokenization_drift counts them; multi_turn.tokenization_sanity_check_mode): %s",
                    difference,
                )
        return difference is not None

    def _difference(self, history: AppendHistory) -> str | None:
        template, ids = history.template, history.input.ids
        found = template.decode(ids[:-1] if history.ended is not None else ids)
        assert history.messages is not None
        try:
            expected = template.conversation(history.messages, reply=False)
            expected = template.expanded(expected, *history.pictures)
        except NotAppendOnly as error:
            return error.problem
        if self._begins_with(expected, found):
            return None
        expected = template.decode(template.encode(expected))  # decoding may lose a space that encoding added
        return None if self._begins_with(expected, found) else first_difference(expected, found)

    def _begins_with(self, expected: str, found: str) -> bool:
        """The template may end the last turn in its own way."""
        return self.normalize(expected).startswith(self.normalize(found))


def first_difference(expected: str, found: str) -> str:
    """The first characters that differ, with some before and after them."""
    pairs = enumerate(zip(expected, found, strict=False))
    at = next((number for number, (a, b) in pairs if a != b), min(len(expected), len(found)))
    span = slice(max(0, at - CONTEXT), at + CONTEXT)
    return f"character {at}: sampled {found[span]!r}, rendered {expected[span]!r}"
