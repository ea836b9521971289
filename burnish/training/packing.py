"""Micro-batches: how a mini-batch is split into them, and their rows packed into one token stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.algos.batches import token_budget_batches
from burnish.batch import Batch, flat_index
from burnish.models.model_input import Media
from burnish.models.positions import TEXT, batched
from burnish.models.routing import ARGUMENT
from burnish.models.varlen import Block, Segments
from burnish.models.vision.family import VisionFamily
from burnish.models.vision.features import MediaSlice
from burnish.sizing import CPU_MICRO_BATCH_TOKENS
from burnish.training.transfer import to_device

ROUTED_EXPERTS = "routed_experts"  # a column along prompt and response: [tokens, mixtures, k]


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
    media: tuple[MediaSlice, ...] = ()  # images and videos, in the stream's order; their tensors stay where they are
    may_have_media: bool = False  # whether any row of the whole batch may have media, on every rank alike
    places: Tensor | None = None  # index in the stream of every token, row after row [T]
    routed_experts: Tensor | None = None  # choices of experts to repeat [T, mixtures, k]

    @staticmethod
    def of(
        batch: Batch, device: torch.device, family: VisionFamily | None = None, *, replay: bool = False
    ) -> PackedRows:
        """`family`: that of the model, where it takes media. `replay`: with recorded choices of experts."""
        prompts, responses = batch["prompt_ids"], batch["responses"]
        lengths = prompts.lengths + responses.lengths
        # Rows of equal length are neighbors in the stream, so that attention takes them in one call.
        order = torch.argsort(lengths, stable=True)
        starts = torch.empty_like(lengths)
        starts[order] = lengths[order].cumsum(0) - lengths[order]
        ids = torch.empty(int(lengths.sum()), dtype=torch.int64)
        ids[flat_index(starts, prompts.lengths)] = prompts.flat.cpu()
        ids[flat_index(starts + prompts.lengths, responses.lengths)] = responses.flat.cpu()
        rows = order.tolist()
        media = [_media_of(batch, family, row, int(lengths[row])) for row in rows]
        slices = [
            MediaSlice.whole(item, int(starts[row]) + item.offset)
            for row, items in zip(rows, media, strict=True)
            for item in items
        ]
        segments = Segments(lengths[order].tolist(), _blocks(rows, starts, media, family))
        positions = TEXT if family is None else family.positions
        places = flat_index(starts, lengths)
        return PackedRows(
            ids=to_device(ids, device),
            positions=to_device(positions.packed(lengths[order], media), device),
            segments=Segments.of(segments, device),
            media=tuple(slices),
            may_have_media="media" in batch,
            predicts=to_device(flat_index(starts + prompts.lengths - 1, responses.lengths), device),
            targets=to_device(responses.flat, device),
            ends=to_device(starts + lengths - 1, device),
            places=to_device(places, device),
            routed_experts=_choices(batch, places, device) if replay else None,
        )

    def inputs(self) -> dict[str, Any]:
        """Arguments of the Hugging Face model."""
        replayed = {} if self.routed_experts is None else {ARGUMENT: self.routed_experts}
        return {
            **replayed,
            "input_ids": self.ids[None],
            "position_ids": batched(self.positions),
            "attention_mask": None,
            "use_cache": False,
            "segments": self.segments,
        }


def _choices(batch: Batch, places: Tensor, device: torch.device) -> Tensor | None:
    """Recorded choices of experts, in the stream's order."""
    if ROUTED_EXPERTS not in batch:
        return None
    recorded = batch[ROUTED_EXPERTS].flat
    return to_device(torch.empty_like(recorded).index_copy_(0, places, recorded), device)


def _media_of(batch: Batch, family: VisionFamily | None, row: int, length: int) -> Sequence[Media]:
    """A row's media, in order."""
    items = batch["media"][row] if "media" in batch else ()
    if items and family is None:
        raise ValueError("the batch has media, but the model takes none")
    if any(item.offset < 0 or item.offset + item.num_tokens > length for item in items):
        raise ValueError(f"media of row {row} end after its {length} tokens")
    return sorted(items, key=lambda item: item.offset)


def _blocks(
    rows: Sequence[int], starts: Tensor, media: Sequence[Sequence[Media]], family: VisionFamily | None
) -> list[Block]:
    """Ranges of tokens that see each other in both directions."""
    if family is None or not family.sees_whole_images:
        return []
    found = []
    for row, items in zip(rows, media, strict=True):
        begin = int(starts[row])
        found += [Block(begin, begin + m.offset, begin + m.offset + m.num_tokens) for m in items]
    return found


def row_lengths(batch: Batch) -> Tensor:
    """Number of tokens of each row, prompt and response."""
    return batch["prompt_ids"].lengths + batch["responses"].lengths
