"""Example: tokens to imitate, and which of them teach. From a prompt and a response, or from a whole conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from burnish.data.encode import PromptEncoder, TemplateFailure
from burnish.data.prompt import Prompt, read_messages
from burnish.errors import UserError


@dataclass(frozen=True)
class Example:
    """`taught[t]` says whether token t is learned. The first token never is: nothing stands before it."""

    ids: list[int]
    taught: list[bool]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.taught):
            raise ValueError(f"{len(self.ids)} tokens, {len(self.taught)} marks")

    @property
    def first(self) -> int:
        """Where the response begins: the first token that is taught, or the end."""
        return next((t for t, teaches in enumerate(self.taught) if teaches and t > 0), len(self.ids))

    def cut(self, truncate: Callable[[Sequence[int]], Sequence[int]]) -> Example:
        """The tokens that a truncation leaves."""
        kept = truncate(range(len(self.ids)))
        return Example([self.ids[t] for t in kept], [self.taught[t] for t in kept])


def pair_example(encoder: PromptEncoder, prompt: Prompt, response: str) -> Example:
    """A prompt and its answer; the answer ends with EOS, as a model's own would."""
    asked = encoder.ids(prompt)
    eos = encoder.tokenizer.eos_token_id
    answer = encoder.tokenizer(response, add_special_tokens=False)["input_ids"] + ([] if eos is None else [eos])
    return Example([*asked, *answer], [False] * len(asked) + [True] * len(answer))


def chat_example(encoder: PromptEncoder, messages: list[dict[str, Any]], *, tolerant: bool) -> Example:
    """A conversation: every assistant turn teaches, its header does not.

    The text is what the chat template makes of the whole conversation. It is tokenised in the pieces that generation
    would see (up to an answer's header; the answer), so that what is learned is what will be sampled. `tolerant`
    accepts a conversation whose pieces tokenise differently from the whole.
    """
    pieces = _pieces(encoder, messages)
    ids: list[int] = []
    taught: list[bool] = []
    for text, teaches in pieces:
        tokens = encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += tokens
        taught += [teaches] * len(tokens)
    whole = "".join(text for text, _ in pieces)
    if not tolerant and ids != list(encoder.tokenizer(whole, add_special_tokens=False)["input_ids"]):
        raise TemplateFailure("its turns tokenise differently alone and together")
    return Example(ids, taught)


def _pieces(encoder: PromptEncoder, messages: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """The conversation's text, cut before and after each assistant turn."""
    bare = replace(encoder, template_kwargs={**encoder.template_kwargs, "add_generation_prompt": False})
    pieces: list[tuple[str, bool]] = []
    done = ""
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _asked(encoder, bare, messages[:number])
        after = bare.text(Prompt(messages[: number + 1]))
        for text, teaches in ((before, False), (after, True)):
            if not text.startswith(done):
                raise TemplateFailure(f"the template writes the turns before message {number} anew")
            pieces.append((text[len(done) :], teaches))
            done = text
    whole = bare.text(Prompt(messages))
    if not whole.startswith(done):
        raise TemplateFailure("the template writes earlier turns anew at the end")
    return [(text, teaches) for text, teaches in [*pieces, (whole[len(done) :], False)] if text]


def _asked(encoder: PromptEncoder, bare: PromptEncoder, messages: list[dict[str, Any]]) -> str:
    """Everything up to and with the header of the next answer; a conversation may begin with the assistant."""
    if messages:
        return encoder.text(Prompt(messages))
    opening = bare.text(Prompt([{"role": "assistant", "content": "\x00"}]))
    return opening.partition("\x00")[0]


def given_example(row: Mapping[str, Any], where: str) -> Example | None:
    """Tokens that a custom dataset brings: verl's `input_ids`, `attention_mask` and `loss_mask`, padded or not.

    As in verl, `loss_mask[t]` stands where token t + 1 is predicted.
    """
    if row.get("input_ids") is None:
        return None
    if row.get("loss_mask") is None:
        raise UserError(f"{where} has input_ids but no loss_mask", key="data.custom_cls.path")
    ids = [int(token) for token in row["input_ids"]]
    real = (
        [bool(mark) for mark in row["attention_mask"]] if row.get("attention_mask") is not None else [True] * len(ids)
    )
    predicts = [bool(mark) for mark in row["loss_mask"]]
    if not len(ids) == len(real) == len(predicts):
        raise UserError(
            f"{where}: input_ids, attention_mask and loss_mask differ in length", key="data.custom_cls.path"
        )
    taught = [False, *predicts[:-1]]
    return Example(
        [token for token, is_real in zip(ids, real, strict=True) if is_real],
        [mark for mark, is_real in zip(taught, real, strict=True) if is_real],
    )


def follow(value: object, keys: Sequence[str], column: str, where: str) -> object:
    """Go into a column of mappings, key by key."""
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            there = f"the keys {', '.join(map(str, value))}" if isinstance(value, Mapping) else type(value).__name__
            raise UserError(f"{where}: {column!r} has no {key!r}, it has {there}", key="data.prompt_dict_keys")
        value = value[key]
    return value


def conversation(row: Mapping[str, Any], column: str, where: str) -> list[dict[str, Any]]:
    """The messages of a row, with at least one answer to learn from."""
    messages = read_messages(row.get(column), column, where, key="data.multiturn.messages_key")
    if not any(message["role"] == "assistant" for message in messages):
        raise UserError(f"{where}: no message is the assistant's, so nothing can be learned", key="data.train_files")
    return messages
