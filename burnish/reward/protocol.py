"""OpenRLHF's reward protocol: what a reward_func or a reward server answers, read as an Outcome."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.reward.call import plain, read_result
from burnish.reward.sample import INVALID, Outcome


def read_answer(answer: Any, label: str) -> Outcome:
    """{"rewards": [r], "scores": [s], "extra_logs": {...}}, or the rewards alone, for one sample.

    The reward is what is learned from; the score (the reward, where there is none) and the logs are extras.
    """
    if not isinstance(answer, Mapping):
        answer = {"rewards": answer}
    if answer.get("rewards") is None:
        keys = ", ".join(repr(str(key)) for key in list(answer)[:10])
        return Outcome(kind=INVALID, text=f"gave no 'rewards' (keys: {keys or 'none'}) in {label}")
    scores = answer["rewards"] if answer.get("scores") is None else answer["scores"]
    reward, score = (read_result(_only(values), label) for values in (answer["rewards"], scores))
    failed = next((outcome for outcome in (reward, score) if outcome.kind is not None), None)
    if failed is not None:
        return failed
    logs = answer.get("extra_logs")
    logs = {} if logs is None else logs
    if not isinstance(logs, Mapping):
        return Outcome(kind=INVALID, text=f"gave {type(logs).__name__} instead of a mapping as extra_logs in {label}")
    extras = {str(name): plain(_only(value)) for name, value in logs.items()}
    return Outcome(reward.value, {"scores": score.value} | extras)


def _only(values: Any) -> Any:
    """The one entry of a list, tuple, array or tensor of one; anything else as it is."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    while isinstance(values, list | tuple) and len(values) == 1:
        values = values[0]
    return values
