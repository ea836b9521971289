"""Prompts to tokens: chat template, tokenizer, truncation. Imports no torch, because worker processes load this."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.data.prompt import Prompt
from burnish.errors import UserError
from burnish.registry import Registry

MAX_CHARACTERS = 16 * 2**20  # of a rendered prompt: tokenizing it takes ten times its memory
TRUNCATIONS = Registry("truncation", key="data.truncation")

# Set by the encoder; a user's value would be overridden silently.
RESERVED_KWARGS = frozenset({"tokenize", "return_tensors", "return_dict", "padding", "truncation", "max_length"})


class TemplateFailure(Exception):
    """The chat template raised on a prompt."""


@dataclass(frozen=True)
class PromptEncoder:
    """A tokenizer and the arguments of its chat template. Picklable if the tokenizer is."""

    tokenizer: Any
    template_kwargs: dict[str, Any]
    use_template: bool = True
    input_template: str | None = None  # text with {}, where no chat template applies
    tools: tuple[dict[str, Any], ...] = ()  # schemas that the chat template shows the model

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
            return (self.input_template or "{}").replace("{}", prompt.plain_text)
        raise UserError(
            "the prompts are chat messages, and the tokenizer has no chat template",
            allowed="an instruct model, a chat template, or prompts that are plain strings",
            hint="data.apply_chat_template_kwargs.chat_template='{% for m in messages %}{{ m.content }}{% endfor %}'",
        )

    def _templated(self, messages: list[dict[str, Any]], names: Collection[str] | None) -> str:
        kwargs = {"add_generation_prompt": True, **self.template_kwargs}
        tools = [schema for schema in self.tools if names is None or schema["function"]["name"] in names]
        if tools:
            kwargs["tools"] = tools
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        except Exception as error:  # a template is the model author's program and may raise anything
            raise TemplateFailure(f"{type(error).__name__}: {error}") from error
        if len(text) > MAX_CHARACTERS:
            raise TemplateFailure(f"it makes {len(text):,} characters of a prompt; the limit is {MAX_CHARACTERS:,}")
        return text

    def ids(self, prompt: Prompt) -> list[int]:
        """The tokens of the prompt."""
        if prompt.ids is not None:
            return prompt.ids
        # A template writes its special tokens itself; plain text gets those of the tokenizer, such as a leading BOS.
        return list(self.tokenizer(self.text(prompt), add_special_tokens=not self.has_template)["input_ids"])

    def content_ids(self, prompt: Prompt) -> list[int]:
        """The tokens of the messages' contents, without template and special tokens."""
        return list(self.tokenizer(prompt.contents(), add_special_tokens=False)["input_ids"])


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
