"""Length limits and sampling."""

from __future__ import annotations

from burnish.dialects.openrlhf.roles import ROLLOUT
from burnish.dialects.openrlhf.translator import KeyMapping, Translator

MAPPINGS = (
    KeyMapping("temperature", f"{ROLLOUT}.temperature"),
    KeyMapping("top_p", f"{ROLLOUT}.top_p"),
)
PROMPT, RESPONSE = "data.max_prompt_length", "data.max_response_length"


def translate(t: Translator) -> None:
    t.set_all(MAPPINGS)
    t.set("top_k", f"{ROLLOUT}.top_k", t.get("top_k") or -1, "0 means off" if t.get("top_k") == 0 else "")
    t.set_implicit("data.truncation", "left", "OpenRLHF truncates prompts on the left")
    has_total_limit = t.command.is_dotted or t.has("max_new_tokens")
    if has_total_limit and not (t.has("prompt_max_len") or t.has("generate_max_len")):
        _total_limit(t)
    else:
        _separate_limits(t)


def _separate_limits(t: Translator) -> None:
    """v0.9.2: separate limits for prompt and response."""
    t.set("prompt_max_len", PROMPT)
    t.set("generate_max_len", RESPONSE)
    total, max_len = t.get("prompt_max_len") + t.get("generate_max_len"), t.get("max_len")
    if t.has("max_new_tokens"):
        t.refuse(
            "max_new_tokens", f"the name of {t.spelling('generate_max_len')} in later versions: remove one of them"
        )
    if not t.has("max_len"):
        return
    if not (t.has("prompt_max_len") or t.has("generate_max_len")):
        why = "ambiguous: the engine's limit before v0.9.8, prompt plus response since then: add --max_new_tokens N"
        t.refuse("max_len", why)
    elif max_len <= t.get("prompt_max_len"):
        t.refuse("max_len", f"leaves no tokens for a response after {t.spelling('prompt_max_len')}")
    else:
        why = f"less than prompt and response together ({total}): responses to long prompts are truncated"
        t.set("max_len", f"{ROLLOUT}.max_model_len", why=why if max_len < total else "")


def _total_limit(t: Translator) -> None:
    """Later versions: a limit for prompt plus response, and one for the response."""
    total, response = t.get("max_len"), t.get("max_new_tokens")
    if total is None:
        t.refuse("max_len", f"required with {t.spelling('max_new_tokens')}: the limit of prompt plus response")
    elif response is None:
        why = f"without {t.spelling('max_new_tokens')}, a response may use all tokens that its prompt leaves"
        t.set("max_len", f"{ROLLOUT}.max_model_len", why=why)
        t.set("max_len", PROMPT, total - 1, "leaves at least one token for the response")
        t.set("max_len", RESPONSE, total - 1, why)
    elif response >= total:
        t.refuse("max_new_tokens", f"leaves no tokens for a prompt in {t.spelling('max_len')} {total}")
    else:
        t.set("max_len", PROMPT, total - response, f"{total} total - {response} new tokens = {total - response}")
        t.set("max_new_tokens", RESPONSE)
