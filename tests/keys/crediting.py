"""What one can see of credit, correction and the policy's loss beyond tests/keys/teaching.py."""

from __future__ import annotations

import torch

from burnish.batch import Batch, Ragged
from burnish.loop.credit import credit, filtrate

from .kit import Case, fixed_batch


def sampled(case: Case) -> Batch:
    """The fixed batch as an engine with other probabilities would have sampled it."""
    batch = fixed_batch(case.run)
    generator = torch.Generator().manual_seed(1)
    gap = 0.7 * torch.randn(len(batch["old_log_probs"].flat), generator=generator)
    return batch.add(rollout_log_probs=Ragged.like(batch["old_log_probs"].flat + gap, batch["responses"]))


def credited_past_observations(case: Case) -> list[float]:
    """Returns of responses whose second token is an observation."""
    run, batch = case.run, fixed_batch(case.run)
    names = [name for name in batch if name not in ("advantages", "returns", "response_mask")]
    responses = batch["responses"]
    second = torch.cat([torch.arange(length) for length in responses.lengths.tolist()]) == 1
    masked = batch.keep(*names).add(response_mask=Ragged.like((~second).float(), responses))
    return credit(masked, run.learner.algorithm, run.learner.estimator, run.learner.kl)[0]["returns"].flat.tolist()


def drawn(case: Case) -> list[float] | None:
    """How often policy filtration draws each row in the first step."""
    weight = filtrate(fixed_batch(case.run), case.cfg.algorithm, case.run.seed, step=1).get("weight")
    return None if weight is None else weight.tolist()


def corrected(case: Case) -> dict[str, list[float]]:
    """The columns that correction adds."""
    batch, _ = case.run.learner.correction.apply(sampled(case))
    return {name: batch[name].flat.tolist() for name in ("importance_weights", "loss_mask") if name in batch}


def bypassed_loss(case: Case) -> dict[str, float]:
    """Loss and gradient norm of teaching on what the engine sampled."""
    metrics = case.run.learner.policy.update(sampled(case), step=1).metrics
    return {name: metrics[f"actor/{name}"] for name in ("pg_loss", "grad_norm")}


def averaged_weights(case: Case) -> torch.Tensor | None:
    """The moving average after one update; None where none is kept."""
    case.run.learner.policy.update(fixed_batch(case.run), step=1)
    average = case.run.learner.policy.optimizer.average
    return None if average is None else torch.cat([weight.flatten() for weight in average.weights.values()])
