"""Lengths and sampling."""

from __future__ import annotations

from burnish.dialects.openrlhf.estimators import ROLLOUT
from burnish.dialects.openrlhf.writing import Row, Writing

ROWS = (
    Row("temperature", f"{ROLLOUT}.temperature"),
    Row("top_p", f"{ROLLOUT}.top_p"),
)
PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"


def write(w: Writing) -> None:
    w.rows(ROWS)
    w.put("top_k", f"{ROLLOUT}.top_k", w.get("top_k") or -1, "0 is off, too" if w.get("top_k") == 0 else "")
    w.itself("data.truncation", "left", "a longer prompt keeps its last tokens")
    later = w.command.is_dotted or w.given("max_new_tokens")
    if later and not (w.given("prompt_max_len") or w.given("generate_max_len")):
        _in_all(w)
    else:
        _apart(w)


def _apart(w: Writing) -> None:
    """v0.9.2: one limit for the prompt, one for the response."""
    w.put("prompt_max_len", PROMPT)
    w.put("generate_max_len", RESPONSE)
    total, asked = w.get("prompt_max_len") + w.get("generate_max_len"), w.get("max_len")
    if w.given("max_new_tokens"):
        w.refuse("max_new_tokens", f"is {w.name('generate_max_len')} in later versions: leave one of them out")
    if not w.given("max_len"):
        return
    if not (w.given("prompt_max_len") or w.given("generate_max_len")):
        why = "before v0.9.8 the engine's limit, since then prompt and response together: add --max_new_tokens N"
        w.refuse("max_len", why)
    elif asked <= w.get("prompt_max_len"):
        w.refuse("max_len", f"leaves no room for a response after {w.name('prompt_max_len')}")
    else:
        ends = f"less than prompt and response together ({total}): responses to long prompts end early"
        w.put("max_len", f"{ROLLOUT}.max_model_len", why=ends if asked < total else "")


def _in_all(w: Writing) -> None:
    """Later versions: prompt and response together, and the response's part of it."""
    total, response = w.get("max_len"), w.get("max_new_tokens")
    if total is None:
        w.refuse("max_len", f"is needed beside {w.name('max_new_tokens')}: prompt and response together")
    elif response is None:
        why = f"without {w.name('max_new_tokens')} a response gets what its prompt leaves"
        w.put("max_len", f"{ROLLOUT}.max_model_len", why=why)
        w.put("max_len", PROMPT, total - 1, "a prompt leaves room for one token at least")
        w.put("max_len", RESPONSE, total - 1, why)
    elif response >= total:
        w.refuse("max_new_tokens", f"leaves no room for a prompt in {w.name('max_len')} {total}")
    else:
        w.put("max_len", PROMPT, total - response, f"{total} in all - {response} new tokens = {total - response}")
        w.put("max_new_tokens", RESPONSE)
