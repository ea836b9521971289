"""Multi-dimensional rotary positions (mrope) of the Qwen-VL families: rows for time, height and width.

Text counts up in all three rows. A picture starts where the text before it ends; its tokens differ in time, height and
width; and the text after it continues after the largest position of the picture. So do the models' original code and
vLLM. transformers 5.22 continues after the largest position in height and width instead, which differs for videos that
are longer than wide: there the tokens of two moments would have the positions of the text that follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.models.model_input import Media, ModelInput
from burnish.models.positions import TEXT

GRIDS = {"image": "image_grid_thw", "video": "video_grid_thw"}
SECONDS = "second_per_grid_ts"


@dataclass(frozen=True)
class MropePositions:
    """`merge`: patches per token and side. `tokens_per_second` scales the time of videos (Qwen2.5-VL)."""

    merge: int
    tokens_per_second: float | None = None

    def packed(self, lengths: Sequence[int] | Tensor, media: Sequence[Sequence[Media]] = ()) -> Tensor:
        if not any(media):
            return TEXT.packed(lengths).repeat(3, 1)  # not a view: it is copied to pinned memory
        sequences = torch.as_tensor(lengths).tolist()
        return torch.cat([self._whole(n, items)[0] for n, items in zip(sequences, media, strict=True)], dim=1)

    def prefill(self, input: ModelInput, start: int, stop: int) -> Tensor:
        if not input.media:
            return TEXT.prefill(input, start, stop).repeat(3, 1)
        return self._whole(len(input), input.media)[0][:, start:stop]

    def offset(self, input: ModelInput) -> int:
        return self._whole(len(input), input.media)[1] - len(input) if input.media else 0

    def _whole(self, length: int, media: Sequence[Media]) -> tuple[Tensor, int]:
        """[3, length] of one sequence, and the position of the token that would follow."""
        parts: list[Tensor] = []
        index = position = 0
        for item in sorted(media, key=lambda item: item.offset):
            if item.offset < index or item.offset + item.num_tokens > length:
                raise ValueError(f"media at {item.offset} overlap, or end after the {length} tokens of the sequence")
            parts.append(_text(position, item.offset - index))
            position += item.offset - index
            for part, size in self._parts(item):
                parts.append(part + position)
                position += size
            index = item.offset + item.num_tokens
        parts.append(_text(position, length - index))
        return torch.cat(parts, dim=1), position + length - index

    def _parts(self, item: Media) -> Iterator[tuple[Tensor, int]]:
        """The positions of a picture's runs of tokens, each from 0, and how many positions a run takes."""
        (grid,) = item.tensors[GRIDS[item.kind]].tolist()
        time, height, width = grid[0], grid[1] // self.merge, grid[2] // self.merge
        if item.features is None:
            positions = _grid(self._moments(item, time), height, width)
            yield positions, int(positions.max()) + 1
            return
        frame = _grid(torch.zeros(1, dtype=torch.int64), height, width)
        for is_frame, count in _runs(item.features):  # frames with their time stamps as text between them
            if is_frame:
                yield from [(frame, max(height, width))] * (count // frame.shape[1])
            else:
                yield _text(0, count), count

    def _moments(self, item: Media, count: int) -> Tensor:
        """The position in time of each moment of a picture."""
        moments = torch.arange(count)
        if item.kind == "image" or self.tokens_per_second is None:
            return moments
        return (moments * (self.tokens_per_second * item.tensors[SECONDS][0])).long()


def _text(start: int, length: int) -> Tensor:
    return torch.arange(start, start + length).expand(3, -1)


def _grid(moments: Tensor, height: int, width: int) -> Tensor:
    """[3, moments x height x width], the width fastest."""
    axes = torch.meshgrid(moments, torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([axis.flatten() for axis in axes])


def _runs(mask: Tensor) -> Iterator[tuple[bool, int]]:
    """(value, length) of each run of equal values."""
    values, counts = torch.unique_consecutive(mask, return_counts=True)
    return zip(values.tolist(), counts.tolist(), strict=True)
