"""Embeddings with the features of pictures in place, for any part of a packed stream."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from burnish.models.model_input import Media

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class MediaSlice:
    """The tokens first..first + length of a media item, at start..start + length of a packed stream.

    Not the whole item where the tokens before `first` are in the KV cache already.
    """

    media: Media
    start: int
    first: int
    length: int

    @staticmethod
    def whole(media: Media, start: int) -> MediaSlice:
        return MediaSlice(media, start, 0, media.num_tokens)

    def within(self, begin: int, end: int, offset: int = 0) -> MediaSlice | None:
        """The part in begin..end of the stream, which is at `offset` of a stream of its own; None if it has none."""
        start, stop = max(self.start, begin), min(self.start + self.length, end)
        if start >= stop:
            return None
        return MediaSlice(self.media, start - begin + offset, self.first + start - self.start, stop - start)


@dataclass(frozen=True)
class Embedded:
    """What the language model is given in place of token ids."""

    embeds: Tensor  # [T, hidden]
    arguments: dict[str, Any] = field(default_factory=dict)  # further arguments of its forward (Qwen3-VL's deepstack)


@dataclass(frozen=True)
class Placed:
    """Features and the tokens of the stream that they belong to, in the stream's order."""

    where: Tensor  # int64 [n], on the device of the features
    features: tuple[Tensor, ...]  # [n, hidden] each: those for the embeddings, then those of deeper layers

    def into(self, embeds: Tensor) -> Tensor:
        """[T, hidden] with the features in place of the placeholders' embeddings."""
        return embeds.index_copy(0, self.where, self.features[0].to(embeds.dtype))


Layers = tuple[Tensor, ...]  # features of one picture, [features, hidden] of one or more layers
Tower = Callable[[list[Media]], list[Layers]]


class FeatureMemo:
    """Features that were computed already, for prompts that are prefilled in parts: the newest ones, by bytes.

    `one_by_one` gives the tower one picture at a time, so that no bit depends on which pictures come together.
    """

    def __init__(self, max_bytes: int, *, one_by_one: bool = False) -> None:
        self.max_bytes, self.one_by_one = max_bytes, one_by_one
        self._known: OrderedDict[bytes, Layers] = OrderedDict()
        self._num_bytes = 0

    def features(self, pictures: Sequence[Media], tower: Tower) -> list[Layers]:
        new = [media for media in pictures if media.digest not in self._known]
        batches = [[media] for media in new] if self.one_by_one else [new] if new else []
        for batch in batches:
            for media, layers in zip(batch, tower(batch), strict=True):
                self._known[media.digest] = layers
                self._num_bytes += _bytes(layers)
        for media in pictures:
            self._known.move_to_end(media.digest)
        found = [self._known[media.digest] for media in pictures]
        while self._num_bytes > self.max_bytes and self._known:
            self._num_bytes -= _bytes(self._known.popitem(last=False)[1])
        return found

    def clear(self) -> None:
        """The weights have changed, or the memory is needed."""
        self._known.clear()
        self._num_bytes = 0


def _bytes(layers: Layers) -> int:
    return sum(layer.nbytes for layer in layers)


def place(slices: Sequence[MediaSlice], tower: Tower, memo: FeatureMemo | None = None) -> Placed:
    """Run the tower once for each different picture, and cut out what the slices show of it."""
    slices = sorted((part for part in slices if part.length > 0), key=lambda part: part.start)
    unique = list({part.media.digest: part.media for part in slices}.values())
    found = tower(unique) if memo is None else memo.features(unique, tower)
    computed = {media.digest: layers for media, layers in zip(unique, found, strict=True)}
    where: list[Tensor] = []
    layers: list[list[Tensor]] = [[] for _ in computed[unique[0].digest]]
    for part in slices:
        before, shown = _features_of(part)
        where.append(part.start + shown)
        for kept, features in zip(layers, computed[part.media.digest], strict=True):
            kept.append(features[before : before + len(shown)])
    features = tuple(torch.cat(kept) for kept in layers)
    return Placed(torch.cat(where).to(features[0].device), features)


def _features_of(part: MediaSlice) -> tuple[int, Tensor]:
    """The number of features before the slice, and the tokens of the slice (from its start) that features replace."""
    mask = part.media.features
    if mask is None:
        return part.first, torch.arange(part.length)
    shown = mask[part.first : part.first + part.length].nonzero().squeeze(-1)
    return int(mask[: part.first].sum()), shown


def to_device(tensors: Sequence[Tensor], model: PreTrainedModel) -> Tensor:
    """Pictures of a micro-batch, joined and copied to where the model computes, without waiting for the copy.

    That is where its embedding is: sharded weights may wait on the CPU, but embeddings are gathered here.
    """
    device = cast(nn.Embedding, model.get_input_embeddings()).weight.device
    joined = torch.cat(list(tensors))
    return joined.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else joined.to(device)
