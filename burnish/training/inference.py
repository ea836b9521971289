"""Columns of a whole batch computed without gradients: log-probs, values, scores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.batch import Batch, Ragged
from burnish.models.model_input import Media
from burnish.training.backend import Backend, HeadFn, MicroBatch, ModelOutput, Output
from burnish.training.batch_shard import ForwardShard
from burnish.training.packing import ROUTED_EXPERTS, MicroBatchSize
from burnish.training.transfer import to_host

if TYPE_CHECKING:
    from burnish.training.reference import Reference


def compute_log_probs(
    backend: Backend, batch: Batch | ForwardShard, temperature: float, size: MicroBatchSize, *, adapters: bool = True
) -> Ragged:
    """Log-probs of the responses, in row order."""

    def head(output: ModelOutput) -> Tensor:
        return output.log_probs(temperature, False)[0]

    return in_row_order(_forward(backend, batch, size, head, adapters=adapters), batch["responses"])


def compute_policy_columns(
    backend: Backend,
    batch: Batch | ForwardShard,
    temperature: float,
    size: MicroBatchSize,
    *,
    sum_pi_squared: bool = False,
    record: bool = False,
) -> dict[str, Ragged]:
    """log_probs and entropys of the responses, in row order, and sum_pi_squared on request.

    `record`: routed_experts too, the experts that this pass sends each token of prompt and response to.
    """

    def head(output: ModelOutput) -> dict[str, Tensor]:
        inputs = output.head_input() if sum_pi_squared else None
        log_probs, entropy = output.log_probs(temperature, True, inputs)
        assert entropy is not None
        columns = {"log_probs": log_probs, "entropys": entropy}
        if sum_pi_squared:
            # With logits z, log p at temperature T is z_a - lse(z) and at T / 2 it is 2 z_a - lse(2 z). So the head's
            # chunked kernels suffice: sum pi^2 = exp(lse(2 z) - 2 lse(z)) = exp(2 log p(T) - log p(T / 2)).
            sharper, _ = output.log_probs(temperature / 2, False, inputs)
            columns["sum_pi_squared"] = (2 * log_probs - sharper).exp()
        if record:
            columns[ROUTED_EXPERTS] = output.routed_experts()
        return columns

    recording = backend.routing.recording() if record and backend.routing is not None else contextlib.nullcontext()
    with recording:
        results = _forward(backend, batch, size, head)
    names = results[0][1] if results else ()
    lengths = batch["prompt_ids"].lengths + batch["responses"].lengths
    whole = Ragged(torch.empty(int(lengths.sum())), lengths)
    like = {name: batch["responses"] for name in names} | {ROUTED_EXPERTS: whole}
    return {name: in_row_order([(rows, columns[name]) for rows, columns in results], like[name]) for name in names}


def compute_exact_kl(
    policy: Backend, reference: Reference, batch: Batch | ForwardShard, temperature: float, size: MicroBatchSize
) -> Ragged:
    """KL of the policy to the reference over the whole vocabulary, at each response token."""

    def head(output: ModelOutput) -> Tensor:
        policy_head = output.head_input()
        return output.exact_kl(reference.head_input(output.micro_batch), temperature, policy_head)

    with reference.backend.on_device():
        parts = _forward(policy, batch, size, head, prepare=reference.prepare)
        return in_row_order(parts, batch["responses"])


def compute_values(backend: Backend, batch: Batch | ForwardShard, size: MicroBatchSize) -> Ragged:
    """The critic's value before each response token."""
    return in_row_order(_forward(backend, batch, size, lambda output: output.values()), batch["responses"])


def compute_scores(
    backend: Backend, rows: Ragged, size: MicroBatchSize, media: Sequence[Sequence[Media]] | None = None
) -> Tensor:
    """A reward model's score at the last token of each row: float32 [rows] on the CPU. `media`: those of each row."""
    empty = Ragged(rows.flat[:0], torch.zeros_like(rows.lengths))
    scores = torch.empty(len(rows))
    columns = {} if media is None else {"media": list(media)}
    batch = Batch(prompt_ids=rows, responses=empty, **columns)
    for numbers, values in _forward(backend, batch, size, lambda output: output.scores()):
        scores[numbers] = values.float().cpu()
    return scores


def in_row_order(parts: list[tuple[list[int], Tensor]], like: Ragged) -> Ragged:
    """Flat results of micro-batches, put back into the batch's row order, on the CPU."""
    if not parts:  # a shard without rows
        return Ragged(torch.empty(0), torch.empty(0, dtype=torch.int64))
    order = torch.tensor([row for rows, _ in parts for row in rows], dtype=torch.int64)
    joined = Ragged(torch.cat([flat.detach().cpu() for _, flat in parts]), like.lengths[order])
    return joined.select(torch.argsort(order))


def _forward(
    backend: Backend,
    batch: Batch | ForwardShard,
    size: MicroBatchSize,
    head: HeadFn[Output],
    *,
    adapters: bool = True,
    prepare: Callable[[Sequence[MicroBatch]], None] | None = None,
) -> list[tuple[list[int], Output]]:
    """(rows, output) of all micro-batches; of a whole batch, including those of other ranks. `prepare` gets
    this rank's micro-batches before they run.

    The host waits for the device once, when all micro-batches are queued.
    """
    parallel = backend.parallel
    is_shard = isinstance(batch, ForwardShard)
    shard = batch if is_shard else ForwardShard(batch, parallel.shard_batch(batch, size))
    batches = shard.select()
    if prepare is not None:
        prepare(batches)
    outputs = backend.forward(batches, head, adapters=adapters)
    pairs = zip(batches, to_host(outputs), strict=True) if parallel.has_results else ()
    results = [(micro_batch.rows, output) for micro_batch, output in pairs if micro_batch.rows]
    return results if is_shard else parallel.gather_lists(results)
