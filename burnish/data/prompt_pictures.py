"""A prompt with the pictures of its row, for a model that takes them; an error for one that does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from burnish.data.encode import Encoded, PromptEncoder, TemplateFailure
from burnish.data.files import Rows, folder_of
from burnish.data.invalid_media import at_row
from burnish.data.pictures import MODEL_INPUTS, MediaColumns, RawMedia, has_pictures, place_pictures, refuse_audio
from burnish.data.prompt import Prompt, read_prompt
from burnish.errors import UserError
from burnish.media import InvalidMedia


def with_pictures(
    prompt: Prompt,
    row: Mapping[str, Any],
    encoder: PromptEncoder,
    columns: MediaColumns,
    where: str,
    folder: str,
    key: str,
) -> Prompt:
    """The prompt with its pictures in place. InvalidMedia if there are not as many as placeholders."""
    messages = prompt.messages or []
    refuse_audio(row, messages, where)
    pictures = has_pictures(row, columns, messages)
    if encoder.vision is None:
        if pictures:
            model = getattr(encoder.tokenizer, "name_or_path", "") or "this model"
            problem = f"{where} has images or videos, but {model} takes text only"
            raise UserError(problem, key=key, hint="actor_rollout_ref.model.path=A/VISION/MODEL")
        return prompt
    if prompt.ids is not None:
        if not pictures and not row.get(MODEL_INPUTS):
            return prompt
        _check_messages(prompt, row, columns, where, pictures)
    if prompt.messages is None:
        return prompt
    placed, media = place_pictures(prompt.messages, row, columns, where, folder)
    check_kinds(media, encoder, where)
    return replace(prompt, messages=placed, media=media, ids=None)


def encode_row(
    rows: Rows, number: int, encoder: PromptEncoder, prompt_key: str, columns: MediaColumns, key: str
) -> Encoded:
    """The tokens and pictures of a row's prompt, for jobs that have no PromptDataset. Errors name the row."""
    where, row = rows.where(number), rows.row(number)
    prompt = read_prompt(row, prompt_key, where)
    prompt = with_pictures(prompt, row, encoder, columns, where, folder_of(rows, number), key)
    try:
        encoded = encoder.encode(prompt)
    except TemplateFailure as failure:
        raise UserError(f"{where}: the chat template failed: {failure}", key=key) from failure
    except UserError as error:
        raise (at_row(error, where) if prompt.media or isinstance(error, InvalidMedia) else error) from error
    if not encoded.ids:
        raise UserError(f"{where}: the prompt has no tokens", key=key)
    return encoded


def _check_messages(
    prompt: Prompt, row: Mapping[str, Any], columns: MediaColumns, where: str, has_pictures: bool
) -> None:
    """An item with tokens and pictures, as verl's dataset classes return it, must have messages too: the tokens of
    pictures are made here."""
    missing = (
        "messages (raw_prompt)"
        if not prompt.messages
        else None
        if has_pictures
        else f"pictures ({columns.image_key}, multi_modal_data)"
    )
    if missing is not None:
        has = "pictures" if has_pictures else MODEL_INPUTS
        raise UserError(f"{where} has tokens and {has}, but no {missing}", key="data.custom_cls.name")


def check_kinds(media: tuple[RawMedia, ...], encoder: PromptEncoder, where: str) -> None:
    """Refuse videos for a model that takes images only."""
    assert encoder.vision is not None
    for item in media:
        if item.kind not in encoder.vision.placeholders:
            raise UserError(f"{where} has {item.kind}s, which the model does not take", key=f"data.{item.kind}_key")
