"""Importance-sampling correction for the mismatch between engine and trainer."""

from __future__ import annotations

from collections.abc import Callable

from burnish.dialects.openrlhf.roles import ROLLOUT
from burnish.dialects.openrlhf.translator import Translator

CORRECTION = "algorithm.rollout_correction"
FLAGS = ("use_icepop", "vllm_is_truncated_threshold", "vllm_is_correction_type")


def translate(t: Translator) -> None:
    if not t.get("enable_vllm_is_correction"):
        for name in FLAGS:
            t.inert(name, f"correction is off without {t.spelling('enable_vllm_is_correction')}")
        return
    t.set("enable_vllm_is_correction", f"{ROLLOUT}.calculate_log_probs")
    if t.get("policy_loss_type") == "gspo":
        why = "OpenRLHF's gspo computes its ratio against the engine's log-probs instead"
        t.set("enable_vllm_is_correction", f"{CORRECTION}.bypass_mode", True, why)
        for name in FLAGS:
            t.inert(name, why)
        return
    t.set(
        "enable_vllm_is_correction",
        f"{CORRECTION}.rollout_is",
        "token",
        "multiplies each token's loss by its importance weight",
    )
    _weights(t)


def _weights(t: Translator) -> None:
    low, high = t.get("vllm_is_truncated_threshold")
    kind = "icepop" if t.get("use_icepop") else t.get("vllm_is_correction_type")
    flag = "use_icepop" if t.has("use_icepop") else "vllm_is_correction_type"
    t.handled |= {"use_icepop", "vllm_is_correction_type"}
    if not 0 < low < high:
        t.refuse("vllm_is_truncated_threshold", "needs two positive numbers, the smaller one first")
    else:
        CORRECTION_TYPES[kind](t, flag, low, high)


def _truncate(t: Translator, flag: str, low: float, high: float) -> None:
    why = f"weights are clamped to [{low:g}, {high:g}]"
    t.set("vllm_is_truncated_threshold", f"{CORRECTION}.rollout_is_threshold", repr(high), why)
    t.set("vllm_is_truncated_threshold", f"{CORRECTION}.rollout_is_threshold_lower", low, why)
    t.converted(flag, why)


def _icepop(t: Translator, flag: str, low: float, high: float) -> None:
    bounds = f"{low!r}_{high!r}"
    why = "weights outside become 0"
    t.set("vllm_is_truncated_threshold", f"{CORRECTION}.rollout_is_threshold", bounds, why)
    t.converted(flag, f"{CORRECTION}.rollout_is_threshold={bounds} has two numbers")


def _sequence_mask(t: Translator, flag: str, low: float, high: float) -> None:
    why = "OpenRLHF sets the weights of whole sequences to 0 and still counts their tokens, which is not supported"
    t.refuse(flag, f"{why}: use tis or icepop")


CORRECTION_TYPES: dict[str, Callable[[Translator, str, float, float], None]] = {
    "tis": _truncate,
    "icepop": _icepop,
    "seq-mask-tis": _sequence_mask,
}
