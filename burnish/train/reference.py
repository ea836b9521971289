"""Reference: the policy as it was at the start, frozen; the KL is measured against it."""

from __future__ import annotations

from burnish.batch import Batch, Ragged
from burnish.train.backend import Backend
from burnish.train.packing import Cut
from burnish.train.read import read_log_probs


class Reference:
    """Log-probs at the temperature of the rollout, as the policy's own are read."""

    def __init__(self, backend: Backend, temperature: float, cut: Cut) -> None:
        self.backend = backend
        self.backend.model.requires_grad_(False)
        self.temperature = temperature
        self.cut = cut.on(backend.device)

    def read(self, batch: Batch) -> Ragged:
        """ref_log_prob."""
        return read_log_probs(self.backend, batch, self.temperature, self.cut, with_entropy=False)[0]
