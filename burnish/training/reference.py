"""Reference: the frozen policy of the start, against which KL is measured."""

from __future__ import annotations

from burnish.batch import Batch, Ragged
from burnish.models.exact_kl import HeadInput
from burnish.training.backend import Backend, MicroBatch
from burnish.training.batch_shard import ForwardShard
from burnish.training.inference import compute_log_probs
from burnish.training.packing import MicroBatchSize


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

    def compute_log_probs(self, batch: Batch | ForwardShard) -> Ragged:
        """ref_log_prob."""
        return compute_log_probs(self.backend, batch, self.temperature, self.micro_batch, adapters=False)

    def head_input(self, micro_batch: MicroBatch) -> HeadInput:
        """Hidden states and head of a micro-batch that the policy runs at the same time, for the exact KL."""
        (head,) = self.backend.forward([micro_batch], lambda output: output.head_input(), adapters=False)
        return head
