"""Sequence parallelism: each rank holds a slice of one packed token stream, and attention combines the slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from burnish.models.autocast import in_autocast_dtype
from burnish.models.routing import ARGUMENT, missing
from burnish.models.sequence.method import Method
from burnish.models.sequence.places import Places
from burnish.models.sequence.spans import Span, own, share_of, spans_of
from burnish.models.sequence.ulysses import ulysses_attention
from burnish.models.varlen import AttentionShape, Segments


@dataclass(frozen=True)
class SequenceParallel:
    """The ranks that share a stream. All of them must call the same methods in the same order."""

    group: ProcessGroup
    method: Method
    heads: ProcessGroup | None = None  # of the ranks that divide the heads of a slice, where others pass slices on
    ring: ProcessGroup | None = None  # of those others

    @staticmethod
    def of(group: ProcessGroup, method: Method) -> SequenceParallel:
        """With the groups that the method needs; all ranks of the group must call it together."""
        if method.inner == 1:
            return SequenceParallel(group, method)
        ranks, inner = distributed.get_process_group_ranks(group), method.inner
        outer, member = divmod(group.rank(), inner)
        heads, ring = (
            cast(ProcessGroup, distributed.new_group(members, use_local_synchronization=True))
            for members in (ranks[outer * inner : (outer + 1) * inner], ranks[member::inner])
        )
        return SequenceParallel(group, method, heads, ring)

    @property
    def own_groups(self) -> list[ProcessGroup]:
        """Groups beside that of all ranks."""
        return [group for group in (self.heads, self.ring) if group is not None]

    def inputs(self, whole: dict[str, Any]) -> dict[str, Any]:
        """Model arguments for a packed stream -> those for this rank's slice.

        Slices have equal length: the stream is padded by an extra segment. `segments` remain those of the stream, whose
        parts a slice joins.
        """
        tokens, segments = whole["input_ids"].shape[1], Segments.of(whole["segments"], whole["input_ids"].device)
        share, spans = self._share(tokens), self.spans(tokens)
        padding = share * self.group.size() - tokens
        positions = whole["position_ids"]  # [1, T] or [rows, 1, T]
        replayed = {}
        if ARGUMENT in whole:
            choices = whole[ARGUMENT]
            padded = F.pad(choices, (0, 0, 0, 0, 0, padding), value=missing(choices.dtype))
            replayed[ARGUMENT] = own(padded, spans, 0)
        following = torch.arange(padding, device=positions.device).expand(*positions.shape[:-1], padding)
        return {
            **whole,
            **replayed,
            "input_ids": own(F.pad(whole["input_ids"], (0, padding)), spans, -1),
            "position_ids": own(torch.cat([positions, following], dim=-1), spans, -1),
            "segments": segments.padded(padding) if padding else segments,
            "sequence": self,
        }

    def spans(self, tokens: int) -> list[Span]:
        """The parts of a stream that are this rank's slice."""
        return spans_of(self.group.rank(), self.group.size(), self._share(tokens), self.method.parts, self.method.inner)

    def places(self, wanted: Tensor, tokens: int) -> Places:
        """Which of the positions `wanted` [R] of a stream this rank holds."""
        local = torch.full_like(wanted, -1)
        for span in self.spans(tokens):
            local = torch.where((wanted >= span.start) & (wanted < span.stop), wanted - span.start + span.offset, local)
        mine = torch.nonzero(local >= 0).squeeze(-1)
        return Places(local[mine], mine, len(wanted), self.group)

    def attend(
        self,
        query: Tensor,  # [1, heads, share, d]
        key: Tensor,
        value: Tensor,
        segments: list[int],
        shape: AttentionShape,
        product: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """[1, share, heads, d]; `product` is the attention of whole segments."""
        query, key, value = in_autocast_dtype(query, key, value)  # communicate in the dtype of the computation
        if self.heads is not None:
            around = partial(self._around, segments=segments, shape=shape, product=product)
            return ulysses_attention(self.heads, query, key, value, segments, shape, around)
        return self.method.attend(self.group, query, key, value, segments, shape, product)

    def _around(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Attention of some of the heads of a slice that several ranks had, over the ring of slices."""
        return self.method.attend(self.ring, query, key, value, **options)

    def _share(self, tokens: int) -> int:
        return share_of(tokens, self.group.size(), self.method.parts)
