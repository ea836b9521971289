"""The importance correction between engine and trainer."""

from __future__ import annotations

from burnish.dialects.openrlhf.estimators import ROLLOUT
from burnish.dialects.openrlhf.writing import Writing

CORRECTION = "algorithm.rollout_correction"
FLAGS = ("use_icepop", "vllm_is_truncated_threshold", "vllm_is_correction_type")


def write(w: Writing) -> None:
    if not w.get("enable_vllm_is_correction"):
        for name in FLAGS:
            w.inert(name, f"nothing is corrected without {w.name('enable_vllm_is_correction')}")
        return
    w.put("enable_vllm_is_correction", f"{ROLLOUT}.calculate_log_probs")
    if w.get("policy_loss_type") == "gspo":
        why = "gspo takes its ratio against the engine's log-probs instead"
        w.put("enable_vllm_is_correction", f"{CORRECTION}.bypass_mode", True, why)
        for name in FLAGS:
            w.inert(name, why)
        return
    w.put("enable_vllm_is_correction", f"{CORRECTION}.rollout_is", "token", "each token's loss times its weight")
    _bounds(w)


def _bounds(w: Writing) -> None:
    low, high = w.get("vllm_is_truncated_threshold")
    kind = "icepop" if w.get("use_icepop") else w.get("vllm_is_correction_type")
    flag = "use_icepop" if w.given("use_icepop") else "vllm_is_correction_type"
    w.told |= {"use_icepop", "vllm_is_correction_type"}
    if not 0 < low < high:
        w.refuse("vllm_is_truncated_threshold", "needs two numbers above 0, the smaller one first")
    elif kind == "seq-mask-tis":
        why = "theirs sets the weights of whole sequences to 0 and still counts their tokens, which has no key here"
        w.refuse(flag, f"{why}: use tis or icepop")
    elif kind == "icepop":
        bounds = f"{low!r}_{high!r}"
        w.put("vllm_is_truncated_threshold", f"{CORRECTION}.rollout_is_threshold", bounds, "weights outside become 0")
        w.elsewhere(flag, f"{CORRECTION}.rollout_is_threshold={bounds} has two numbers")
    else:
        why = f"weights are held within {low:g} to {high:g}"
        w.put("vllm_is_truncated_threshold", f"{CORRECTION}.rollout_is_threshold", repr(high), why)
        w.put("vllm_is_truncated_threshold", f"{CORRECTION}.rollout_is_threshold_lower", low, why)
        w.elsewhere(flag, why)
