"""Metrics of a batch: what its columns say, under verl's names; and sums from micro-batches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from burnish.batch import Batch

# (column, metric): the sum over a row's tokens, then mean, max and min over rows.
PER_ROW = (("token_level_scores", "critic/score"), ("token_level_rewards", "critic/rewards"))
# (column, metric): mean, max and min over the model's own tokens of all rows.
PER_TOKEN = (("advantages", "critic/advantages"), ("returns", "critic/returns"), ("values", "critic/values"))


def batch_metrics(
    batch: Batch, *, max_prompt_length: int | None = None, max_response_length: int | None = None
) -> dict[str, float]:
    """Every metric whose columns are in the batch. The clip ratios need the two limits of the data section."""
    metrics: dict[str, float] = {}
    if len(batch) == 0:
        return metrics
    for column, name in PER_ROW:
        if column in batch:
            metrics |= _spread(name, batch[column].sums())
    for column, name in PER_TOKEN:
        if column in batch:
            metrics |= _spread(name, _own_tokens(batch, column))
    metrics |= _explained_variance(batch)
    metrics |= _lengths(batch, "responses", "response_length", max_response_length)
    metrics |= _lengths(batch, "prompt_ids", "prompt_length", max_prompt_length)
    metrics |= _groups(batch)
    metrics |= _truncation(batch)
    metrics |= _mismatch(batch)
    return metrics


def _own_tokens(batch: Batch, name: str) -> Tensor:
    """A column at the model's own tokens: float64 [tokens] on the CPU."""
    flat = batch[name].flat.detach().cpu().double()
    if "response_mask" not in batch:
        return flat
    return flat[batch["response_mask"].flat.cpu().bool()]


def _spread(name: str, values: Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def _explained_variance(batch: Batch) -> dict[str, float]:
    """1 - var(returns - values) / var(returns): 1 is a perfect critic, 0 one that knows only the mean."""
    if "returns" not in batch or "values" not in batch:
        return {}
    returns, values = _own_tokens(batch, "returns"), _own_tokens(batch, "values")
    if returns.numel() < 2:
        return {}
    # The small constant is verl's; without it constant returns would divide by zero.
    return {"critic/vf_explained_var": float(1 - (returns - values).var() / (returns.var() + 1e-5))}


def _lengths(batch: Batch, column: str, name: str, limit: int | None) -> dict[str, float]:
    if column not in batch:
        return {}
    lengths = batch[column].lengths
    metrics = _spread(name, lengths.double())
    if limit is not None:
        metrics[f"{name}/clip_ratio"] = float((lengths >= limit).double().mean())
    return metrics


def _groups(batch: Batch) -> dict[str, float]:
    """How many groups of two or more responses have equal scores, and so no relative advantage."""
    if "uid" not in batch or "token_level_scores" not in batch:
        return {}
    uids = batch["uid"].tolist() if isinstance(batch["uid"], Tensor) else batch["uid"]
    groups: dict[object, list[float]] = {}
    for uid, score in zip(uids, batch["token_level_scores"].sums().tolist(), strict=True):
        groups.setdefault(uid, []).append(score)
    metrics = {"rollout/num_groups": float(len(groups))}
    compared = [scores for scores in groups.values() if len(scores) > 1]
    if compared:
        equal = sum(max(scores) - min(scores) <= 1e-9 for scores in compared)
        metrics["rollout/zero_variance_groups"] = equal / len(compared)
    return metrics


def _truncation(batch: Batch) -> dict[str, float]:
    if "finish_reason" not in batch:
        return {}
    reasons = batch["finish_reason"]
    return {"rollout/truncated": sum(reason == "length" for reason in reasons) / len(reasons)}


def _mismatch(batch: Batch) -> dict[str, float]:
    """How far the engine's probabilities are from the trainer's, at the sampled tokens."""
    if "rollout_log_probs" not in batch or "old_log_probs" not in batch:
        return {}
    rollout = _own_tokens(batch, "rollout_log_probs").exp()
    trainer = _own_tokens(batch, "old_log_probs").exp()
    if rollout.numel() == 0:
        return {}
    difference = (rollout - trainer).abs()
    metrics = {
        "training/rollout_probs_diff_max": float(difference.max()),
        "training/rollout_probs_diff_mean": float(difference.mean()),
        "training/rollout_probs_diff_std": float(difference.std()) if difference.numel() > 1 else 0.0,
    }
    gap = _own_tokens(batch, "old_log_probs") - _own_tokens(batch, "rollout_log_probs")
    metrics["rollout_corr/kl"] = float(-gap.mean())
    metrics["rollout_corr/k3_kl"] = float((gap.clamp(-20, 20).exp() - 1 - gap).mean())
    if rollout.numel() > 1 and float(rollout.std()) > 0 and float(trainer.std()) > 0:
        correlation = torch.corrcoef(torch.stack([rollout, trainer]))[0, 1]
        metrics["training/rollout_actor_probs_pearson_corr"] = float(correlation)
    return metrics


class Reduce:
    """Means over a whole step from micro-batches: (numerator, denominator) sums by name.

    A tensor is kept as it is until `take`, so that a micro-batch never waits for the device.
    """

    def __init__(self) -> None:
        self.sums: dict[str, tuple[Tensor | float, Tensor | float]] = {}

    def add(self, name: str, numerator: Tensor | float, denominator: Tensor | float = 1.0) -> None:
        """One contribution. Use denominator 1 for a mean over calls, the number of tokens for a mean over tokens."""
        top, bottom = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = (top + _detached(numerator), bottom + _detached(denominator))

    def add_all(self, contributions: Mapping[str, tuple[Tensor | float, Tensor | float]]) -> None:
        for name, (numerator, denominator) in contributions.items():
            self.add(name, numerator, denominator)

    def merge(self, other: Reduce) -> None:
        """The sums of another rank or role."""
        self.add_all(other.sums)

    def take(self) -> dict[str, float]:
        """The mean of each name since the last call. A name whose denominator is 0 was never seen and is left out."""
        sums, self.sums = self.sums, {}
        pairs = {name: (float(top), float(bottom)) for name, (top, bottom) in sums.items()}
        return {name: top / bottom for name, (top, bottom) in pairs.items() if bottom != 0}


def _detached(value: Tensor | float) -> Tensor | float:
    return value.detach() if isinstance(value, Tensor) else value
