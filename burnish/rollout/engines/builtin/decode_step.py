"""DecodeStep: one more token for every sequence, from the newest tokens to the end-of-sequence test.

A step reads and writes tensors at fixed addresses and never synchronizes with the host, so a CUDA graph can capture it;
called directly, it does the same without a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.models.kernels.invariant import product
from burnish.models.kernels.sample import log_probs_of, measure_chunks, sample_tokens
from burnish.models.kernels.step import advance, place_tokens
from burnish.models.parts import head_weight, logit_softcap
from burnish.models.wide import hidden_states
from burnish.rollout.engines.builtin.decode_layers import DecodeLayers
from burnish.rollout.engines.builtin.decode_plan import DecodePlan
from burnish.rollout.engines.builtin.device_batch import DeviceBatch, SamplingMode
from burnish.rollout.engines.builtin.device_sampling import SamplingRows, sample_slots, slot_settings
from burnish.rollout.engines.builtin.invariant_attention import InvariantPaged
from burnish.rollout.engines.builtin.paged_attention import DeviceDecode
from burnish.rollout.engines.builtin.sampling import sample_from
from burnish.rollout.engines.builtin.shared_prefix import PrefixClusters


class StepBuffers(NamedTuple):
    """Tensors that all steps of an engine share."""

    batch: DeviceBatch
    logits: Tensor  # [rows at once, vocabulary], reused by every part of a batch
    block_size: int
    dummy_slot: int  # a slot of the cache that no sequence reads: inactive slots write there
    has_media: bool  # whether the position of a token may differ from its index
    keep_experts: Callable[[Tensor], None] | None = None  # stores those that the tokens at these slots were sent to
    prefixes: PrefixClusters | None = None  # None: every sequence reads all of its KV
    layers: DecodeLayers | None = None  # for small batches; None: the model's own


class DecodeStep:
    """For the first `size` slots of the batch."""

    def __init__(
        self, model: PreTrainedModel, buffers: StepBuffers, size: int, mode: SamplingMode, plan: DecodePlan
    ) -> None:
        self.model, self.size, self.plan = model, size, plan
        self.num_rows = size  # of a pass
        self.batch, self.logits, self.block_size, self.dummy_slot, _, self.keep_experts, prefixes, layers = buffers
        self.layers = layers if size <= plan.few_rows else None
        self.fused = self.layers is not None and plan.triton  # few kernels also around the layers
        self.prefixes = None if prefixes is None else prefixes.of_slots(size)
        self.rows: SamplingRows = self.batch  # whose settings the rows are sampled by
        self.mode = mode._replace(num_slow=min(mode.num_slow, size))
        self.head, self.softcap = head_weight(model), logit_softcap(model)
        self.tables = self.batch.tables.device[:size]
        self.offset = self.batch.tensor("offset", size) if buffers.has_media else None
        self.token, self.length, self.num_tokens, self.active, self.limit = (
            self.batch.tensor(name, size) for name in ("token", "length", "num_tokens", "active", "limit")
        )

    @torch.inference_mode()
    def __call__(self) -> None:
        hidden = self._forward()
        sampled = [self._sample(part, start) for start, part in self._parts(hidden)]
        tokens, log_probs = sampled[0] if len(sampled) == 1 else map(torch.cat, zip(*sampled, strict=True))
        if self.mode.looks_back:
            self._append_history(tokens[: self.mode.num_slow])
        self._advance(tokens, log_probs)

    def _forward(self) -> Tensor:
        slots, lengths = self._place()
        counters = None if self.layers is None else self.layers.products.counters
        if self.plan.invariant:
            attention = InvariantPaged.decode(slots, self.tables, lengths, self.block_size)
        else:
            attention = DeviceDecode(slots, self.tables, lengths, self.plan.triton, self.prefixes, counters)
        positions = self.length if self.offset is None else self.length + self.offset
        if self.layers is not None:
            return self.layers(self.token, positions, attention)
        hidden = hidden_states(self.model, self.token, positions, attention)
        if self.keep_experts is not None:
            self.keep_experts(slots)
        return hidden

    def _place(self) -> tuple[Tensor, Tensor]:
        """Slots of the newest tokens, and how many tokens they attend to: one where a slot of the batch is inactive,
        which writes to the dummy slot."""
        if self.fused:
            return place_tokens(self.active, self.length, self.tables, self.block_size, self.dummy_slot)
        block_size, active = self.block_size, self.active.bool()
        number = (self.length // block_size).clamp(max=self.tables.shape[1] - 1)
        slots = self.tables.gather(1, number[:, None]).squeeze(1) * block_size + self.length % block_size
        return torch.where(active, slots, self.dummy_slot), torch.where(active, self.length + 1, 1)

    def _parts(self, hidden: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(first row, hidden states) of as many rows at once as the logits buffer holds."""
        at_once = len(self.logits)
        return zip(range(0, self.num_rows, at_once), hidden.split(at_once), strict=True)

    def _sample(self, hidden: Tensor, start: int) -> tuple[Tensor, Tensor]:
        if self.plan.invariant:
            return self._sample_invariant(hidden, start)
        logits = torch.mm(hidden, self.head.t(), out=self.logits[: len(hidden)])
        tokens, log_probs = self._sample_plain(logits, start)
        num_slow = min(self.mode.num_slow - start, len(hidden))
        return self._sample_slow(logits[:num_slow], start, tokens, log_probs) if num_slow > 0 else (tokens, log_probs)

    def _sample_invariant(self, hidden: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """The same, with the log-probs of training whatever the settings."""
        slots = slice(start, start + len(hidden))
        logits = product(hidden, [self.head], [None], out=self.logits[: len(hidden)])
        temperature, greedy, seed, index = (
            self.batch.tensor(name, self.size)[slots] for name in ("temperature", "greedy", "seed", "num_tokens")
        )
        measured = measure_chunks(logits, temperature, self.softcap)
        tokens, log_probs = sample_tokens(logits, temperature, greedy, seed, index, self.softcap, measured)
        num_slow = min(self.mode.num_slow - start, len(hidden))
        if num_slow > 0:
            tokens, _ = self._sample_slow(logits[:num_slow], start, tokens, log_probs)
        return tokens, log_probs_of(logits, temperature, tokens, self.softcap, measured)[0]

    def _sample_plain(self, logits: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Every row, by its temperature alone."""
        part = slice(start, start + len(logits))
        temperature, greedy, seed, index = (
            self.rows.tensor(name, self.num_rows)[part] for name in ("temperature", "greedy", "seed", "num_tokens")
        )
        if self.plan.triton:
            return sample_tokens(logits, temperature, greedy, seed, index, self.softcap)
        settings = slot_settings(self.rows, start, len(logits), restricted=False)
        log_probs = torch.log_softmax(self._capped(logits) / settings.temperature[:, None], -1)
        return sample_from(log_probs, log_probs, settings, index)

    def _sample_slow(self, logits: Tensor, start: int, tokens: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """The first rows again, with all of their settings."""
        num_slow = len(logits)
        sampled = sample_slots(self._capped(logits), self.rows, self.mode, start)
        if sampled.top_ids is not None and sampled.top_values is not None:
            self._keep_top(start, sampled.top_ids, sampled.top_values)
        return torch.cat([sampled.tokens, tokens[num_slow:]]), torch.cat([sampled.log_probs, log_probs[num_slow:]])

    def _keep_top(self, start: int, ids: Tensor, values: Tensor) -> None:
        slots = slice(start, start + len(ids))
        self.batch.top_ids.device[slots].index_copy_(1, self.batch.step, ids[:, None])
        self.batch.top_values.device[slots].index_copy_(1, self.batch.step, values[:, None])

    def _capped(self, logits: Tensor) -> Tensor:
        logits = logits.float()
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def _advance(self, tokens: Tensor, log_probs: Tensor) -> None:
        """Record the tokens, and deactivate sequences that have ended, by a token or by their length."""
        batch, step = self.batch, self.batch.step
        all_tokens, all_log_probs = batch.tokens.device[: self.size], batch.log_probs.device[: self.size]
        end_ids = batch.end_ids.device[: self.size]
        if self.fused:
            columns = (self.token, self.length, self.num_tokens, self.active, self.limit)
            advance(tokens, log_probs, all_tokens, all_log_probs, end_ids, step, columns)
            return
        all_tokens.index_copy_(1, step, tokens[:, None])
        all_log_probs.index_copy_(1, step, log_probs[:, None])
        step.add_(1).remainder_(batch.sync_interval)  # stays in range however often a capture runs the step
        self.num_tokens.add_(self.active)
        self.length.add_(self.active)
        self.token.copy_(torch.where(self.active.bool(), tokens, self.token))
        ended = (tokens[:, None] == end_ids).any(-1) | (self.num_tokens >= self.limit)
        self.active.mul_(~ended)

    def _append_history(self, tokens: Tensor) -> None:
        """The sampled tokens of slots that look back, before `_advance` counts them."""
        num_slow = len(tokens)
        history = self.batch.history.device[:num_slow]
        position = self.batch.tensor("num_prompt", num_slow) + self.num_tokens[:num_slow]
        position = torch.where(self.active[:num_slow].bool(), position, history.shape[1] - 1)
        history.scatter_(1, position[:, None], tokens[:, None])
