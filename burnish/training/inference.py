"""Reading a model: columns of the whole batch from micro-batches without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.batch import Batch, Ragged
from burnish.models.exact_kl import exact_kl
from burnish.training.backend import Backend
from burnish.training.packing import Cut, PackedRows, row_lengths
from burnish.training.parallel import IDLE

if TYPE_CHECKING:
    from burnish.training.reference import Reference


def compute_log_probs(
    backend: Backend, batch: Batch, temperature: float, cut: Cut, with_entropy: bool
) -> tuple[Ragged, Ragged | None]:
    """Log-probs (and entropies) of the responses, in row order."""
    parts = _read(backend, batch, cut, lambda rows: backend.log_probs(rows, temperature, with_entropy))
    log_probs = in_row_order([(index, found[0]) for index, found in parts], batch["responses"])
    if not with_entropy:
        return log_probs, None
    return log_probs, in_row_order([(index, found[1]) for index, found in parts], batch["responses"])


def compute_exact_kl(policy: Backend, reference: Reference, batch: Batch, temperature: float, cut: Cut) -> Ragged:
    """The KL of the policy to the reference over the whole vocabulary, at each response token."""

    def read(rows: PackedRows) -> Tensor:
        inputs = policy.head_input(rows), reference.head_input(rows)
        return exact_kl(*inputs, temperature, kernel=policy.options.head)

    with reference.backend.at_work():
        return in_row_order(_read(policy, batch, cut, read), batch["responses"])


def compute_values(backend: Backend, batch: Batch, cut: Cut) -> Ragged:
    """The critic's value before each response token."""
    return in_row_order(_read(backend, batch, cut, backend.values), batch["responses"])


def compute_scores(backend: Backend, rows: Ragged, cut: Cut) -> Tensor:
    """A reward model's score at the last token of each row: float32 [rows] on the CPU."""
    empty = Ragged(rows.flat[:0], torch.zeros_like(rows.lengths))
    scores = torch.empty(len(rows))
    for index, found in _read(backend, Batch(prompt_ids=rows, responses=empty), cut, backend.scores):
        scores[index] = found.float().cpu()
    return scores


def in_row_order(parts: list[tuple[list[int], Tensor]], like: Ragged) -> Ragged:
    """Flat results of micro-batches, put back into the batch's row order, on the CPU."""
    order = torch.tensor([row for index, _ in parts for row in index], dtype=torch.int64)
    joined = Ragged(torch.cat([flat.detach().cpu() for _, flat in parts]), like.lengths[order])
    return joined.select(torch.argsort(order))


def _read(backend: Backend, batch: Batch, cut: Cut, read: Callable) -> list[tuple[list[int], Tensor]]:
    """(rows, what was read of them) of all micro-batches, also of those that other ranks read."""
    backend.model.eval()
    parallel = backend.parallel
    with torch.no_grad(), backend.at_work():
        found = [
            (index, read(PackedRows.of(batch.select(index or IDLE), backend.device)))
            for index in parallel.shard_batch(row_lengths(batch), cut)
        ]
    return parallel.collect([part for part in found if part[0]])
