"""Sampling parameters as users' agents write them (vLLM's names), and Sampling as this package has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.errors import UserError
from burnish.rollout.engine import Sampling

NAMES = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "min_tokens", "ignore_eos", "stop", "stop_token_ids"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)
RENAMED = {"max_new_tokens": "max_tokens"}
# How text is returned, not what is sampled: the engine returns tokens, and always their log-probs. Seeds are the run's.
IGNORED = (
    *("logprobs", "prompt_logprobs", "detokenize", "skip_special_tokens", "spaces_between_special_tokens"),
    *("include_stop_str_in_output", "output_kind", "seed", "n", "best_of", "model"),
)


def sampling_fields(params: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Fields of Sampling that the parameters set; UserError for one that cannot act."""
    fields: dict[str, Any] = {}
    for given, value in params.items():
        name = RENAMED.get(given, given)
        if value is None or given in IGNORED:
            continue
        if name not in NAMES:
            raise UserError(f"{where}: unknown sampling parameter", key=given, value=value, allowed=NAMES)
        fields[name] = _tuple(value) if name in ("stop", "stop_token_ids") else value
    if params.get("n") not in (None, 1):
        raise UserError(f"{where}: one response per request", key="n", value=params["n"], hint="send n requests")
    return fields


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """The distribution that a run samples from, for an agent that passes it back to the engine."""
    return {
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "repetition_penalty": sampling.repetition_penalty,
        "logprobs": True,
    }


def _tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str | int) else tuple(value)
