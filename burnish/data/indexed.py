"""Tokenized prompts in Megatron's indexed format, as MindSpeed RL packs them.

A prefix stands for <prefix>_packed_<field>_document.{bin,idx}, one pair of files per field. The .bin file holds the
concatenated numbers of all rows. The .idx file, little endian:

  9 bytes   MMIDIDX and two zeros            8 bytes  version, 1           1 byte  code of the number type
  8 bytes   sequences                        8 bytes  document indices
  int32     length of each sequence          int64    byte offset of each in .bin
  int64     document indices: row r has the sequences from index r up to index r + 1
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from burnish.data.files import fingerprint_of_file, short_hash
from burnish.errors import UserError
from burnish.storage import is_remote, local_path

MAGIC = b"MMIDIDX\x00\x00"
HEAD = struct.Struct("<9sQBQQ")
INTEGERS = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
FLOATS = {6: "float64", 7: "float32"}
TOKENS, MASK, ANSWER = "input_ids", "attention_mask", "labels"


@dataclass(frozen=True)
class IndexedColumn:
    """One field: rows of numbers, memory-mapped."""

    numbers: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray  # in numbers, not in bytes
    documents: np.ndarray
    name: str
    fingerprint: str

    @classmethod
    def open(cls, prefix: str, field: str, *, key: str, use_shm: bool = False) -> IndexedColumn:
        names = [file_name(prefix, field, ending) for ending in ("idx", "bin")]
        index, content = (Path(local_path(name, key=key, use_shm=use_shm)).expanduser() for name in names)
        for name, path in zip(names, (index, content), strict=True):
            if not path.is_file():
                raise UserError(f"no such file: {name}", key=key, value=prefix)
        with index.open("rb") as file:
            head = file.read(HEAD.size)
        magic, version, code, sequences, documents = HEAD.unpack(head) if len(head) == HEAD.size else (b"", 0, 0, 0, 0)
        if magic != MAGIC or version != 1:
            raise UserError(f"{names[0]} is not a Megatron index of version 1", key=key, value=prefix)
        if code not in INTEGERS:
            kind = FLOATS.get(code, f"unknown number type {code}")
            raise UserError(f"{names[0]} holds {kind}, not tokens", key=key, value=prefix)
        if index.stat().st_size < HEAD.size + 12 * sequences + 8 * documents:
            raise UserError(f"{names[0]} is truncated", key=key, value=prefix)
        lengths = np.memmap(index, "<i4", "r", HEAD.size, (sequences,))
        pointers = np.memmap(index, "<i8", "r", HEAD.size + 4 * sequences, (sequences,))
        ends = np.memmap(index, "<i8", "r", HEAD.size + 12 * sequences, (documents,))
        kind = np.dtype(INTEGERS[code])
        if len(lengths) and (lengths.min() < 0 or pointers.min() < 0 or pointers.max() > 2**60):
            raise UserError(f"{names[0]} has sequences outside of {names[1]}", key=key, value=prefix)
        if len(ends) and (ends[0] < 0 or ends[-1] > sequences or (np.diff(ends) < 0).any()):
            raise UserError(f"{names[0]} has rows of sequences that it does not have", key=key, value=prefix)
        needed = int((pointers + lengths.astype(np.int64) * kind.itemsize).max()) if sequences else 0
        if content.stat().st_size < needed:
            raise UserError(f"{names[1]} has {content.stat().st_size} of {needed} bytes", key=key, value=prefix)
        numbers = np.memmap(content, kind, "r") if needed else np.zeros(0, kind)
        fingerprint = fingerprint_of_file(index) + fingerprint_of_file(content)
        return cls(numbers, lengths, pointers // kind.itemsize, ends, names[1], fingerprint)

    def __len__(self) -> int:
        return max(0, len(self.documents) - 1)

    def row(self, number: int) -> list[int]:
        first, end = int(self.documents[number]), int(self.documents[number + 1])
        parts = range(first, end)
        return [int(n) for s in parts for n in self.numbers[self.starts[s] : self.starts[s] + self.lengths[s]]]


class IndexedRows:
    """Rows of one prefix: unmasked tokens, the decoded answer as ground truth, other fields in extra_info."""

    def __init__(
        self, prefix: str, additional_keys: Sequence[str], tokenizer: Any, *, key: str, use_shm: bool = False
    ) -> None:
        self.name = prefix
        self.tokenizer = tokenizer
        fields = [TOKENS, *([MASK] if has_field(prefix, MASK, key) else []), *additional_keys]
        self.columns = {
            field: IndexedColumn.open(prefix, field, key=key, use_shm=use_shm) for field in dict.fromkeys(fields)
        }
        counts = {field: len(column) for field, column in self.columns.items()}
        if len(set(counts.values())) > 1:
            details = ", ".join(f"{field} {count}" for field, count in counts.items())
            raise UserError(f"the fields have different numbers of rows: {details}", key=key, value=prefix)
        self.length = counts[TOKENS]
        if self.length == 0:
            raise UserError("the files have no rows", key=key, value=prefix)
        self.fingerprint = short_hash("".join(column.fingerprint for column in self.columns.values()).encode())
        self.kinds = {"prompt_ids": "list", "extra_info": "object"}
        if ANSWER in self.columns:
            self.kinds["reward_model"] = "object"

    def __len__(self) -> int:
        return self.length

    def row(self, number: int) -> dict[str, Any]:
        values = {field: column.row(number) for field, column in self.columns.items()}
        tokens = values.pop(TOKENS)
        mask = values.pop(MASK, [1] * len(tokens))
        if len(mask) != len(tokens):
            raise UserError(f"{self.where(number)}: {len(tokens)} tokens and a mask of {len(mask)}")
        row: dict[str, Any] = {"prompt_ids": [token for token, real in zip(tokens, mask, strict=True) if real]}
        if ANSWER in values:
            answer = [token for token in values.pop(ANSWER) if token >= 0]  # -100 marks positions without a loss
            row["reward_model"] = {"ground_truth": self.tokenizer.decode(answer, skip_special_tokens=True).strip()}
        return {**row, "extra_info": values}

    def values(self, column: str) -> set[Any]:
        return {self.row(number).get(column) for number in range(len(self))} if column in self.kinds else set()

    def where(self, number: int) -> str:
        return f"{self.name}, row {number}"


def file_name(prefix: str, field: str, ending: str) -> str:
    return f"{prefix}_packed_{field}_document.{ending}"


def has_field(prefix: str, field: str, key: str) -> bool:
    """Whether this field has an index file."""
    name = file_name(prefix, field, "idx")
    if not is_remote(name):
        return Path(name.removeprefix("file://")).expanduser().is_file()
    try:
        return bool(local_path(name, key=key))
    except UserError:
        return False


def is_packed(prefix: str, key: str) -> bool:
    """Whether this is the prefix of packed files."""
    return has_field(prefix, TOKENS, key)
