"""Policy: the model that learns. Read for log-probs, then taught."""

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
from burnish.algos.losses import LOSSES, LossOptions
from burnish.algos.masked import Metrics, Share, masked, masked_share
from burnish.batch import Batch, Ragged
from burnish.models.exact_kl import HeadInput, exact_kl
from burnish.models.router import check_router
from burnish.models.stream import WeightStream
from burnish.seeding import derive_seed
from burnish.training.backend import Backend, has_dropout
from burnish.training.ema import MovingAverage
from burnish.training.inference import compute_exact_kl, compute_log_probs, in_row_order
from burnish.training.learner import Learner
from burnish.training.optim import Optimizer
from burnish.training.packing import Cut, PackedRows
from burnish.training.reference import Reference
from burnish.training.transfer import to_device
from burnish.training.update import UpdatePlan, loss_mask, row_weights, run_updates

if TYPE_CHECKING:
    from burnish.config.actor import ActorConfig


@dataclass(frozen=True)
class UpdateResult:
    """What teaching leaves: numbers, and the columns it read on the way where nobody had read them before."""

    metrics: dict[str, float]
    columns: dict[str, Ragged]


class Policy(Learner):
    """The trained language model. `inference_cut` cuts reading into micro-batches; the actor's own keys cut teaching.

    `loss` replaces the loss that the config names; `old_column` are the log-probs that ratios are taken against;
    `reference` is asked while teaching where the KL is the exact one.
    """

    def __init__(
        self,
        backend: Backend,
        optimizer: Optimizer,
        config: ActorConfig,
        *,
        temperature: float,
        rows_per_prompt: int,
        max_response_length: int,
        inference_cut: Cut,
        seed: int,
        loss: str | None = None,
        old_column: str = "old_log_probs",
        reference: Reference | None = None,
    ) -> None:
        self.backend = backend
        self.optimizer = optimizer
        self.config = config
        self.old_column = old_column
        self.reference = reference
        if config.aux_loss_coef > 0:
            check_router(backend.model, "actor_rollout_ref.actor.aux_loss_coef", config.aux_loss_coef)
        if config.ema_beta is not None:
            optimizer.average = MovingAverage(backend.model, config.ema_beta)
        self.temperature = temperature
        self.scale_length = config.loss_scale_factor or max_response_length
        self.inference_cut = inference_cut.on(backend.device)
        self.seed = seed
        self.loss = LOSSES[loss or config.policy_loss.loss_mode]
        self.options = loss_options(config)
        mini_rows = config.ppo_mini_batch_size * rows_per_prompt
        cut = Cut.of(config.ppo_micro_batch_size_per_gpu, config.use_dynamic_bsz, config.ppo_max_token_len_per_gpu)
        self.plan = UpdatePlan(
            epochs=config.ppo_epochs,
            mini_rows=mini_rows,
            cut=cut.on(backend.device),
            grad_clip=config.grad_clip,
            shuffle_seed=shuffle_seed(config.shuffle, config.data_loader_seed, seed),
            couples_rows=bool(self.loss.metadata.get("couples_rows")),
        )

    def updates_once(self, num_rows: int) -> bool:
        """One pass over one mini-batch without dropout: the policy that is taught is then the one that was read."""
        once = self.plan.epochs == 1 and num_rows <= self.plan.mini_rows
        return once and not has_dropout(self.backend.model)

    def compute_log_probs(self, batch: Batch) -> dict[str, Ragged]:
        """old_log_probs and entropys."""
        log_probs, entropys = compute_log_probs(
            self.backend, batch, self.temperature, self.inference_cut, with_entropy=True
        )
        return {"old_log_probs": log_probs, "entropys": entropys}

    def compute_exact_kl(self, batch: Batch) -> Ragged:
        """exact_kl: to the reference, over the whole vocabulary."""
        return compute_exact_kl(self.backend, self.reference, batch, self.temperature, self.inference_cut)

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Can be read again and again, unless all ranks have to read it together."""
        return WeightStream(self.backend.weights) if self.backend.parallel.alone else self.backend.weights()

    def update(self, batch: Batch, step: int) -> UpdateResult:
        """ppo_epochs passes over the batch. Without old_log_probs they are the new ones, and are read on the way."""
        torch.manual_seed(derive_seed(self.seed, "dropout", step))
        self.options = replace(self.options, seed=derive_seed(self.seed, "loss", step))
        self.backend.model.train()
        read: list[tuple[list[int], Tensor, Tensor]] = []
        seen = set(range(len(batch))) if "old_log_probs" in batch else set()
        lr, skipped, parallel = self.optimizer.lr, self.optimizer.skipped, self.backend.parallel

        def loss_of(micro: Batch, rows: list[int], count: Totals) -> tuple[Tensor, Tensor, Metrics]:
            loss, reported, metrics, columns = self._loss(micro, count)
            if not seen.issuperset(rows):
                seen.update(rows)
                read.append((rows, *columns))
            return loss, reported, metrics

        with self.backend.at_work(), self.optimizer.at_work(), self._reference_at_work():
            done = run_updates(batch, step, self.plan, self.optimizer, loss_of, parallel, read)
        read = parallel.collect(read if self.plan.counts(parallel) else [])
        numbers = done.numbers("actor", "pg_loss") | {"actor/lr": lr}
        numbers |= {"actor/skipped_updates": float(self.optimizer.skipped - skipped)}
        if self.config.use_kl_loss:
            numbers["actor/kl_coef"] = self.config.kl_loss_coef
        columns = {}
        if read:
            columns["old_log_probs"] = in_row_order([(rows, new) for rows, new, _ in read], batch["responses"])
            columns["entropys"] = in_row_order([(rows, entropy) for rows, _, entropy in read], batch["responses"])
        return UpdateResult(numbers, columns)

    def _reference_at_work(self) -> AbstractContextManager:
        """The exact KL needs the reference's head until its gradient is known."""
        asked = self.config.use_kl_loss and "exact" in KL_ESTIMATORS[self.config.kl_loss_type].needs
        return self.reference.backend.at_work() if asked else contextlib.nullcontext()

    def _loss(self, micro: Batch, count: Totals) -> tuple[Tensor, Tensor, Metrics, tuple[Tensor, Tensor | None]]:
        """This micro-batch's part of the mini-batch's loss: policy loss - entropy bonus + KL + routers' balance."""
        config, device = self.config, self.backend.device
        lengths = micro["responses"].lengths
        mask = to_device(loss_mask(micro), device)
        rows = PackedRows.of(micro, device)
        wants_entropy = "old_log_probs" not in micro or config.entropy_coeff != 0
        head = self.backend.head_input(rows, with_balance=config.aux_loss_coef > 0)
        new, entropy = self.backend.log_probs(rows, self.temperature, wants_entropy, head)
        old = to_device(micro[self.old_column].flat, device) if self.old_column in micro else new.detach()
        advantages = to_device(micro["advantages"].flat, device)
        per_token, found = self.loss.load()(new, old, advantages, mask, lengths, self.options)
        if "importance_weights" in micro:
            per_token = per_token * masked(to_device(micro["importance_weights"].flat, device), mask)

        mode = self.loss.metadata.get("aggregation", config.loss_agg_mode)
        weights = row_weights(micro)

        def whole(column: Tensor) -> Tensor:
            return aggregate(column, mask, lengths, mode, count, self.scale_length, weights)

        loss = policy_loss = whole(per_token)
        if config.entropy_coeff != 0:
            loss = loss - config.entropy_coeff * whole(entropy)
        if entropy is not None:
            found = {**found, "entropy": masked_share(entropy, mask)}
        if config.use_kl_loss:
            kl = self._kl(micro, rows, new, head)
            loss = loss + config.kl_loss_coef * whole(kl)
            found = {**found, "kl_loss": masked_share(kl, mask)}
        if head.balance is not None:
            # A loss of the micro-batch as a whole: each counts by its share of the mini-batch's tokens.
            share = totals(mask, lengths, weights).tokens / max(1.0, count.tokens)
            loss = loss + config.aux_loss_coef * share * head.balance
            found = {**found, "aux_loss": Share(share * head.balance.detach(), torch.tensor(share))}
        return loss, policy_loss, found, (new.detach(), entropy)

    def _kl(self, micro: Batch, rows: PackedRows, new: Tensor, head: HeadInput) -> Tensor:
        """The KL to the reference in the loss, per token."""
        config = self.config
        exact = None
        if "exact" in KL_ESTIMATORS[config.kl_loss_type].needs:
            exact = exact_kl(head, self.reference.head_input(rows), self.temperature, kernel=self.backend.options.head)
        ref_log_prob = to_device(micro["ref_log_prob"].flat, new.device)
        return kl_penalty(new, ref_log_prob, config.kl_loss_type, exact=exact, clamp=config.kl_loss_clamp)


def loss_options(config: ActorConfig) -> LossOptions:
    """The actor's numbers as the losses read them; a null bound falls back to clip_ratio."""
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


def shuffle_seed(shuffle: bool, own: int | None, run: int) -> int | None:
    """Seed of the order of mini-batches, or None for the order as it is."""
    if not shuffle:
        return None
    return run if own is None else own
