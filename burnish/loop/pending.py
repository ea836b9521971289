"""Batches generated ahead of training, as files of a checkpoint: tensors and plain JSON, nothing to unpickle.

{step}.safetensors has the tensors of a batch, {step}.json everything else. The data's own columns are not written but
read again from the data, where they may be any object. Pictures are read again from the data too; those that a tool or
an environment returned are in {step}.media.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.batch import Batch, Column, Ragged
from burnish.data.dataset import PromptDataset
from burnish.loop.pictures import media_records, restore_media, save_media
from burnish.loop.step import ScoredBatch
from burnish.models.model_input import Media
from burnish.reward.sample import Score
from burnish.rollout.trajectory import Turn
from burnish.untrusted import read_json_object

FLAT, LENGTHS, ROWS = "flat", "lengths", "rows"
MAX_FILE_BYTES = 1 << 32
MEDIA = ".media"  # suffix of a batch's folder of pictures


def pending_writer(pending: Sequence[ScoredBatch], data: PromptDataset) -> Callable[[Path], None]:
    """Writes these batches into a folder."""
    data_columns = set(data.batch([0], epoch=0)) - {"uid"}
    foreign = {scored.step: _not_in_data(scored.batch, data) for scored in pending}

    def write(folder: Path) -> None:
        for scored in pending:
            tensors, objects = _parts(scored.batch, data_columns)
            save_media(foreign[scored.step], folder / f"{scored.step}{MEDIA}")
            save_file(tensors, folder / f"{scored.step}.safetensors")
            fields = {"step": scored.step, "epoch": scored.epoch, "numbers": scored.metrics, "notes": scored.notes}
            (folder / f"{scored.step}.json").write_text(json.dumps(fields | {"columns": objects}))

    return write


def read_pending(folder: Path, data: PromptDataset) -> list[ScoredBatch]:
    """The batches of a folder, in the order of their steps."""
    files = sorted(folder.glob("*.json"), key=lambda file: int(file.stem)) if folder.is_dir() else []
    return [_read(file, data) for file in files]


def _by_digest(batch: Batch) -> dict[bytes, Media]:
    return {media.digest: media for row in batch.get("media") or () for media in row}


def _not_in_data(batch: Batch, data: PromptDataset) -> list[Media]:
    """Media of the rows that reading their prompts again does not give."""
    media = _by_digest(batch)
    known = _by_digest(data.batch(*data.find(batch["uid"]))) if media else {}
    return [item for digest, item in media.items() if digest not in known]


def _parts(batch: Batch, data_columns: set[str]) -> tuple[dict[str, Tensor], dict[str, list]]:
    tensors: dict[str, Tensor] = {}
    objects: dict[str, list] = {}
    for name, column in batch.columns.items():
        if isinstance(column, Ragged):
            tensors[f"{name}.{FLAT}"] = column.flat.contiguous()
            tensors[f"{name}.{LENGTHS}"] = column.lengths.clone()  # columns share them, and a file must not
        elif isinstance(column, Tensor):
            tensors[f"{name}.{ROWS}"] = column.contiguous()
        elif name == "media":
            objects[name] = [media_records(row) for row in column]
        elif name not in data_columns:
            objects[name] = [_to_json(value) for value in column]
    return tensors, objects


def _read(file: Path, data: PromptDataset) -> ScoredBatch:
    fields = read_json_object(file, limit=MAX_FILE_BYTES)
    objects = {name: [_from_json(value) for value in values] for name, values in fields["columns"].items()}
    tensors = load_file(file.with_suffix(".safetensors"))
    columns: dict[str, Column] = dict(objects)
    for key, tensor in tensors.items():
        name, _, part = key.rpartition(".")
        if part == FLAT:
            columns[name] = Ragged(tensor, tensors[f"{name}.{LENGTHS}"])
        elif part == ROWS:
            columns[name] = tensor
    prompts = data.batch(*data.find(objects["uid"]))
    if "media" in objects:
        known = _by_digest(prompts)
        folder = file.with_suffix(MEDIA)
        columns["media"] = [tuple(restore_media(record, known, folder) for record in row) for row in objects["media"]]
    missing = prompts.columns.keys() - columns.keys() - {"dataset_row"}  # whole rows are for rewards, which are done
    columns |= {name: prompts.columns[name] for name in missing}
    # "responses" first: columns along it are checked against it.
    ordered = dict(sorted(columns.items(), key=lambda item: item[0] != "responses"))
    return ScoredBatch(fields["step"], Batch(**ordered), fields["epoch"], fields["numbers"], fields["notes"])


def _to_json(value: Any) -> Any:
    """As JSON holds it, to the last bit of a number; other objects become their text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Score):
        return {"score": value.value, "extras": _to_json(value.extras), "problem": value.problem, "is_score": True}
    if isinstance(value, Turn):
        return {"turn": _to_json(dataclasses.asdict(value)), "is_turn": True}
    if isinstance(value, Mapping):
        return {str(key): _to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json(entry) for entry in value]
    if isinstance(value, torch.Tensor) or hasattr(value, "tolist"):  # numpy
        return _to_json(value.tolist())
    return str(value)


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(entry) for entry in value]
    if isinstance(value, dict) and value.get("is_score") is True:
        return Score(value["score"], value["extras"], value["problem"])
    if isinstance(value, dict) and value.get("is_turn") is True:
        return Turn(**value["turn"] | {"tool_calls": tuple(value["turn"]["tool_calls"])})
    return value
