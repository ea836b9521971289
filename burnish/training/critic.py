"""Critic: the value model, one value before each response token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.algos.aggregate import Totals, aggregate
from burnish.algos.losses import value_loss
from burnish.algos.masked import masked_share
from burnish.batch import Batch, Ragged
from burnish.seeding import derive_seed
from burnish.training.backend import Backend, ModelOutput
from burnish.training.batch_shard import ForwardShard, UpdateShard
from burnish.training.inference import compute_values
from burnish.training.packing import MicroBatchSize
from burnish.training.policy import UpdateResult, shuffle_seed
from burnish.training.protocols import Pending
from burnish.training.trained_role import TrainedRole
from burnish.training.transfer import to_device
from burnish.training.update import LossOutput, UpdatePlan, loss_mask, row_weights, run_updates

if TYPE_CHECKING:
    from burnish.config.critic import CriticConfig


class Critic(TrainedRole):
    """`forward_*` keys set the micro-batches of inference, `ppo_*` keys those of updates."""

    def __init__(
        self,
        backend: Backend,
        config: CriticConfig,
        *,
        rows_per_prompt: int,
        max_response_length: int,
        seed: int,
    ) -> None:
        self.backend = backend
        self.config = config
        self.scale_length = max_response_length
        self.seed = seed
        self.inference_micro_batch = MicroBatchSize.of(
            config.forward_micro_batch_size_per_gpu,
            config.use_dynamic_bsz,
            config.forward_max_token_len_per_gpu,
            share_prompts=config.use_prefix_grouper,
        ).for_device(backend.device)
        self.plan = UpdatePlan(
            epochs=config.ppo_epochs,
            mini_rows=config.ppo_mini_batch_size * rows_per_prompt,
            micro_batch=MicroBatchSize.of(
                config.ppo_micro_batch_size_per_gpu,
                config.use_dynamic_bsz,
                config.ppo_max_token_len_per_gpu,
                share_prompts=config.use_prefix_grouper,
            ).for_device(backend.device),
            grad_clip=config.grad_clip,
            shuffle_seed=shuffle_seed(config.shuffle, config.data_loader_seed, seed),
            mini_batch_order_seed=shuffle_seed(config.shuffle_mini_batches, config.data_loader_seed, seed),
        )

    @property
    def update_columns(self) -> frozenset[str]:
        """What an update reads beside the model's inputs."""
        return frozenset({"response_mask", "loss_mask", "weight", "returns", "values"})

    def compute_values(self, batch: Batch | ForwardShard) -> Ragged:
        """values."""
        return compute_values(self.backend, batch, self.inference_micro_batch)

    def update(self, batch: Batch | UpdateShard, step: int) -> dict[str, float]:
        torch.manual_seed(derive_seed(self.seed, "critic dropout", step))
        lr, num_skipped = self.optimizer.lr, self.optimizer.skipped
        result = run_updates(batch, step, self.plan, self.backend, self._loss, self.on_mini_batch)
        metrics = result.summary("critic", "vf_loss") | {"critic/lr": lr}
        return metrics | {"critic/skipped_updates": float(self.optimizer.skipped - num_skipped)}

    def start_values(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        return lambda: {"values": self.compute_values(batch)}

    def start_update(self, batch: Batch, step: int) -> Pending[UpdateResult]:
        return lambda: UpdateResult(self.update(batch, step), {})

    def _loss(self, output: ModelOutput, count: Totals) -> tuple[Tensor, LossOutput]:
        batch, device = output.micro_batch.batch, self.backend.device
        mask = to_device(loss_mask(batch), device)
        values = output.values()
        returns, old_values = to_device(batch["returns"].flat, device), to_device(batch["values"].flat, device)
        per_token, metrics = value_loss(values, returns, old_values, mask, self.config.cliprange_value)
        lengths = batch["responses"].lengths
        loss = aggregate(
            per_token, mask, lengths, self.config.loss_agg_mode, count, self.scale_length, row_weights(batch)
        )
        return loss, LossOutput(loss.detach(), {**metrics, "vpred_mean": masked_share(values, mask)})
