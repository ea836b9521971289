"""ChatTemplate: the tokens that a chat template puts between a sampled turn and the next one.

A template renders whole conversations. To append to sampled tokens instead of rendering them again, the text between
two turns is taken from a short conversation in which a marker stands for what was sampled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.media import InvalidMedia
from burnish.models.model_input import ModelInput
from burnish.rollout.agents.failure import EpisodeFailed
from burnish.rollout.chat.forms import (
    AFTER_CALLS,
    AFTER_TEXT,
    CONVERSATIONS,
    RESULT,
    SENTINEL,
    Form,
    Message,
    contents_of,
)
from burnish.rollout.chat.pictures import has_pictures, pictures_of, with_escaped

if TYPE_CHECKING:
    from burnish.media import Video
    from burnish.models.vision.encoder import VisionEncoder

Schema = Mapping[str, Any]  # of a tool, as OpenAI and chat templates have it

QUESTION: Message = {"role": "user", "content": "question"}
THINK, END_THINK = "<think>", "</think>"
THOUGHTS = re.compile(f"{THINK}.*?{END_THINK}", re.DOTALL)
CALL_ID = "call00000"  # nine letters and digits, as Mistral's templates want it
MAX_BOUNDARIES = 4096  # that are remembered


class NotAppendOnly(UserError):
    """The template cannot continue a conversation without changing or dropping some of it."""

    def __init__(self, problems: Iterable[str]) -> None:
        tried = "; ".join(dict.fromkeys(problems))
        super().__init__(
            f"the chat template cannot continue a conversation. Tried {tried}",
            key="actor_rollout_ref.model.path",
            hint="data.apply_chat_template_kwargs.chat_template='...' for another template",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return UserError.__reduce__(self)


@dataclass(frozen=True)
class Boundary:
    """How a template ends a turn under one form."""

    problem: str | None = None  # why this form does not work
    end: int | None = None  # the EOS token in the text that ends the turn; None: there is none
    # The EOS token that ends the last turn of a conversation, and the special token that stands there otherwise.
    last_end: int | None = None
    inner_end: str = ""


@dataclass(frozen=True)
class ChatTemplate:
    """A tokenizer's chat template with the tools and arguments of a run."""

    tokenizer: Any
    eos_ids: Collection[int]  # tokens that end a turn, those that the format of tool calls adds included
    tools: Sequence[Schema] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # data.apply_chat_template_kwargs
    vision: VisionEncoder | None = field(default=None, compare=False)  # of a model that takes images
    _boundaries: dict[Any, Boundary] = field(default_factory=dict, compare=False, repr=False)

    def render(self, messages: Sequence[Message], *, reply: bool = True) -> str:
        """The conversation as text; with `reply`, up to where the assistant's next turn starts."""
        kwargs = {"add_generation_prompt": True, **self.kwargs}
        if not reply:
            kwargs["add_generation_prompt"] = False
        if self.tools:
            kwargs["tools"] = list(self.tools)
        return self.tokenizer.apply_chat_template(list(messages), tokenize=False, **kwargs)

    def encode(self, text: str, after: int | None = None) -> list[int]:
        """Tokens of a text that follows the EOS token `after`: some tokenizers put a space before what comes first."""
        text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair has no tokens
        if after is not None:
            ids = list(self.tokenizer(self.end_texts[after] + text, add_special_tokens=False)["input_ids"])
            if ids[:1] == [after]:
                return ids[1:]
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def input(self, text: str, messages: Sequence[Message], *, after: int | None = None, offset: int = 0) -> ModelInput:
        """Tokens of a text, as `encode`, with the pictures of `messages` behind its placeholders, in order.

        `offset`: where these tokens will stand in a longer input.
        """
        return self.input_with(text, *pictures_of(messages), after=after, offset=offset)

    def input_with(
        self, text: str, images: Sequence[Any], videos: Sequence[Video], *, after: int | None = None, offset: int = 0
    ) -> ModelInput:
        if not images and not videos:
            return ModelInput(tuple(self.encode(text, after)))
        if self.vision is None:
            raise UserError(
                "a tool or an environment returned images or videos, and this model takes text only",
                key="actor_rollout_ref.model.path",
                hint="a vision-language model, or tools that return text",
            )
        try:
            return self._encoded(text, images, videos, after, offset, self.vision)
        except InvalidMedia as error:  # a picture, or what a turn says, of this conversation
            raise EpisodeFailed(error.problem) from error

    def _encoded(
        self,
        text: str,
        images: Sequence[Any],
        videos: Sequence[Video],
        after: int | None,
        offset: int,
        vision: VisionEncoder,
    ) -> ModelInput:
        text = text.encode("utf-8", "replace").decode()
        if after is not None:
            whole = vision.encode(self.end_texts[after] + text, images, videos, offset=offset - 1)
            if whole.ids[:1] == (after,):
                return ModelInput(whole.ids[1:], whole.media)
        return vision.encode(text, images, videos, offset=offset)

    def expanded(self, text: str, images: Sequence[Any], videos: Sequence[Video]) -> str:
        """A rendered text with the first placeholders written out as `decode` writes these pictures."""
        return self.vision.expanded(text, images, videos) if self.vision is not None else text

    def escape(self, messages: Sequence[Message]) -> list[Message]:
        """Messages whose text cannot be taken for a picture's placeholder, where they have pictures."""
        if self.vision is None or not has_pictures(messages):
            return list(messages)
        return with_escaped(messages, self.vision.placeholders.values())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @cached_property
    def end_texts(self) -> dict[int, str]:
        """The EOS tokens as text."""
        return {token: self.decode([token]) for token in self.eos_ids}

    # between two turns

    def between(
        self, messages: Sequence[Message], calls: Sequence[Message] = (), *, ended: int | None = None
    ) -> list[int]:
        """Tokens to append after a sampled turn: its end as far as it lacks one, `messages`, the next turn's start."""
        return list(self.continuation(messages, calls, ended=ended).ids)

    def continuation(
        self, messages: Sequence[Message], calls: Sequence[Message] = (), *, ended: int | None = None, offset: int = 0
    ) -> ModelInput:
        """The same with the pictures of the messages; `offset`: tokens before.

        `calls` are the calls of the sampled turn, by which some templates identify the results. `ended` is the EOS
        token that the model sampled, None if the turn was cut.
        """
        problems = []
        for form in AFTER_CALLS if calls else AFTER_TEXT:
            boundary = self._boundary(form, messages, calls)
            text, problem = "", boundary.problem
            if problem is None:
                turns = [*form.messages([QUESTION]), form.turn(calls), *form.messages(messages)]
                text, problem = self._attempt(turns)
            if problem is None:
                text = text.partition(SENTINEL)[2]
                if all(shows(text, content) for content in contents_of(messages)):
                    text, after = self._not_sampled(text, form, boundary, ended)
                    return self.input(text, messages, after=after, offset=offset)
                problem = "the template drops or changes a message"
            problems.append(f"{form.description}: {problem}")
        raise NotAppendOnly(problems)

    def form(self, messages: Sequence[Message], calls: Sequence[Message] = ()) -> Form:
        """The form in which `between` gives such messages to the template."""
        problems = []
        for form in AFTER_CALLS if calls else AFTER_TEXT:
            problem = self._boundary(form, messages, calls).problem
            if problem is None:
                return form
            problems.append(f"{form.description}: {problem}")
        raise NotAppendOnly(problems)

    def _not_sampled(self, text: str, form: Form, boundary: Boundary, ended: int | None) -> tuple[str, int | None]:
        """What the model has not sampled of the text after a turn: often a newline behind EOS, then the messages.

        Also the EOS token that the text follows, for `encode`.
        """
        if boundary.end is None:
            stands_for_end = ended is not None and ended == boundary.last_end
            return text.removeprefix(boundary.inner_end) if stands_for_end else text, None
        before, end, rest = text.partition(self.end_texts[boundary.end])
        if ended == boundary.end:
            return rest, ended
        closing = before if ended is None and not form.structured else ""  # the end of calls was sampled
        return closing + end + rest, None

    def _boundary(self, form: Form, messages: Sequence[Message], calls: Sequence[Message]) -> Boundary:
        key = (form, *(_identity(entry) for entry in (*messages, *calls)))
        if key not in self._boundaries:
            if len(self._boundaries) >= MAX_BOUNDARIES:
                self._boundaries.clear()
            self._boundaries[key] = self._find_boundary(form, messages, calls)
        return self._boundaries[key]

    def _find_boundary(self, form: Form, messages: Sequence[Message], calls: Sequence[Message]) -> Boundary:
        turn = [*form.messages([QUESTION]), form.turn(calls)]
        text, problem = self._attempt([*turn, *form.messages({**message, "content": RESULT} for message in messages)])
        alone, alone_problem = self._attempt(turn, reply=False)
        if problem or alone_problem:
            return Boundary(problem or alone_problem)
        if SENTINEL not in text:
            return Boundary("the template does not show the turn")
        text, alone = text.partition(SENTINEL)[2], alone.partition(SENTINEL)[2]
        if text.count(RESULT) < len(messages):
            return Boundary("the template drops a message")
        head = text.partition(RESULT)[0]
        found = [(head.find(end), token) for token, end in self.end_texts.items() if end and end in head]
        if found:
            return Boundary(end=min(found)[1])
        if form.structured:
            return Boundary("no EOS token shows where the calls end")
        last_end = next((token for token, end in self.end_texts.items() if end and alone.startswith(end)), None)
        first = self.tokenizer.convert_ids_to_tokens(self.encode(head)[:1])
        inner_end = first[0] if first and first[0] in self.tokenizer.get_added_vocab() else ""
        return Boundary(last_end=last_end, inner_end=inner_end)

    def _attempt(self, messages: Sequence[Message], *, reply: bool = True) -> tuple[str, str | None]:
        """The text, or the problem that the template has with these messages."""
        try:
            return self.render(messages, reply=reply), None
        except Exception as error:  # a template is the model author's program and may raise anything
            return "", f"{type(error).__name__}: {error}"

    # whole conversations

    def conversation(self, messages: Sequence[Message], *, reply: bool = True) -> str:
        """A conversation as a chat server would render it.

        Sampled turns have their text in `content`, with what the template wrote of it, and what the parser read in
        `parsed`. NotAppendOnly if the template drops a message.
        """
        return self.form_and_conversation(messages, reply=reply)[1]

    def form_and_conversation(self, messages: Sequence[Message], *, reply: bool = True) -> tuple[Form, str]:
        """The text, and the form that gave it."""
        contents = contents_of(m for m in messages if m["role"] != "assistant")
        turns = [message for message in messages if "parsed" in message]
        start, end = self.turn_affixes
        # Text without the start that the template adds was not meant as content, and some templates look for calls
        # before they render results.
        as_content = not start.strip() and all(turn["content"].startswith(start) for turn in turns)
        if any(turn["parsed"].calls for turn in turns):
            as_content = as_content and not self.needs_calls
        problems = []
        for form in CONVERSATIONS if as_content else sorted(CONVERSATIONS, key=lambda form: not form.structured):
            form = replace(form, split_thinking=self.splits_thinking)
            text, problem = self._attempt(form.conversation(messages, start, end), reply=reply)
            if problem is None and all(shows(text, content) for content in contents):
                return form, text
            problems.append(f"{form.description}: {problem or 'the template drops a message'}")
        raise NotAppendOnly(problems)

    @cached_property
    def generation_prompt(self) -> str:
        """A question and the start of the turn that answers it."""
        for form in (Form("text"), Form("text", parts=True)):
            text, problem = self._attempt(form.messages([QUESTION]))
            if problem is None and QUESTION["content"] in text:
                return text
        raise NotAppendOnly(["a user message: the template does not show it"])

    @cached_property
    def opened_thinking(self) -> str:
        """What the template writes of a turn before the model does: "<think>" and a line break, or nothing."""
        text = self.generation_prompt
        return text[text.rfind(THINK) :] if text.rstrip().endswith(THINK) else ""

    @cached_property
    def turn_affixes(self) -> tuple[str, str]:
        """What the model samples around the content of a turn: gpt-oss starts with a channel, others with a space."""
        text = self._example(SENTINEL)
        start, _, rest = text.partition(SENTINEL)
        start = start.removeprefix(self.generation_prompt.removesuffix(self.opened_thinking)) if text else ""
        ends = [rest.find(end) for end in self.end_texts.values() if end and end in rest]
        return THOUGHTS.sub("", start).lstrip("\n"), rest[: min(ends)] if ends else ""

    @cached_property
    def splits_thinking(self) -> bool:
        """Whether thinking must be given apart from the content, because the template adds a block of its own."""
        text = self._example(f"{THINK}\nthought\n{END_THINK}\n\n{SENTINEL}")
        return "thought" in text and text.count(END_THINK) > 1

    @cached_property
    def needs_calls(self) -> bool:
        """Whether results are rendered in another way if the turn before them has its calls as text."""
        call = {"type": "function", "id": CALL_ID, "function": {"name": "tool", "arguments": {}}}
        result = {"role": "tool", "name": "tool", "content": RESULT, "tool_call_id": CALL_ID}
        texts = []
        for form in (self.form([result], [call]), Form("text")):
            boundary = self._boundary(form, [result], [call])
            turns = [*form.messages([QUESTION]), form.turn([call]), *form.messages([result])]
            text = self._attempt(turns)[0].partition(SENTINEL)[2]
            texts.append(text if boundary.end is None else text[text.find(self.end_texts[boundary.end]) :])
        return texts[0] != texts[1]

    def _example(self, content: str) -> str:
        """A question and a turn that answers it; nothing if the template does not show it."""
        for form in (Form("text"), Form("text", parts=True)):
            text, problem = self._attempt(
                form.messages([QUESTION, {"role": "assistant", "content": content}]), reply=False
            )
            if problem is None and SENTINEL in text:
                return text
        return ""


def shows(text: str, content: str) -> bool:
    """Whether a text holds a message's content, as it is or as JSON; templates may strip or indent it."""
    squeezed = squeeze(text)
    return any(
        squeeze(form) in squeezed
        for form in (content, json.dumps(content, ensure_ascii=False)[1:-1], json.dumps(content)[1:-1])
    )


def squeeze(text: str) -> str:
    """Without white space."""
    return "".join(text.split())


def _identity(entry: Message) -> tuple[Any, ...]:
    """What the text around a message depends on."""
    name = entry["function"]["name"] if "function" in entry else entry.get("name")
    return entry.get("role"), name, entry.get("tool_call_id"), entry.get("id")
