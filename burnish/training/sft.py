"""SftModel: supervised fine-tuning, the cross entropy of given responses."""

from __future__ import annotations

import torch
from torch import Tensor

from burnish.algos.aggregate import Totals, aggregate
from burnish.batch import Batch, Ragged
from burnish.seeding import derive_seed
from burnish.training.backend import Backend, ModelOutput
from burnish.training.batch_shard import ForwardShard, UpdateShard
from burnish.training.inference import compute_log_probs
from burnish.training.trained_role import TrainedRole
from burnish.training.transfer import to_device
from burnish.training.update import LossOutput, UpdatePlan, loss_mask, run_updates


class SftModel(TrainedRole):
    """Cross entropy, averaged over the target tokens of the whole batch, however it is split."""

    def __init__(self, backend: Backend, plan: UpdatePlan, *, seed: int) -> None:
        self.backend = backend
        self.plan = plan
        self.inference_micro_batch = plan.micro_batch
        self.seed = seed

    @property
    def update_columns(self) -> frozenset[str]:
        """What an update reads beside the model's inputs."""
        return frozenset({"response_mask"})

    def update(self, batch: Batch | UpdateShard, step: int) -> dict[str, float]:
        """One update on the whole batch."""
        torch.manual_seed(derive_seed(self.seed, "dropout", step))
        lr, num_skipped = self.optimizer.lr, self.optimizer.skipped
        result = run_updates(batch, step, self.plan, self.backend, self._loss)
        return result.summary("train", "loss") | {
            "train/lr": lr,
            "train/skipped_updates": float(self.optimizer.skipped - num_skipped),
        }

    def compute_log_probs(self, batch: Batch | ForwardShard) -> Ragged:
        """Log-probs of all tokens from the first target on."""
        return compute_log_probs(self.backend, batch, 1.0, self.inference_micro_batch)

    def _loss(self, output: ModelOutput, count: Totals) -> tuple[Tensor, LossOutput]:
        batch = output.micro_batch.batch
        log_probs, _ = output.log_probs(1.0, with_entropy=False)
        mask, lengths = to_device(loss_mask(batch), self.backend.device), batch["responses"].lengths
        loss = aggregate(-log_probs, mask, lengths, "token-mean", count, 1)
        return loss, LossOutput(loss.detach())
