"""ModelInput: what a model is given before it generates: token ids, and the images or videos they refer to."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

MediaKind = Literal["image", "video"]


@dataclass(frozen=True, eq=False)
class Media:
    """One processed image or video, and the span of tokens that stands for it.

    Equal content has an equal `digest`; the tensors themselves are never compared. The span may hold other tokens
    between the placeholders (rows of a split image, time stamps of frames): `features` says which tokens are replaced.
    """

    kind: MediaKind
    digest: bytes  # hash of the content and of how it was processed
    offset: int  # index of the first token of its span in ModelInput.ids
    num_tokens: int  # tokens of its span
    tensors: Mapping[str, Tensor] = field(default_factory=dict)  # the model's keyword arguments: pixels, grids
    features: Tensor | None = None  # [num_tokens] bool: which tokens of the span a feature replaces; None: all
    source: Any = field(default=None, repr=False)  # the picture itself, for engines with a processor of their own

    def at(self, offset: int) -> Media:
        """The same media with its span elsewhere."""
        return replace(self, offset=offset)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Media) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def identity(self) -> tuple[str, bytes, int, int]:
        return (self.kind, self.digest, self.offset, self.num_tokens)


@dataclass(frozen=True)
class ModelInput:
    """Token ids and their media. Two inputs share KV only where `prefix_key` agrees."""

    ids: tuple[int, ...]
    media: tuple[Media, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def prefix_key(self, length: int) -> bytes:
        """Identity of the first `length` tokens: the ids, and every image or video that starts among them."""
        return self._with_media(hashlib.blake2b(array("q", self.ids[:length]).tobytes(), digest_size=16), length)

    def prefix_keys(self, block_size: int) -> Iterator[bytes]:
        """`prefix_key` of 1, 2, ... full blocks of tokens, in linear time."""
        ids_hash = hashlib.blake2b(digest_size=16)
        for end in range(block_size, len(self.ids) + 1, block_size):
            ids_hash.update(array("q", self.ids[end - block_size : end]).tobytes())
            yield self._with_media(ids_hash.copy(), end)

    def _with_media(self, key: hashlib.blake2b, length: int) -> bytes:
        for media in self.media:
            if media.offset < length:
                key.update(repr((media.kind, media.offset, media.num_tokens)).encode() + media.digest)
        return key.digest()

    def common_prefix(self, other: ModelInput) -> int:
        """Length of the longest prefix with the same key in both inputs."""
        low, high = 0, min(len(self.ids), len(other.ids))
        middle = high  # usually one extends the other
        while low < high:  # prefixes that are equal are equal at every shorter length, so bisect
            if self._has_same_prefix(other, middle):
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low

    def _has_same_prefix(self, other: ModelInput, length: int) -> bool:
        """Whether `prefix_key(length)` is the same, without hashing."""
        media, others = ([m for m in input.media if m.offset < length] for input in (self, other))
        return self.ids[:length] == other.ids[:length] and media == others

    @cached_property
    def key(self) -> bytes:
        """Identity of the whole input."""
        return self.prefix_key(len(self.ids))

    def extend(self, ids: tuple[int, ...], media: tuple[Media, ...] = ()) -> ModelInput:
        """This input followed by more tokens. Offsets of `media` count from the start of the whole input."""
        return ModelInput(self.ids + ids, self.media + media)


def features_of(media: Media) -> Tensor:
    """[num_tokens] bool: which tokens of the span a feature replaces."""
    return torch.ones(media.num_tokens, dtype=torch.bool) if media.features is None else media.features


def whole_runs(items: Iterable[Media]) -> list[tuple[int, int]]:
    """(first, end) of every run of tokens that features of one item replace."""
    runs = []
    for media in items:
        if media.features is None:
            runs.append((media.offset, media.offset + media.num_tokens))
            continue
        padded = F.pad(media.features.int(), (1, 1))
        edges = (padded[1:] != padded[:-1]).nonzero().flatten().tolist()
        runs += [(media.offset + first, media.offset + end) for first, end in itertools.pairwise(edges)][::2]
    return runs
