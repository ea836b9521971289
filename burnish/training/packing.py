"""Micro-batches: how a mini-batch is split into them, and their rows packed into one token stream."""

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
class MicroBatchSize:
    """A number of rows, or a token budget."""

    rows: int | None = None
    tokens: int | None = None

    @staticmethod
    def of(rows_per_gpu: int | None, dynamic: bool, tokens: int) -> MicroBatchSize:
        """From verl's three keys; without a row count the token budget decides."""
        return MicroBatchSize(tokens=tokens) if dynamic or rows_per_gpu is None else MicroBatchSize(rows=rows_per_gpu)

    def for_device(self, device: torch.device) -> MicroBatchSize:
        """On a CPU a larger token budget only overflows the caches."""
        if self.tokens is None or device.type != "cpu":
            return self
        return MicroBatchSize(tokens=min(self.tokens, CPU_MICRO_BATCH_TOKENS))

    def times(self, num_ranks: int) -> MicroBatchSize:
        """The token budget of a stream that this many sequence ranks split."""
        return self if self.tokens is None else MicroBatchSize(tokens=self.tokens * num_ranks)

    def split(self, lengths: Tensor) -> list[list[int]]:
        """Row numbers of each micro-batch; `lengths` count prompt and response."""
        if self.tokens is not None:
            return token_budget_batches(lengths.tolist(), self.tokens)
        assert self.rows is not None
        numbers = range(len(lengths))
        return [list(numbers[start : start + self.rows]) for start in range(0, len(lengths), self.rows)]


@dataclass(frozen=True)
class PackedRows:
    """One micro-batch as a single token stream [T]; each row is a segment."""

    ids: Tensor
    positions: Tensor
    segments: Segments
    predicts: Tensor  # index in the stream of the hidden state that predicts each response token [R]
    targets: Tensor  # the response tokens [R]
    ends: Tensor  # index in the stream of each row's last token, in row order [rows]

    @staticmethod
    def of(batch: Batch, device: torch.device, positions: Positions = TEXT) -> PackedRows:
        prompts, responses = batch["prompt_ids"], batch["responses"]
        lengths = prompts.lengths + responses.lengths
        # Rows of equal length are neighbors in the stream, so that attention takes them in one call.
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
    """Number of tokens of each row, prompt and response."""
    return batch["prompt_ids"].lengths + batch["responses"].lengths
