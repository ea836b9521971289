"""EpisodeFailed: somebody's interaction, environment or agent failed in one conversation."""

from __future__ import annotations


class EpisodeFailed(Exception):
    """Ends the conversation. What was sampled until then gets the score that reward.on_error says."""


def failed(what: str, error: BaseException) -> EpisodeFailed:
    """The same with the class of an exception that a user's code raised."""
    return EpisodeFailed(f"{what} failed: {type(error).__name__}: {error}")
