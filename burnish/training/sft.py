"""SftModel: a model that learns the tokens it is shown (supervised fine-tuning)."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algos.aggregate import Totals, aggregate
from burnish.algos.masked import Metrics
from burnish.batch import Batch
from burnish.seeding import derive_seed
from burnish.training.backend import Backend
from burnish.training.inference import compute_log_probs
from burnish.training.learner import Learner
from burnish.training.optim import Optimizer
from burnish.training.packing import PackedRows, row_lengths
from burnish.training.transfer import to_device
from burnish.training.update import UpdatePlan, loss_mask, run_updates


class SftModel(Learner):
    """Cross entropy, averaged over the taught tokens of the whole batch, however it is cut."""

    def __init__(self, backend: Backend, optimizer: Optimizer, plan: UpdatePlan, *, seed: int) -> None:
        self.backend = backend
        self.optimizer = optimizer
        self.plan = plan
        self.seed = seed

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        """One update from the whole batch."""
        torch.manual_seed(derive_seed(self.seed, "dropout", step))
        self.backend.model.train()
        lr, skipped = self.optimizer.lr, self.optimizer.skipped
        with self.backend.at_work(), self.optimizer.at_work():
            done = run_updates(batch, step, self.plan, self.optimizer, self._loss, self.backend.parallel)
        return done.numbers("train", "loss") | {
            "train/lr": lr,
            "train/skipped_updates": float(self.optimizer.skipped - skipped),
            "train/taught_tokens": float(loss_mask(batch).sum()),
            "train/tokens": float(row_lengths(batch).sum()),
        }

    def measure(self, batch: Batch) -> tuple[float, float]:
        """Summed cross entropy of the taught tokens, and how many they are."""
        log_probs, _ = compute_log_probs(self.backend, batch, 1.0, self.plan.cut, with_entropy=False)
        mask = loss_mask(batch)
        return float(-(log_probs.flat.double() * mask).sum()), float(mask.sum())

    def _loss(self, micro: Batch, rows: list[int], count: Totals) -> tuple[Tensor, Tensor, Metrics]:
        device = self.backend.device
        log_probs, _ = self.backend.log_probs(PackedRows.of(micro, device), 1.0, with_entropy=False)
        mask, lengths = to_device(loss_mask(micro), device), micro["responses"].lengths
        loss = aggregate(-log_probs, mask, lengths, "token-mean", count, 1)
        return loss, loss, {}
