"""Policy: the trained language model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.algos.aggregate import Totals, aggregate, totals
from burnish.algos.kl import KL_ESTIMATORS, kl_penalty
from burnish.algos.losses import LOSSES, LossOptions, weighted
from burnish.algos.masked import Share, masked_share
from burnish.batch import Batch, Ragged
from burnish.config.expert_rules import ENGINE_MODES, MODE, RECORD, TRAINER_MODES
from burnish.errors import UserError
from burnish.models.exact_kl import HeadInput
from burnish.models.router import check_router
from burnish.seeding import derive_seed
from burnish.training.backend import Backend, ModelOutput, has_dropout
from burnish.training.batch_shard import ForwardShard, UpdateShard
from burnish.training.ema import MovingAverage
from burnish.training.inference import compute_exact_kl, compute_policy_columns, in_row_order
from burnish.training.packing import ROUTED_EXPERTS, MicroBatchSize
from burnish.training.protocols import Pending
from burnish.training.reference import Reference
from burnish.training.trained_role import TrainedRole
from burnish.training.transfer import to_device
from burnish.training.update import LossOutput, UpdatePlan, loss_mask, row_weights, run_updates

if TYPE_CHECKING:
    from burnish.config.actor import ActorConfig


@dataclass(frozen=True)
class UpdateResult:
    """Metrics of an update, and columns it computed on the way where the batch lacked them."""

    metrics: dict[str, float]
    columns: dict[str, Ragged]


class Policy(TrainedRole):
    """`inference_micro_batch` is the micro-batch size of inference; the actor's own keys set that of updates.

    `loss` replaces the loss that the config names; `old_column` holds the log-probs of the ratio's denominator;
    `reference` serves the exact KL, which needs its hidden states during the update; `sum_pi_squared` adds that column
    to the log-probs, for advantage estimators that need it.
    """

    def __init__(
        self,
        backend: Backend,
        config: ActorConfig,
        *,
        temperature: float,
        rows_per_prompt: int,
        max_response_length: int,
        inference_micro_batch: MicroBatchSize,
        seed: int,
        loss: str | None = None,
        old_column: str = "old_log_probs",
        reference: Reference | None = None,
        sum_pi_squared: bool = False,
    ) -> None:
        self.backend = backend
        self.config = config
        self.old_column = old_column
        self.reference = reference
        self.sum_pi_squared = sum_pi_squared
        if config.aux_loss_coef > 0:
            check_router(backend.model, "actor_rollout_ref.actor.aux_loss_coef", config.aux_loss_coef)
        if config.ema_beta is not None:
            self.optimizer.average = MovingAverage(backend.model, config.ema_beta)
        self.temperature = temperature
        self.scale_length = config.loss_scale_factor or max_response_length
        self.inference_micro_batch = inference_micro_batch.for_device(backend.device)
        self.seed = seed
        self.loss = LOSSES[loss or config.policy_loss.loss_mode]
        self.options = loss_options(config)
        micro_batch = MicroBatchSize.of(
            config.ppo_micro_batch_size_per_gpu,
            config.use_dynamic_bsz,
            config.ppo_max_token_len_per_gpu,
            share_prompts=config.use_prefix_grouper,
        )
        self.plan = UpdatePlan(
            epochs=config.ppo_epochs,
            mini_rows=config.ppo_mini_batch_size * rows_per_prompt,
            micro_batch=micro_batch.for_device(backend.device),
            grad_clip=config.grad_clip,
            shuffle_seed=shuffle_seed(config.shuffle, config.data_loader_seed, seed),
            mini_batch_order_seed=shuffle_seed(config.shuffle_mini_batches, config.data_loader_seed, seed),
            couples_rows=bool(self.loss.metadata.get("couples_rows")),
        )

    @property
    def update_columns(self) -> frozenset[str]:
        """What an update reads beside the model's inputs."""
        columns = {"response_mask", "loss_mask", "importance_weights", "weight", "advantages", "old_log_probs"}
        return frozenset(columns | {self.old_column} | ({"ref_log_prob"} if self.config.use_kl_loss else set()))

    def updates_once(self, num_rows: int) -> bool:
        """Whether a step is one update without dropout: its log-probs are then also the old ones."""
        once = self.plan.epochs == 1 and num_rows <= self.plan.mini_rows
        return once and not has_dropout(self.backend.model)

    def compute_log_probs(self, batch: Batch | ForwardShard) -> dict[str, Ragged]:
        """old_log_probs and entropys; sum_pi_squared where an estimator needs it; routed_experts where they are
        repeated in the update."""
        self._check_replay(batch)
        columns = compute_policy_columns(
            self.backend,
            batch,
            self.temperature,
            self.inference_micro_batch,
            sum_pi_squared=self.sum_pi_squared,
            record=self.config.router_replay.mode in TRAINER_MODES,
        )
        # Pipeline stages but the last, and ranks without rows, have none.
        return {"old_log_probs" if name == "log_probs" else name: column for name, column in columns.items()}

    def compute_exact_kl(self, batch: Batch | ForwardShard) -> Ragged:
        """KL to the reference over the whole vocabulary."""
        assert self.reference is not None
        return compute_exact_kl(self.backend, self.reference, batch, self.temperature, self.inference_micro_batch)

    def start_log_probs(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        return lambda: self.compute_log_probs(batch)

    def start_exact_kl(self, batch: Batch) -> Pending[dict[str, Ragged]]:
        return lambda: {"exact_kl": self.compute_exact_kl(batch)}

    def start_update(self, batch: Batch, step: int) -> Pending[UpdateResult]:
        return lambda: self.update(batch, step)

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        return self.backend.weights()

    def update(self, batch: Batch | UpdateShard, step: int) -> UpdateResult:
        """ppo_epochs passes over the batch. Without old_log_probs, those of the first pass take their place."""
        self._check_replay(batch)
        torch.manual_seed(derive_seed(self.seed, "dropout", step))
        self.options = replace(self.options, seed=derive_seed(self.seed, "loss", step))
        lr, num_skipped = self.optimizer.lr, self.optimizer.skipped
        prepare = self.reference.prepare if self._needs_exact_kl and self.reference is not None else None
        with self._reference_on_device():
            result = run_updates(batch, step, self.plan, self.backend, self._loss, self.on_mini_batch, prepare)
        metrics = result.summary("actor", "pg_loss") | {"actor/lr": lr}
        metrics |= {"actor/skipped_updates": float(self.optimizer.skipped - num_skipped)}
        if self.config.use_kl_loss:
            metrics["actor/kl_coef"] = self.config.kl_loss_coef
        return UpdateResult(metrics, _in_row_order(result.columns, batch["responses"]))

    def _check_replay(self, batch: Batch | ForwardShard | UpdateShard) -> None:
        """Refuse a batch that lacks the engine's choices of experts."""
        mode = self.config.router_replay.mode
        if mode in ENGINE_MODES and ROUTED_EXPERTS not in batch:
            raise UserError(
                "the rollouts came without the engine's choices of experts",
                key=MODE,
                value=mode,
                hint=f"{RECORD}=true, and no recorded rollouts without them",
            )

    @property
    def _needs_exact_kl(self) -> bool:
        return self.config.use_kl_loss and "exact" in KL_ESTIMATORS[self.config.kl_loss_type].needs

    def _reference_on_device(self) -> AbstractContextManager[None]:
        """The exact KL needs the reference's head until its gradient is known."""
        if not self._needs_exact_kl:
            return contextlib.nullcontext()
        assert self.reference is not None
        return self.reference.backend.on_device()

    def _loss(self, output: ModelOutput, count: Totals) -> tuple[Tensor, LossOutput]:
        """This micro-batch's part of the mini-batch's loss: policy loss - entropy bonus + KL + router balance."""
        config, device, batch = self.config, self.backend.device, output.micro_batch.batch
        lengths = batch["responses"].lengths
        mask = to_device(loss_mask(batch), device)
        lacks_old = "old_log_probs" not in batch
        head = output.head_input(with_balance=config.aux_loss_coef > 0)
        new, entropy = output.log_probs(self.temperature, lacks_old or config.entropy_coeff != 0, head)
        old = to_device(batch[self.old_column].flat, device) if self.old_column in batch else new.detach()
        advantages = to_device(batch["advantages"].flat, device)
        per_token, metrics = self.loss.load()(new, old, advantages, mask, lengths, self.options)
        if "importance_weights" in batch:
            importance = to_device(batch["importance_weights"].flat, device)
            per_token = weighted(self.loss, per_token, importance, mask, lengths)

        mode = self.loss.metadata.get("aggregation", config.loss_agg_mode)
        weights = row_weights(batch)

        def aggregated(column: Tensor) -> Tensor:
            return aggregate(column, mask, lengths, mode, count, self.scale_length, weights)

        loss = policy_loss = aggregated(per_token)
        if entropy is not None:
            if config.entropy_coeff != 0:
                loss = loss - config.entropy_coeff * aggregated(entropy)
            metrics = {**metrics, "entropy": masked_share(entropy, mask)}
        if config.use_kl_loss:
            kl = self._kl(output, new, head)
            loss = loss + config.kl_loss_coef * aggregated(kl)
            metrics = {**metrics, "kl_loss": masked_share(kl, mask)}
        if head.balance is not None:
            # A loss of the micro-batch as a whole: weighted by its share of the mini-batch's tokens.
            share = totals(mask, lengths, weights).tokens / max(1.0, count.tokens)
            loss = loss + config.aux_loss_coef * share * head.balance
            metrics = {**metrics, "aux_loss": Share(share * head.balance.detach(), torch.tensor(share))}
        columns = {}
        if lacks_old and entropy is not None:
            columns = {"old_log_probs": new.detach(), "entropys": entropy.detach()}
        return loss, LossOutput(policy_loss.detach(), metrics, columns)

    def _kl(self, output: ModelOutput, new: Tensor, head: HeadInput) -> Tensor:
        """KL to the reference in the loss, per token."""
        config = self.config
        exact = None
        if "exact" in KL_ESTIMATORS[config.kl_loss_type].needs:
            assert self.reference is not None
            exact = output.exact_kl(self.reference.head_input(output.micro_batch), self.temperature, head)
        ref_log_prob = to_device(output.micro_batch.batch["ref_log_prob"].flat, new.device)
        return kl_penalty(new, ref_log_prob, config.kl_loss_type, exact=exact, clamp=config.kl_loss_clamp)


def _in_row_order(parts: list[tuple[list[int], dict[str, Tensor]]], like: Ragged) -> dict[str, Ragged]:
    """Columns of micro-batches as columns of the batch."""
    names = parts[0][1] if parts else {}
    return {name: in_row_order([(rows, columns[name]) for rows, columns in parts], like) for name in names}


def loss_options(config: ActorConfig) -> LossOptions:
    """The actor's settings for the loss functions; a null bound falls back to clip_ratio."""
    special = config.policy_loss
    return LossOptions(
        clip_low=config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low,
        clip_high=config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high,
        clip_c=config.clip_ratio_c,
        tau_pos=config.tau_pos,
        tau_neg=config.tau_neg,
        clip_cov_ratio=special.clip_cov_ratio,
        clip_cov_lb=special.clip_cov_lb,
        clip_cov_ub=special.clip_cov_ub,
        kl_cov_ratio=special.kl_cov_ratio,
        ppo_kl_coef=special.ppo_kl_coef,
    )


def shuffle_seed(shuffle: bool, data_loader_seed: int | None, run_seed: int) -> int | None:
    """Seed of the order of mini-batches; None keeps the batch's order."""
    if not shuffle:
        return None
    return run_seed if data_loader_seed is None else data_loader_seed
