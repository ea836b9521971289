"""VerifyStep: a decode step that verifies drafts (drafter.py), in the device loop.

A slot of the batch has several rows: its newest token, then its drafts, each in its own place. All keys and values are
written before a row attends. A row is sampled with the noise of its place, so that the tokens up to the first that
differs from its draft are those that decoding one by one would have sampled. What wrong drafts leave in the cache is
beyond `length` and written again. Nothing is synchronized with the host: a CUDA graph can capture the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.models.wide import hidden_states
from burnish.rollout.engines.builtin.decode_plan import DecodePlan
from burnish.rollout.engines.builtin.decode_step import DecodeStep, StepBuffers
from burnish.rollout.engines.builtin.device_batch import DeviceBatch, Mirror, SamplingMode
from burnish.rollout.engines.builtin.paged_attention import DeviceDecode
from burnish.rollout.engines.builtin.sequence import SequenceState
from burnish.sizing import FLOAT_COLUMNS as FLOATS
from burnish.sizing import INT_COLUMNS as INTS

DEPTHS = (3, 7)  # drafts of each slot that a step has rows for


def draft_depths(num_tokens: int) -> tuple[int, ...]:
    """Ascending, where a response may have so many drafts in a step."""
    return tuple(sorted({min(depth, num_tokens) for depth in DEPTHS}))


class DraftRows:
    """The drafts of every slot, as tensors of fixed addresses."""

    def __init__(self, num_slots: int, depths: Sequence[int], device: torch.device) -> None:
        self.depths = depths
        self.tokens = Mirror((num_slots, depths[-1]), torch.int64, device)
        self.counts = Mirror((num_slots,), torch.int64, device)

    def push(self, sequences: Sequence[SequenceState], drafts: Sequence[Sequence[int]]) -> None:
        """Send those of sequences that are in the batch."""
        self.counts.host.fill(0)
        for sequence, tokens in zip(sequences, drafts, strict=True):
            self.tokens.host[sequence.slot, : len(tokens)] = tokens
            self.counts.host[sequence.slot] = len(tokens)
        for mirror in (self.tokens, self.counts):
            mirror.push()


class Rows(NamedTuple):
    """A part of a tensor, in the place of a Mirror."""

    device: Tensor


class BatchRows:
    """The settings and tokens of the batch, by row: row i is place[i] tokens further than its slot, slot[i]."""

    def __init__(self, batch: DeviceBatch, slot: Tensor, place: Tensor, mode: SamplingMode) -> None:
        self.vocabulary = batch.vocabulary
        self._ints, self._floats = batch.ints.device[:, slot], batch.floats.device[:, slot]
        self._ints[INTS.index("num_tokens")] += place
        # Of the slow rows only. Sequences whose history matters have no drafts: of their rows, the first counts.
        slow = slot[: mode.num_slow]
        tables = (batch.end_ids, batch.bad_prefixes, batch.bad_last)
        self.end_ids, self.bad_prefixes, self.bad_last = (Rows(table.device[slow]) for table in tables)
        self.history = Rows(batch.history.device[slow] if mode.looks_back else batch.history.device)

    def tensor(self, name: str, count: int) -> Tensor:
        part, names = (self._ints, INTS) if name in INTS else (self._floats, FLOATS)
        return part[names.index(name), :count]


class VerifyStep(DecodeStep):
    """For the first `size` slots of the batch, with up to `depth` drafts each."""

    def __init__(
        self,
        model: PreTrainedModel,
        buffers: StepBuffers,
        size: int,
        mode: SamplingMode,
        plan: DecodePlan,
        drafts: DraftRows,
        depth: int,
    ) -> None:
        # Each row reads all of its KV: clusters are those of slots. Explicit layers are for one row per slot.
        super().__init__(model, buffers._replace(prefixes=None, layers=None), size, mode, plan)
        self.depth, self.width = depth, 1 + depth
        self.num_rows = size * self.width
        self.mode = self.mode._replace(num_slow=self.mode.num_slow * self.width)
        self.drafts, self.num_drafts = drafts.tokens.device[:size, :depth], drafts.counts.device[:size]
        rows = torch.arange(self.num_rows, device=self.token.device)
        self.slot, self.place = rows // self.width, rows % self.width

    @torch.inference_mode()
    def __call__(self) -> None:
        self.rows = BatchRows(self.batch, self.slot, self.place, self.mode)
        super().__call__()
        self.rows = self.batch  # a capture's memory can be used by others again

    def _forward(self) -> Tensor:
        block_size, slot = self.block_size, self.slot
        is_used = self.active.bool()[slot] & (self.place <= self.num_drafts[slot])
        before = self.length[slot]
        length = torch.where(is_used, before + self.place, before)
        tables = self.tables[slot]
        number = (length // block_size).clamp(max=tables.shape[1] - 1)
        slots = tables.gather(1, number[:, None]).squeeze(1) * block_size + length % block_size
        spare = torch.full_like(slots, self.dummy_slot)
        slots, lengths = torch.where(is_used, slots, spare), torch.where(is_used, length + 1, 1)
        attention = DeviceDecode(slots, tables, lengths, self.plan.triton, spare=spare)
        tokens = torch.cat([self.token[:, None], self.drafts], dim=1).flatten()
        positions = length if self.offset is None else length + self.offset[slot]
        hidden = hidden_states(self.model, tokens, positions, attention)
        if self.keep_experts is not None:
            self.keep_experts(slots)
        return hidden

    def _keep_top(self, start: int, ids: Tensor, values: Tensor) -> None:
        part = slice(start, start + len(ids))
        where = self.slot[part], self.place[part]
        self.batch.top_ids.device[where] = ids
        self.batch.top_values.device[where] = values

    def _append_history(self, tokens: Tensor) -> None:
        """Sequences that look back have one token each."""
        super()._append_history(tokens.view(-1, self.width)[:, 0])

    def _advance(self, tokens: Tensor, log_probs: Tensor) -> None:
        """Of each slot, record the tokens up to the first that differs from its draft, or ends the sequence."""
        batch, size, width = self.batch, self.size, self.width
        tokens, log_probs = tokens.view(size, width), log_probs.view(size, width)
        batch.tokens.device[:size, :width] = tokens
        batch.log_probs.device[:size, :width] = log_probs
        place = self.place[:width]
        right = (tokens[:, :-1] == self.drafts) & (place[:-1] < self.num_drafts[:, None])
        count = 1 + right.long().cumprod(1).sum(1)
        ends = (tokens[..., None] == batch.end_ids.device[:size, None]).any(-1)
        ends |= self.num_tokens[:, None] + 1 + place >= self.limit[:, None]
        num_before_end = (ends.long().cumsum(1) == 0).sum(1)
        has_ended = num_before_end < count
        count = torch.where(has_ended, num_before_end + 1, count) * self.active
        self.num_tokens.add_(count)
        self.length.add_(count)
        newest = tokens.gather(1, (count - 1).clamp(min=0)[:, None]).squeeze(1)
        self.token.copy_(torch.where(self.active.bool(), newest, self.token))
        self.active.mul_(~has_ended)
