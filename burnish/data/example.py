"""Example: tokens with a loss mask, from a prompt and a response or from a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.data.encode import PromptEncoder, TemplateFailure, truncate_spans
from burnish.data.pictures import RawMedia
from burnish.data.prompt import Prompt, read_messages
from burnish.data.tool_messages import check_shown, with_calls
from burnish.data.turn_spans import turn_segments
from burnish.errors import UserError
from burnish.media import InvalidMedia


@dataclass(frozen=True)
class Example:
    """`loss_mask[t]` says whether token t is a target. The first token never is, because nothing predicts it."""

    ids: list[int]
    loss_mask: list[bool]
    media: tuple[Any, ...] = ()  # processed pictures; none of their tokens is a target

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.loss_mask):
            raise ValueError(f"{len(self.ids)} tokens, but a loss mask of {len(self.loss_mask)}")

    @property
    def response_start(self) -> int:
        """Position of the first target token, or the end."""
        return next((t for t, is_target in enumerate(self.loss_mask) if is_target and t > 0), len(self.ids))

    def truncated(self, truncate: Callable[[Sequence[int]], Sequence[int]]) -> Example | None:
        """The example after a truncation; None if that would cut a picture."""
        kept = truncate(range(len(self.ids)))
        offsets = truncate_spans(kept, len(self.ids), [(item.offset, item.num_tokens) for item in self.media])
        if offsets is None:
            return None
        media = tuple(item.at(offset) for item, offset in zip(self.media, offsets, strict=True))
        return Example([self.ids[t] for t in kept], [self.loss_mask[t] for t in kept], media)


def pair_example(encoder: PromptEncoder, prompt: Prompt, response: str) -> Example:
    """A prompt and its response, which ends with EOS like a generated one."""
    encoded = encoder.encode(prompt)
    eos = encoder.tokenizer.eos_token_id
    if encoder.vision is not None:
        encoder.check_texts([{"content": response}])
    response_ids = encoder.tokenizer(response, add_special_tokens=False)["input_ids"] + ([] if eos is None else [eos])
    loss_mask = [False] * len(encoded.ids) + [True] * len(response_ids)
    return Example([*encoded.ids, *response_ids], loss_mask, encoded.media)


def chat_example(
    encoder: PromptEncoder, messages: list[dict[str, Any]], media: Sequence[RawMedia] = (), *, tolerant: bool
) -> Example:
    """A conversation: the targets are the assistant turns, tool calls included, without their headers.

    The text is the chat template's rendering of the whole conversation. It is tokenized in the segments of generation
    (up to an assistant header; the assistant's text), so that targets have the tokens that would be sampled.
    `tolerant` accepts a conversation whose segments tokenize differently from the whole. `media` has one picture for
    each part of the messages that stands for one, in order.
    """
    if encoder.vision is not None:
        encoder.check_texts(messages)
    messages = with_calls(encoder, messages)
    segments = turn_segments(encoder, messages)
    check_shown(messages, segments)
    ids: list[int] = []
    loss_mask: list[bool] = []
    spans: list[Any] = []
    waiting = list(media)
    for text, is_target in segments:
        shown = encoder.take_shown(text, waiting)
        if shown and is_target:
            raise InvalidMedia(f"an assistant turn has a picture ({shown[0].kind} {shown[0].number})")
        encoded = encoder.encode_text(text, shown, offset=len(ids))
        ids += encoded.ids
        spans += encoded.media
        loss_mask += [is_target] * len(encoded.ids)
    if waiting:
        raise InvalidMedia(f"the chat template shows {len(media) - len(waiting)} of {len(media)} pictures")
    whole = "".join(text for text, _ in segments)
    if not tolerant and ids != encoder.encode_text(whole, media, pixels=False).ids:
        raise TemplateFailure("its turns tokenize differently alone and together")
    return Example(ids, loss_mask, tuple(spans))


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
