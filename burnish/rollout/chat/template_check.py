"""What a user should know about a chat template before a run with conversations starts."""

from __future__ import annotations

from collections.abc import Sequence

from burnish.errors import UserError
from burnish.rollout.chat.forms import Message
from burnish.rollout.chat.template import CALL_ID, END_THINK, QUESTION, THINK, ChatTemplate, squeeze
from burnish.rollout.chat.tool_calls import ParsedTurn, ToolCall

NOT_APPEND_ONLY = "the chat template is not append-only"
THOUGHT, ANSWER = "BURNISHxTHOUGHT", "BURNISHxANSWER"
# How models write thinking; the first is the most common.
THINKING = (("<think>\n", "\n</think>\n\n"), ("<|channel>thought\n", "\n<channel|>"), ("[THINK]", "[/THINK]"))


def check_template(template: ChatTemplate, key: str, *, replies: bool) -> list[str]:
    """Refuse, before a model is loaded, a tokenizer whose template cannot continue a conversation.

    Returns notices. `replies`: user messages may follow a turn, not only the results of tools.
    """
    if not getattr(template.tokenizer, "chat_template", None) and "chat_template" not in template.kwargs:
        raise UserError(
            "the tokenizer has no chat template, which conversations need",
            key=key,
            hint="data.apply_chat_template_kwargs.chat_template='...', or an instruct model",
        )
    notices = []
    if replies or not template.tools:
        notices += _not_append_only(template, "a user message", [{"role": "user", "content": "more"}])
    if template.tools:
        name = template.tools[0]["function"]["name"]
        call = ToolCall(name, id=CALL_ID)
        result = {"role": "tool", "name": name, "content": "result", "tool_call_id": CALL_ID}
        if template.form([result], [call.message()]).results == "user":
            notices.append("the chat template has no role for tool results: they are given as user messages")
        notices += _not_append_only(template, "a tool result", [result], [call])
        names = [schema["function"]["name"] for schema in template.tools]
        if not all(name in template.generation_prompt for name in names):
            notices.append("the chat template does not show the tools: the prompts must describe them and their calls")
    return notices


def _not_append_only(
    template: ChatTemplate, what: str, messages: Sequence[Message], calls: Sequence[ToolCall] = ()
) -> list[str]:
    changes = [rewritten(template, messages, calls, thinks=thinks) for thinks in _kinds_of_turns(template)]
    change = next((change for change in changes if change is not None), None)
    return [] if change is None else [f"{NOT_APPEND_ONLY}: when {what} follows a turn, {change}"]


def _kinds_of_turns(template: ChatTemplate) -> list[bool]:
    """Whether turns have thinking in them: the start of a turn says so, or a block that the template adds to a turn."""
    start = template.generation_prompt
    if start.rstrip().endswith(END_THINK):
        return [False]
    plain = template.conversation([QUESTION, _turn(ANSWER, ParsedTurn(ANSWER))], reply=False)
    return [True] if start.rstrip().endswith(THINK) or END_THINK in plain else [False, True]


def _thinking_markup(template: ChatTemplate) -> tuple[str, str]:
    source = str(template.kwargs.get("chat_template") or template.tokenizer.chat_template)
    return next((markup for markup in THINKING if markup[1].strip() in source), THINKING[0])


def _turn(text: str, parsed: ParsedTurn) -> Message:
    return {"role": "assistant", "content": text, "parsed": parsed}


def rewritten(
    template: ChatTemplate, messages: Sequence[Message], calls: Sequence[ToolCall] = (), *, thinks: bool
) -> str | None:
    """What the template changes of a sampled turn once `messages` follow it; None if nothing but white space."""
    template.form(messages, [call.message() for call in calls])  # raises if none works
    opening, closing = _thinking_markup(template)
    start, _ = template.turn_affixes
    text = f"{template.opened_thinking or opening}{THOUGHT}{closing}{ANSWER}" if thinks else ANSWER
    text = text if start.strip() else f"{start}{text}"
    turn = _turn(text, ParsedTurn("" if calls else ANSWER, list(calls), THOUGHT if thinks else ""))
    form, after = template.form_and_conversation([QUESTION, turn, *messages])
    if thinks and THOUGHT not in after:
        return "the thinking of earlier turns is removed"
    before = template.generation_prompt.removesuffix(template.opened_thinking) + text
    if form.structured:  # the template writes the markup of what was sampled: compare it with the turn at the end
        alone = template.render(form.conversation([QUESTION, turn], *template.turn_affixes), reply=False)
        ends = [alone.rfind(marker) + len(marker) for marker in (THOUGHT, ANSWER) if marker in alone]
        before = alone[: max(ends, default=0)]
    expected, found = squeeze(before), squeeze(after)
    if found.startswith(expected):
        return None
    at = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), len(found))
    return f"it becomes {found[max(0, at - 10) : at + 20]!r} instead of {expected[max(0, at - 10) : at + 20]!r}"
