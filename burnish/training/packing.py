"""Micro-batches: how a mini-batch is split into them, and their rows packed into one token stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from burnish.batch import Batch, Ragged, flat_index
from burnish.models.model_input import Media
from burnish.models.positions import TEXT, batched
from burnish.models.routing import ARGUMENT
from burnish.models.varlen import Block, Segments
from burnish.models.vision.family import VisionFamily
from burnish.models.vision.features import MediaSlice
from burnish.sizing import CPU_MICRO_BATCH_TOKENS
from burnish.training.transfer import to_device

KEYS_PER_TOKEN = 8  # of attention, on the average of a micro-batch with shared prompts: each is a copy
ROUTED_EXPERTS = "routed_experts"  # a column along prompt and response: [tokens, mixtures, k]


@dataclass(frozen=True)
class MicroBatchSize:
    """A number of rows, or a token budget. `share_prompts`: rows of one prompt come together, to compute it once."""

    rows: int | None = None
    tokens: int | None = None
    share_prompts: bool = False

    @staticmethod
    def of(rows_per_gpu: int | None, dynamic: bool, tokens: int, *, share_prompts: bool = False) -> MicroBatchSize:
        """From verl's three keys; without a row count the token budget decides."""
        by_tokens = dynamic or rows_per_gpu is None
        return MicroBatchSize(None if by_tokens else rows_per_gpu, tokens if by_tokens else None, share_prompts)

    def for_device(self, device: torch.device) -> MicroBatchSize:
        """On a CPU a larger token budget only overflows the caches."""
        if self.tokens is None or device.type != "cpu":
            return self
        return replace(self, tokens=min(self.tokens, CPU_MICRO_BATCH_TOKENS))

    def times(self, num_ranks: int) -> MicroBatchSize:
        """The token budget of a stream that this many sequence ranks split."""
        return self if self.tokens is None else replace(self, tokens=self.tokens * num_ranks)

    def sizes(self, batch: Batch) -> RowSizes:
        """What the rows of a batch add to a micro-batch."""
        prompts = number_prompts(batch) if self.share_prompts else None
        return RowSizes(row_lengths(batch), batch["prompt_ids"].lengths, prompts)


@dataclass(frozen=True)
class RowSizes:
    """Tokens of each row, and which rows have the same prompt where it is computed once for all of them."""

    lengths: Tensor  # prompt and response
    prompt_lengths: Tensor
    prompts: list[int] | None = None  # rows of equal number share their prompt; None: no rows do

    def select(self, index: Tensor) -> RowSizes:
        prompts = None if self.prompts is None else [self.prompts[row] for row in index.tolist()]
        return RowSizes(self.lengths[index], self.prompt_lengths[index], prompts)

    def units(self, budget: int | None, at_least: int = 1) -> list[Unit]:
        """Rows that stay together: those of a prompt, up to `budget` tokens of prompt and responses.

        Keys of the prompt are copied for each row, so a unit has at most KEYS_PER_TOKEN of them for a token. Each
        prompt's rows are divided further until there are `at_least` units, so that ranks have equal work.
        """
        lengths = self.lengths.tolist()
        if self.prompts is None:
            return [Unit([row], length) for row, length in enumerate(lengths)]
        groups: dict[int, list[int]] = {}
        for row, prompt in enumerate(self.prompts):
            groups.setdefault(prompt, []).append(row)
        largest = max(map(len, groups.values()), default=1)
        units = self._units(groups.values(), largest, budget)
        while len(units) < at_least and largest > 1:
            largest = -(-largest // 2)
            units = self._units(groups.values(), largest, budget)
        return units

    def _units(self, groups: Iterable[list[int]], largest: int, budget: int | None) -> list[Unit]:
        lengths, prompt_lengths = self.lengths.tolist(), self.prompt_lengths.tolist()
        units: list[Unit] = []
        for group in groups:
            unit: Unit | None = None
            for row in group:
                if (
                    unit is None
                    or len(unit.rows) == largest
                    or not unit.fits(lengths[row], prompt_lengths[row], budget)
                ):
                    unit = Unit([], prompt_lengths[row])
                    units.append(unit)
                unit.rows.append(row)
                unit.tokens += lengths[row] - prompt_lengths[row]
                unit.num_keys += lengths[row]
        return units


@dataclass
class Unit:
    """Rows that one micro-batch has, how many tokens they are there, and how many keys these attend to."""

    rows: list[int]
    tokens: int
    num_keys: int = 0

    def fits(self, length: int, prompt_length: int, budget: int | None) -> bool:
        """Whether one more row of the same prompt does."""
        tokens = self.tokens + length - prompt_length
        return (budget is None or tokens <= budget) and self.num_keys + length <= KEYS_PER_TOKEN * tokens


def number_prompts(batch: Batch) -> list[int]:
    """The same number for rows with the same prompt and the same media in it."""
    prompts, numbers = batch["prompt_ids"], dict[tuple[bytes, ...], int]()
    ids = prompts.flat.cpu().numpy()
    ends = prompts.lengths.cumsum(0).tolist()
    media = batch["media"] if "media" in batch else [()] * len(batch)
    found = []
    for length, end, items in zip(prompts.lengths.tolist(), ends, media, strict=True):
        pictures = (item.digest for item in items if item.offset < length)
        found.append(numbers.setdefault((ids[end - length : end].tobytes(), *pictures), len(numbers)))
    return found


@dataclass(frozen=True)
class StreamLayout:
    """Where the rows of a micro-batch are in its token stream.

    Rows of equal length are neighbors, so that attention takes them in one call. With shared prompts, the first row of
    each prompt comes with it, and the responses of the others follow behind all of these.
    """

    prompt_starts: Tensor  # [rows]
    response_starts: Tensor  # [rows]
    order: Tensor  # rows, in the order of the segments
    shares: Tensor  # bool [rows]: its prompt is another row's
    num_tokens: int

    @staticmethod
    def of(prompts: Tensor, responses: Tensor, numbers: Sequence[int] | None = None) -> StreamLayout:
        """Of the lengths of prompts and responses; rows of equal number share their prompt."""
        lengths, shares = prompts + responses, torch.zeros(len(prompts), dtype=torch.bool)
        owners = list(range(len(prompts)))
        if numbers is not None:
            first: dict[int, int] = {}
            owners = [first.setdefault(number, row) for row, number in enumerate(numbers)]
            shares = torch.tensor([owner != row for row, owner in enumerate(owners)])
        order = torch.argsort(lengths, stable=True)
        order = torch.cat([order[~shares[order]], order[shares[order]]])
        own = torch.where(shares, responses, lengths)[order]
        starts = torch.empty_like(lengths)
        starts[order] = own.cumsum(0) - own
        prompt_starts = starts[owners]
        response_starts = torch.where(shares, starts, starts + prompts)
        return StreamLayout(prompt_starts, response_starts, order, shares, int(own.sum()))

    def places(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """Index in the stream of every token, row after row; shared ones once for each row."""
        lengths = prompts + responses
        starts = lengths.cumsum(0) - lengths
        places = torch.empty(int(lengths.sum()), dtype=torch.int64)
        places[flat_index(starts, prompts)] = flat_index(self.prompt_starts, prompts)
        places[flat_index(starts + prompts, responses)] = flat_index(self.response_starts, responses)
        return places

    def segments(self, places: Ragged, responses: Tensor, blocks: Sequence[Block]) -> Segments:
        if not self.shares.any():
            return Segments(places.lengths[self.order].tolist(), blocks)
        # A shared prompt without a response has no tokens of its own.
        order = self.order[~self.shares[self.order] | (responses[self.order] > 0)]
        seen = places.select(order)
        own = torch.where(self.shares, responses, places.lengths)[order]
        return Segments(own.tolist(), blocks, keys=seen.flat, key_lengths=seen.lengths.tolist())

    def predicts(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """Index of the hidden state that predicts each response token: that of the token before."""
        places = flat_index(self.response_starts - 1, responses)
        answered = responses > 0
        places[(responses.cumsum(0) - responses)[answered]] = (self.prompt_starts + prompts - 1)[answered]
        return places

    def media_start(self, item: Media, row: int, prompt_length: int) -> int | None:
        """Where an item of a row begins; None for one of a shared prompt, which is another row's."""
        if item.offset >= prompt_length:
            return int(self.response_starts[row]) + item.offset - prompt_length
        return None if self.shares[row] else int(self.prompt_starts[row]) + item.offset


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
    places: Tensor | None = None  # index in the stream of every token, row after row
    routed_experts: Tensor | None = None  # choices of experts to repeat [T, mixtures, k]

    @staticmethod
    def of(
        batch: Batch,
        device: torch.device,
        family: VisionFamily | None = None,
        *,
        replay: bool = False,
        share_prompts: bool = False,
    ) -> PackedRows:
        """`family`: that of the model, where it takes media. `replay`: with recorded choices of experts.
        `share_prompts`: equal prompts are in the stream once."""
        prompts, responses = batch["prompt_ids"], batch["responses"]
        counts = prompts.lengths, responses.lengths
        layout = StreamLayout.of(*counts, number_prompts(batch) if share_prompts else None)
        places = Ragged(layout.places(*counts), prompts.lengths + responses.lengths)
        media = [_media_of(batch, family, row, length) for row, length in enumerate(places.lengths.tolist())]
        ids = torch.empty(layout.num_tokens, dtype=torch.int64)
        ids[flat_index(layout.prompt_starts, prompts.lengths)] = prompts.flat.cpu()
        ids[flat_index(layout.response_starts, responses.lengths)] = responses.flat.cpu()
        each = (TEXT if family is None else family.positions).packed(places.lengths, media)
        positions = each.new_empty(*each.shape[:-1], layout.num_tokens)
        positions[..., places.flat] = each
        segments = layout.segments(places, responses.lengths, _blocks(layout, media, family))
        return PackedRows(
            ids=to_device(ids, device),
            positions=to_device(positions, device),
            segments=Segments.of(segments, device),
            media=_slices(layout, media, prompts.lengths.tolist()),
            may_have_media="media" in batch,
            predicts=to_device(layout.predicts(*counts), device),
            targets=to_device(responses.flat, device),
            ends=to_device(places.flat[places.lengths.cumsum(0) - 1], device),
            places=to_device(places.flat, device),
            routed_experts=_choices(batch, places.flat, device) if replay else None,
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


def _slices(
    layout: StreamLayout, media: Sequence[Sequence[Media]], prompt_lengths: Sequence[int]
) -> tuple[MediaSlice, ...]:
    """The media of a stream, in its order."""
    found = []
    for row, (items, prompt_length) in enumerate(zip(media, prompt_lengths, strict=True)):
        starts = ((item, layout.media_start(item, row, prompt_length)) for item in items)
        found += [MediaSlice.whole(item, start) for item, start in starts if start is not None]
    return tuple(sorted(found, key=lambda piece: piece.start))


def _blocks(layout: StreamLayout, media: Sequence[Sequence[Media]], family: VisionFamily | None) -> list[Block]:
    """Ranges of tokens that see each other in both directions."""
    if family is None or not family.sees_whole_images:
        return []
    assert not layout.shares.any()  # `check_sharing` refuses such families
    found = []
    for row in layout.order.tolist():
        begin = int(layout.prompt_starts[row])
        found += [Block(begin, begin + m.offset, begin + m.offset + m.num_tokens) for m in media[row]]
    return found


def row_lengths(batch: Batch) -> Tensor:
    """Number of tokens of each row, prompt and response."""
    return batch["prompt_ids"].lengths + batch["responses"].lengths
