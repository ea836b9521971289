"""Rows -> packed token streams: what a model is fed, and where in its output the response tokens are predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.algos.batches import token_budget_batches
from burnish.batch import Batch, flat_index
from burnish.models.positions import TEXT, Positions
from burnish.models.varlen import Segments
from burnish.sizing import CPU_MICRO_BATCH_TOKENS
from burnish.training.transfer import to_device


@dataclass(frozen=True)
class Cut:
    """How a mini-batch is cut into micro-batches: so many rows each, or as many as a token budget holds."""

    rows: int | None = None
    tokens: int | None = None

    @staticmethod
    def of(rows_per_gpu: int | None, dynamic: bool, tokens: int) -> Cut:
        """verl's three keys as one choice; without a row count the budget decides."""
        return Cut(tokens=tokens) if dynamic or rows_per_gpu is None else Cut(rows=rows_per_gpu)

    def on(self, device: torch.device) -> Cut:
        """The budget as it suits the device: on a CPU more tokens at once only leave its caches."""
        if self.tokens is None or device.type != "cpu":
            return self
        return Cut(tokens=min(self.tokens, CPU_MICRO_BATCH_TOKENS))

    def shared(self, ranks: int) -> Cut:
        """The budget of a stream that so many ranks share: each has a part of it."""
        return self if self.tokens is None else Cut(tokens=self.tokens * ranks)

    def micro_batches(self, lengths: Tensor) -> list[list[int]]:
        """Row numbers of each micro-batch; `lengths` counts prompt and response."""
        if self.tokens is not None:
            return token_budget_batches(lengths.tolist(), self.tokens)
        rows = range(len(lengths))
        return [list(rows[start : start + self.rows]) for start in range(0, len(lengths), self.rows)]


@dataclass(frozen=True)
class PackedRows:
    """One micro-batch as a single token stream [T], each row a segment of its own."""

    ids: Tensor
    positions: Tensor
    segments: Segments
    predicts: Tensor  # where in the stream the hidden state stands that predicts each response token [R]
    targets: Tensor  # the response tokens [R]
    ends: Tensor  # where in the stream each row ends, in row order [rows]

    @staticmethod
    def of(batch: Batch, device: torch.device, positions: Positions = TEXT) -> PackedRows:
        prompts, responses = batch["prompt_ids"], batch["responses"]
        lengths = prompts.lengths + responses.lengths
        # Equally long rows stand side by side in the stream, so that attention takes them in one call.
        order = torch.argsort(lengths, stable=True)
        starts = torch.empty_like(lengths)
        starts[order] = lengths[order].cumsum(0) - lengths[order]
        ids = torch.empty(int(lengths.sum()), dtype=torch.int64)
        ids[flat_index(starts, prompts.lengths)] = prompts.flat.cpu()
        ids[flat_index(starts + prompts.lengths, responses.lengths)] = responses.flat.cpu()
        return PackedRows(
            ids=to_device(ids, device),
            positions=to_device(positions.packed(lengths[order]), device),
            segments=Segments.of(lengths[order].tolist(), device),
            predicts=to_device(flat_index(starts + prompts.lengths - 1, responses.lengths), device),
            targets=to_device(responses.flat, device),
            ends=to_device(starts + lengths - 1, device),
        )

    def inputs(self) -> dict[str, Any]:
        """Arguments of the Hugging Face model."""
        return {
            "input_ids": self.ids[None],
            "position_ids": self.positions[None],
            "attention_mask": None,
            "use_cache": False,
            "segments": self.segments,
        }


def row_lengths(batch: Batch) -> Tensor:
    """Tokens of each row, prompt and response."""
    return batch["prompt_ids"].lengths + batch["responses"].lengths
