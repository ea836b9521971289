"""OpenRLHF's reward protocol: parse the result of a reward_func or the response of a reward server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.reward.call import parse_result, plain
from burnish.reward.sample import INVALID, Outcome


def parse_response(response: Any, label: str) -> Outcome:
    """{"rewards": [r], "scores": [s], "extra_logs": {...}}, or the rewards alone, for one sample.

    The reward is used for training; the score (by default the reward) and the logs become extras.
    """
    if not isinstance(response, Mapping):
        response = {"rewards": response}
    if response.get("rewards") is None:
        keys = ", ".join(repr(str(key)) for key in list(response)[:10])
        return Outcome(kind=INVALID, text=f"returned no 'rewards' (keys: {keys or 'none'}) in {label}")
    scores = response["rewards"] if response.get("scores") is None else response["scores"]
    reward, score = (parse_result(_single(values), label) for values in (response["rewards"], scores))
    failed = next((outcome for outcome in (reward, score) if outcome.kind is not None), None)
    if failed is not None:
        return failed
    logs = response.get("extra_logs")
    logs = {} if logs is None else logs
    if not isinstance(logs, Mapping):
        return Outcome(
            kind=INVALID, text=f"returned {type(logs).__name__} instead of a mapping as extra_logs in {label}"
        )
    extras = {str(name): plain(_single(value)) for name, value in logs.items()}
    return Outcome(reward.value, {"scores": score.value} | extras)


def _single(values: Any) -> Any:
    """Unwrap a list, tuple, array or tensor with one entry; return anything else unchanged."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    while isinstance(values, list | tuple) and len(values) == 1:
        values = values[0]
    return values
