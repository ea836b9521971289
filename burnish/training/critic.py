"""Critic: learns how good a state is, one value before each response token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.algos.aggregate import Totals, aggregate
from burnish.algos.losses import value_loss
from burnish.algos.masked import Metrics, masked_share
from burnish.batch import Batch, Ragged
from burnish.seeding import derive_seed
from burnish.training.backend import Backend
from burnish.training.inference import compute_values
from burnish.training.learner import Learner
from burnish.training.optim import Optimizer
from burnish.training.packing import Cut, PackedRows
from burnish.training.policy import shuffle_seed
from burnish.training.transfer import to_device
from burnish.training.update import UpdatePlan, loss_mask, row_weights, run_updates

if TYPE_CHECKING:
    from burnish.config.critic import CriticConfig


class Critic(Learner):
    """The value model. `forward_*` keys cut reading, `ppo_*` keys cut teaching."""

    def __init__(
        self,
        backend: Backend,
        optimizer: Optimizer,
        config: CriticConfig,
        *,
        rows_per_prompt: int,
        max_response_length: int,
        seed: int,
    ) -> None:
        self.backend = backend
        self.optimizer = optimizer
        self.config = config
        self.scale_length = max_response_length
        self.seed = seed
        self.inference_cut = Cut.of(
            config.forward_micro_batch_size_per_gpu, config.use_dynamic_bsz, config.forward_max_token_len_per_gpu
        ).on(backend.device)
        self.plan = UpdatePlan(
            epochs=config.ppo_epochs,
            mini_rows=config.ppo_mini_batch_size * rows_per_prompt,
            cut=Cut.of(
                config.ppo_micro_batch_size_per_gpu, config.use_dynamic_bsz, config.ppo_max_token_len_per_gpu
            ).on(backend.device),
            grad_clip=config.grad_clip,
            shuffle_seed=shuffle_seed(config.shuffle, config.data_loader_seed, seed),
        )

    def compute_values(self, batch: Batch) -> Ragged:
        """values."""
        return compute_values(self.backend, batch, self.inference_cut)

    def update(self, batch: Batch, step: int) -> dict[str, float]:
        torch.manual_seed(derive_seed(self.seed, "critic dropout", step))
        self.backend.model.train()
        lr, skipped = self.optimizer.lr, self.optimizer.skipped
        with self.backend.at_work(), self.optimizer.at_work():
            done = run_updates(batch, step, self.plan, self.optimizer, self._loss, self.backend.parallel)
        numbers = done.numbers("critic", "vf_loss") | {"critic/lr": lr}
        return numbers | {"critic/skipped_updates": float(self.optimizer.skipped - skipped)}

    def _loss(self, micro: Batch, rows: list[int], count: Totals) -> tuple[Tensor, Tensor, Metrics]:
        device = self.backend.device
        mask = to_device(loss_mask(micro), device)
        values = self.backend.values(PackedRows.of(micro, device))
        returns, old_values = to_device(micro["returns"].flat, device), to_device(micro["values"].flat, device)
        per_token, found = value_loss(values, returns, old_values, mask, self.config.cliprange_value)
        lengths = micro["responses"].lengths
        loss = aggregate(
            per_token, mask, lengths, self.config.loss_agg_mode, count, self.scale_length, row_weights(micro)
        )
        return loss, loss, {**found, "vpred_mean": masked_share(values, mask)}
