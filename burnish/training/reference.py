"""Reference: the frozen policy of the start, against which KL is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from burnish.batch import Batch, Ragged
from burnish.models.exact_kl import HeadInput
from burnish.training.backend import Backend, MicroBatch
from burnish.training.batch_shard import ForwardShard
from burnish.training.inference import compute_log_probs
from burnish.training.packing import ROUTED_EXPERTS, MicroBatchSize
from burnish.training.protocols import Pending


class Reference:
    """Computes log-probs at the rollout's temperature.

    Where the policy trains adapters, both share one model: the reference is the policy with its adapters disabled.
    """

    def __init__(self, backend: Backend, temperature: float, micro_batch: MicroBatchSize) -> None:
        self.backend = backend
        if backend.adapters is None:
            self.backend.model.requires_grad_(False)
        self.temperature = temperature
        self.micro_batch = micro_batch.for_device(backend.device)
        self._prepared: dict[int, HeadInput] = {}  # by the id of a micro-batch, which waits for its loss

    def compute_log_probs(self, batch: Batch | ForwardShard) -> Ragged:
        """ref_log_prob."""
        own = _without_choices(batch.batch if isinstance(batch, ForwardShard) else batch)
        rows = replace(batch, batch=own) if isinstance(batch, ForwardShard) else own
        return compute_log_probs(self.backend, rows, self.temperature, self.micro_batch, adapters=False)

    def start_log_probs(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        return lambda: {"ref_log_prob": self.compute_log_probs(batch)}

    def prepare(self, batches: Sequence[MicroBatch]) -> None:
        """Before the policy runs these micro-batches, for the exact KL.

        Pipeline stages cannot run one model inside of another: the reference runs all micro-batches first, and the last
        stage keeps the hidden states of their response tokens.
        """
        if self.backend.parallel.pipeline_size == 1:
            return
        own = [replace(micro_batch, batch=_without_choices(micro_batch.batch)) for micro_batch in batches]
        heads = self.backend.forward(own, lambda output: output.head_input(), adapters=False)
        # Other stages have no outputs.
        self._prepared = {id(batch): head for batch, head in zip(batches, heads, strict=False)}

    def head_input(self, micro_batch: MicroBatch) -> HeadInput:
        """Hidden states and head of a micro-batch that the policy runs at the same time, for the exact KL."""
        if id(micro_batch) in self._prepared:
            return self._prepared.pop(id(micro_batch))
        micro_batch = replace(micro_batch, batch=_without_choices(micro_batch.batch))
        (head,) = self.backend.forward([micro_batch], lambda output: output.head_input(), adapters=False)
        return head


def _without_choices(batch: Batch) -> Batch:
    """The reference's own routers choose: recorded choices are the policy's."""
    return batch.keep(*(name for name in batch if name != ROUTED_EXPERTS))
