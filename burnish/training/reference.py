"""Reference: the policy as it was at the start, frozen; the KL is measured against it."""

from __future__ import annotations

import torch

from burnish.batch import Batch, Ragged
from burnish.models.exact_kl import HeadInput
from burnish.training.backend import Backend
from burnish.training.inference import compute_log_probs
from burnish.training.packing import Cut, PackedRows


class Reference:
    """Log-probs at the temperature of the rollout, as the policy's own are read.

    Where the policy trains adapters, both hold one model: the reference is the policy with its adapters off.
    """

    def __init__(self, backend: Backend, temperature: float, cut: Cut) -> None:
        self.backend = backend
        if backend.adapters is None:
            self.backend.model.requires_grad_(False)
        self.temperature = temperature
        self.cut = cut.on(backend.device)

    def compute_log_probs(self, batch: Batch) -> Ragged:
        """ref_log_prob."""
        with self.backend.without_adapters():
            return compute_log_probs(self.backend, batch, self.temperature, self.cut, with_entropy=False)[0]

    @torch.no_grad()
    def head_input(self, rows: PackedRows) -> HeadInput:
        """What the exact KL needs of it: hidden states and head, for rows that the policy reads at the same time."""
        model = self.backend.model
        was_training = model.training
        model.eval()
        with self.backend.at_work(), self.backend.without_adapters():
            found = self.backend.head_input(rows)
        model.train(was_training)
        return found
