"""Example: tokens with a loss mask, from a prompt and a response or from a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.data.encode import PromptEncoder, TemplateFailure
from burnish.data.prompt import Prompt, read_messages
from burnish.data.tool_messages import check_shown, with_calls
from burnish.data.turn_spans import turn_segments
from burnish.errors import UserError


@dataclass(frozen=True)
class Example:
    """`loss_mask[t]` says whether token t is a target. The first token never is, because nothing predicts it."""

    ids: list[int]
    loss_mask: list[bool]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.loss_mask):
            raise ValueError(f"{len(self.ids)} tokens, but a loss mask of {len(self.loss_mask)}")

    @property
    def response_start(self) -> int:
        """Position of the first target token, or the end."""
        return next((t for t, is_target in enumerate(self.loss_mask) if is_target and t > 0), len(self.ids))

    def truncated(self, truncate: Callable[[Sequence[int]], Sequence[int]]) -> Example:
        """The example after a truncation."""
        kept = truncate(range(len(self.ids)))
        return Example([self.ids[t] for t in kept], [self.loss_mask[t] for t in kept])


def pair_example(encoder: PromptEncoder, prompt: Prompt, response: str) -> Example:
    """A prompt and its response, which ends with EOS like a generated one."""
    prompt_ids = encoder.ids(prompt)
    eos = encoder.tokenizer.eos_token_id
    response_ids = encoder.tokenizer(response, add_special_tokens=False)["input_ids"] + ([] if eos is None else [eos])
    return Example([*prompt_ids, *response_ids], [False] * len(prompt_ids) + [True] * len(response_ids))


def chat_example(encoder: PromptEncoder, messages: list[dict[str, Any]], *, tolerant: bool) -> Example:
    """A conversation: the targets are the assistant turns, tool calls included, without their headers.

    The text is the chat template's rendering of the whole conversation. It is tokenized in the segments of generation
    (up to an assistant header; the assistant's text), so that targets have the tokens that would be sampled.
    `tolerant` accepts a conversation whose segments tokenize differently from the whole.
    """
    messages = with_calls(encoder, messages)
    segments = turn_segments(encoder, messages)
    check_shown(messages, segments)
    ids: list[int] = []
    loss_mask: list[bool] = []
    for text, is_target in segments:
        tokens = encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += tokens
        loss_mask += [is_target] * len(tokens)
    whole = "".join(text for text, _ in segments)
    if not tolerant and ids != list(encoder.tokenizer(whole, add_special_tokens=False)["input_ids"]):
        raise TemplateFailure("its turns tokenize differently alone and together")
    return Example(ids, loss_mask)


def tokenized_example(row: Mapping[str, Any], where: str) -> Example | None:
    """Tokens of a custom dataset: verl's `input_ids`, `attention_mask` and `loss_mask`, padded or not.

    verl's `loss_mask[t]` belongs to the position that predicts token t + 1.
    """
    if row.get("input_ids") is None:
        return None
    if row.get("loss_mask") is None:
        raise UserError(f"{where}: input_ids without loss_mask", key="data.custom_cls.path")
    ids = [int(token) for token in row["input_ids"]]
    attention = (
        [bool(mark) for mark in row["attention_mask"]] if row.get("attention_mask") is not None else [True] * len(ids)
    )
    predicts = [bool(mark) for mark in row["loss_mask"]]
    if not len(ids) == len(attention) == len(predicts):
        raise UserError(
            f"{where}: input_ids, attention_mask and loss_mask differ in length", key="data.custom_cls.path"
        )
    loss_mask = [False, *predicts[:-1]]
    return Example(
        [token for token, is_real in zip(ids, attention, strict=True) if is_real],
        [mark for mark, is_real in zip(loss_mask, attention, strict=True) if is_real],
    )


def nested_value(value: object, keys: Sequence[str], column: str, where: str) -> object:
    """The value under nested keys of a column."""
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            content = f"the keys {', '.join(map(str, value))}" if isinstance(value, Mapping) else type(value).__name__
            raise UserError(f"{where}: {column!r} has no {key!r}, but {content}", key="data.prompt_dict_keys")
        value = value[key]
    return value


def conversation(row: Mapping[str, Any], column: str, where: str) -> list[dict[str, Any]]:
    """The messages of a row, with at least one assistant turn."""
    messages = read_messages(row.get(column), column, where, key="data.multiturn.messages_key")
    if not any(message["role"] == "assistant" for message in messages):
        raise UserError(f"{where}: no assistant message to train on", key="data.train_files")
    return messages
