"""Batches that were produced and not yet learnt, as files of a checkpoint: tensors and plain JSON, nothing to unpickle.

{step}.safetensors has the tensors of a batch, {step}.json everything else. What the data says of a prompt is not
written but read again from the data, where it can be any object.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from burnish.batch import Batch, Column, Ragged
from burnish.data.dataset import PromptDataset
from burnish.loop.step import Produced
from burnish.reward.sample import Score

FLAT, LENGTHS, ROWS = "flat", "lengths", "rows"


def waiting_writer(waiting: Sequence[Produced], data: PromptDataset) -> Callable[[Path], None]:
    """Writes these batches into a folder."""
    told = set(data.batch([0], epoch=0)) - {"uid"}  # what the data says of a prompt

    def write(folder: Path) -> None:
        for one in waiting:
            tensors, objects = _parts(one.batch, told)
            save_file(tensors, folder / f"{one.step}.safetensors")
            about = {"step": one.step, "epoch": one.epoch, "numbers": one.numbers, "notes": one.notes}
            (folder / f"{one.step}.json").write_text(json.dumps(about | {"columns": objects}))

    return write


def read_waiting(folder: Path, data: PromptDataset) -> list[Produced]:
    """The batches of a folder, the next to be learnt first."""
    files = sorted(folder.glob("*.json"), key=lambda file: int(file.stem)) if folder.is_dir() else []
    return [_read(file, data) for file in files]


def _parts(batch: Batch, told: set[str]) -> tuple[dict[str, Tensor], dict[str, list]]:
    tensors: dict[str, Tensor] = {}
    objects: dict[str, list] = {}
    for name, column in batch.columns.items():
        if isinstance(column, Ragged):
            tensors[f"{name}.{FLAT}"] = column.flat.contiguous()
            tensors[f"{name}.{LENGTHS}"] = column.lengths.clone()  # columns share them, and a file must not
        elif isinstance(column, Tensor):
            tensors[f"{name}.{ROWS}"] = column.contiguous()
        elif name not in told:
            objects[name] = [_plain(value) for value in column]
    return tensors, objects


def _read(file: Path, data: PromptDataset) -> Produced:
    about = json.loads(file.read_text())
    objects = {name: [_object(value) for value in values] for name, values in about["columns"].items()}
    tensors = load_file(file.with_suffix(".safetensors"))
    columns: dict[str, Column] = dict(objects)
    for key, tensor in tensors.items():
        name, _, part = key.rpartition(".")
        if part == FLAT:
            columns[name] = Ragged(tensor, tensors[f"{name}.{LENGTHS}"])
        elif part == ROWS:
            columns[name] = tensor
    prompts = data.batch(*data.find(objects["uid"]))
    columns |= {name: column for name, column in prompts.columns.items() if name not in columns}
    # "responses" first: columns along it are checked against it.
    ordered = dict(sorted(columns.items(), key=lambda item: item[0] != "responses"))
    return Produced(about["step"], Batch(**ordered), about["epoch"], about["numbers"], about["notes"])


def _plain(value: Any) -> Any:
    """As JSON holds it, to the last bit of a number; what is neither number, text, list nor dict becomes its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Score):
        return {"score": value.value, "extras": _plain(value.extras), "problem": value.problem, "is_score": True}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(entry) for entry in value]
    if isinstance(value, torch.Tensor) or hasattr(value, "tolist"):  # numpy
        return _plain(value.tolist())
    return str(value)


def _object(value: Any) -> Any:
    if isinstance(value, dict) and value.get("is_score") is True:
        return Score(value["score"], value["extras"], value["problem"])
    return value
