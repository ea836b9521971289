"""Prompts to tokens: chat template, tokenizer, truncation. Imports no torch, because worker processes load this."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from burnish.data.pictures import RawMedia, VisionEncoder, placeholder_text, texts
from burnish.data.prompt import Prompt
from burnish.errors import UserError
from burnish.media import InvalidMedia
from burnish.registry import Registry

MAX_CHARACTERS = 16 * 2**20  # of a rendered prompt: tokenizing it takes ten times its memory
TRUNCATIONS = Registry("truncation", key="data.truncation")

# Set by the encoder; a user's value would be overridden silently.
RESERVED_KWARGS = frozenset({"tokenize", "return_tensors", "return_dict", "padding", "truncation", "max_length"})


Truncate = Callable[[Sequence[int], int, str], Sequence[int]]  # tokens, limit, where the row is
PROBE = "BURNISHxPROBE"


class TemplateFailure(Exception):
    """The chat template raised on a prompt."""


@dataclass(frozen=True)
class Encoded:
    """The tokens of a prompt, and its processed pictures with the spans of tokens that stand for them."""

    ids: list[int]
    media: tuple[Any, ...] = ()


@dataclass(frozen=True)
class PromptEncoder:
    """A tokenizer and the arguments of its chat template. Picklable if the tokenizer is."""

    tokenizer: Any
    template_kwargs: dict[str, Any]
    use_template: bool = True
    input_template: str | None = None  # text with {}, where no chat template applies
    tools: tuple[dict[str, Any], ...] = ()  # schemas that the chat template shows the model
    vision: VisionEncoder | None = None  # None: the model takes text only

    def __post_init__(self) -> None:
        reserved = sorted(RESERVED_KWARGS & self.template_kwargs.keys())
        if reserved:
            key = "data.apply_chat_template_kwargs"
            raise UserError(f"{', '.join(reserved)} cannot be set here", key=key, hint=f"~{key}.{reserved[0]}")

    @property
    def tool_names(self) -> list[str]:
        return [schema["function"]["name"] for schema in self.tools]

    @property
    def has_template(self) -> bool:
        template = getattr(self.tokenizer, "chat_template", None) or self.template_kwargs.get("chat_template")
        return self.use_template and bool(template)

    def text(self, prompt: Prompt) -> str:
        """The prompt as text, with the header of the assistant turn to generate."""
        if prompt.messages is None:
            return self.tokenizer.decode(prompt.ids)
        if self.has_template:
            return self._templated(prompt.messages, prompt.tools)
        if prompt.plain_text is not None:
            return (self.input_template or "{}").replace("{}", self._plain_text(prompt))
        raise UserError(
            "the prompts are chat messages, and the tokenizer has no chat template",
            allowed="an instruct model, a chat template, or prompts that are plain strings",
            hint="data.apply_chat_template_kwargs.chat_template='{% for m in messages %}{{ m.content }}{% endfor %}'",
        )

    def _plain_text(self, prompt: Prompt) -> str:
        if self.vision is None or not prompt.media:
            return prompt.plain_text or ""
        return "".join(placeholder_text(m["content"], self.vision.placeholders) for m in prompt.messages or [])

    def _templated(self, messages: list[dict[str, Any]], names: Collection[str] | None) -> str:
        kwargs = {"add_generation_prompt": True, **self.template_kwargs}
        tools = [schema for schema in self.tools if names is None or schema["function"]["name"] in names]
        if tools:
            kwargs["tools"] = tools
        if self.vision is not None and not self._takes_strings:
            messages = [_as_parts(message) for message in messages]
        text = self._rendered(messages, kwargs)
        if len(text) > MAX_CHARACTERS:
            raise TemplateFailure(f"it makes {len(text):,} characters of a prompt; the limit is {MAX_CHARACTERS:,}")
        return text

    def _rendered(self, messages: list[dict[str, Any]], kwargs: dict[str, Any]) -> str:
        try:
            return self.tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        except Exception as error:  # a template is the model author's program and may raise anything
            raise TemplateFailure(f"{type(error).__name__}: {error}") from error

    @cached_property
    def _takes_strings(self) -> bool:
        """Whether the template shows contents that are strings. Some of vision models show lists of parts only, and
        render nothing for a string."""
        try:
            return PROBE in self._rendered([{"role": "user", "content": PROBE}], dict(self.template_kwargs))
        except TemplateFailure:
            return False

    def ids(self, prompt: Prompt) -> list[int]:
        """The tokens of the prompt, pictures included."""
        return self.encode(prompt, pixels=False).ids

    def encode(self, prompt: Prompt, *, pixels: bool = True) -> Encoded:
        """The tokens of the prompt, and its pictures. InvalidMedia does not name the row.

        With `pixels=False`, pictures are decoded but not processed where possible: for lengths.
        """
        if prompt.ids is not None:
            return Encoded(prompt.ids)
        # A template writes its special tokens itself; plain text gets those of the tokenizer, such as a leading BOS.
        add_special_tokens = not self.has_template
        if self.vision is None:
            return Encoded(list(self.tokenizer(self.text(prompt), add_special_tokens=add_special_tokens)["input_ids"]))
        self.check_texts(prompt.messages or [])
        return self.encode_text(self.text(prompt), prompt.media, add_special_tokens=add_special_tokens, pixels=pixels)

    def encode_text(
        self,
        text: str,
        media: Sequence[RawMedia] = (),
        *,
        add_special_tokens: bool = False,
        offset: int = 0,
        pixels: bool = True,
    ) -> Encoded:
        """The tokens of a rendered text with one placeholder for each picture."""
        if self.vision is None:
            return Encoded(list(self.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]))
        for kind, placeholder in self.vision.placeholders.items():
            shown, given = text.count(placeholder), sum(item.kind == kind for item in media)
            if shown != given:
                raise InvalidMedia(
                    f"the chat template shows {shown} placeholders {placeholder!r} for {given} {kind}s",
                    key=f"data.{kind}_key",
                )
        images = [item.read() for item in media if item.kind == "image"]
        videos = [item.read() for item in media if item.kind == "video"]
        try:
            encoded = self.vision.encode(
                text, images, videos, add_special_tokens=add_special_tokens, offset=offset, pixels=pixels
            )
        except (ValueError, ArithmeticError) as error:  # processors refuse extreme sizes so
            raise InvalidMedia(f"the model's processor refuses it: {error}") from error
        return Encoded(list(encoded.ids), tuple(encoded.media))

    def take_shown(self, text: str, waiting: list[RawMedia]) -> list[RawMedia]:
        """Remove the next pictures that a part of a rendered text has placeholders for; returns them."""
        if self.vision is None:
            return []
        counts = {kind: text.count(placeholder) for kind, placeholder in self.vision.placeholders.items()}
        shown = []
        for item in list(waiting):
            if counts.get(item.kind, 0) > 0:
                counts[item.kind] -= 1
                waiting.remove(item)
                shown.append(item)
        return shown

    def check_texts(self, messages: Sequence[dict[str, Any]]) -> None:
        """Refuse a text with a token that stands for a picture: it would shift the pictures of the prompt."""
        assert self.vision is not None
        for kind, placeholder in self.vision.placeholders.items():
            if any(placeholder in text for text in texts(messages)):
                problem = f"the text contains {placeholder!r}, which the model reads as the place of a picture ({kind})"
                raise InvalidMedia(problem, key=f"data.{kind}_key")

    def content_ids(self, prompt: Prompt) -> list[int]:
        """The tokens of the messages' contents, without template and special tokens."""
        return list(self.tokenizer(prompt.contents(), add_special_tokens=False)["input_ids"])


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def truncate_spans(kept: Sequence[int], length: int, spans: Sequence[tuple[int, int]]) -> list[int] | None:
    """New offsets of spans (offset, number of tokens), if these positions of `length` are kept; None if one is cut.

    The tokens beside a span must stay too: models mark the start and end of a picture with them.
    """
    places = {position: place for place, position in enumerate(kept)}
    offsets = []
    for offset, count in spans:
        needed = range(max(offset - 1, 0), min(offset + count + 1, length))
        first = places.get(needed[0])
        if first is None or places.get(needed[-1]) != first + len(needed) - 1:
            return None
        offsets.append(places[offset])
    return offsets


def truncated(encoded: Encoded, truncate: Truncate, limit: int, where: str, limit_key: str) -> Encoded:
    """The prompt after a truncation; UserError if that would cut or drop a picture."""
    if not encoded.media:
        return Encoded(list(truncate(encoded.ids, limit, where)))
    length = len(encoded.ids)
    kept = truncate(range(length), limit, where)
    offsets = truncate_spans(kept, length, [(item.offset, item.num_tokens) for item in encoded.media])
    if offsets is None:
        raise cuts_a_picture(where, length, limit, limit_key)
    media = tuple(item.at(offset) for item, offset in zip(encoded.media, offsets, strict=True))
    return Encoded([encoded.ids[position] for position in kept], media)


def cuts_a_picture(where: str, length: int, limit: int, limit_key: str, key: str = "data.truncation") -> UserError:
    return UserError(
        f"{where} has {length} tokens, and a truncation to {limit_key}={limit} would cut or drop a picture",
        key=key,
        hint=f"{limit_key}={length}, or shorter texts"
        + (", or data.filter_overlong_prompts=true to drop such rows" if limit_key.endswith("prompt_length") else ""),
    )


@TRUNCATIONS.register("error", before_start=True)
def refuse(ids: Sequence[int], limit: int, where: str) -> Sequence[int]:
    """Longer prompts are an error; `before_start` measures all rows before the run starts."""
    if len(ids) > limit:
        raise too_long(f"{where} has {len(ids)} tokens", limit, len(ids))
    return ids


@TRUNCATIONS.register("left", before_start=False)
def keep_end(ids: Sequence[int], limit: int, where: str) -> Sequence[int]:
    return ids[max(len(ids) - limit, 0) :]


@TRUNCATIONS.register("right", before_start=False)
def keep_beginning(ids: Sequence[int], limit: int, where: str) -> Sequence[int]:
    return ids[:limit]


@TRUNCATIONS.register("middle", before_start=False)
def keep_both_ends(ids: Sequence[int], limit: int, where: str) -> Sequence[int]:
    """The first floor(limit / 2) tokens and as many of the last as fit."""
    if len(ids) <= limit:
        return ids
    head = limit // 2
    return [*ids[:head], *ids[len(ids) - (limit - head) :]]


def too_long(problem: str, limit: int, longest: int) -> UserError:
    return UserError(
        f"{problem}, more than data.max_prompt_length={limit}",
        key="data.truncation",
        value="error",
        hint=f"data.max_prompt_length={longest} to fit it, data.filter_overlong_prompts=true to drop such rows, "
        "or data.truncation=left (right, middle) to truncate them",
    )
