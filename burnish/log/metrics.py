"""Metrics of a batch, under verl's names."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping

import torch
from torch import Tensor

from burnish.batch import Batch

# (column, metric): sum over the tokens of a row, then mean, max and min over rows.
PER_ROW = (("token_level_scores", "critic/score"), ("token_level_rewards", "critic/rewards"))
# (column, metric): mean, max and min over all sampled tokens.
PER_TOKEN = (("advantages", "critic/advantages"), ("returns", "critic/returns"), ("values", "critic/values"))


def batch_metrics(
    batch: Batch, *, max_prompt_length: int | None = None, max_response_length: int | None = None
) -> dict[str, float]:
    """All metrics whose columns are in the batch. The length clip ratios need the two limits of the data section."""
    metrics: dict[str, float] = {}
    if len(batch) == 0:
        return metrics
    for column, name in PER_ROW:
        if column in batch:
            metrics |= _spread(name, sample_sums(batch, column))
    for column, name in PER_TOKEN:
        if column in batch:
            metrics |= _spread(name, _sampled_tokens(batch, column))
    metrics |= _explained_variance(batch)
    metrics |= _lengths(batch, "responses", "response_length", max_response_length)
    metrics |= _lengths(batch, "prompt_ids", "prompt_length", max_prompt_length)
    metrics |= _groups(batch)
    metrics |= _conversations(batch)
    metrics |= _truncation(batch)
    metrics |= _mismatch(batch)
    return metrics


def memory_metrics() -> dict[str, float]:
    """Peak memory of this process since it started: resident, and of its CUDA device."""
    unit = 1 if sys.platform == "darwin" else 1024
    metrics = {"perf/max_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        metrics["perf/max_memory_allocated_gb"] = torch.cuda.max_memory_allocated() / 1e9
        metrics["perf/max_memory_reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
    return metrics


def sample_sums(batch: Batch, column: str) -> Tensor:
    """The sum of a column over the tokens of each sample: of all its rows, where an episode has several."""
    sums = batch[column].sums()
    if "uid" not in batch or "sample" not in batch:
        return sums
    numbers: dict[tuple[object, object], int] = {}
    index = [numbers.setdefault(key, len(numbers)) for key in zip(batch["uid"], batch["sample"], strict=True)]
    return sums if len(numbers) == len(sums) else sums.new_zeros(len(numbers)).index_add(0, torch.tensor(index), sums)


def _sampled_tokens(batch: Batch, name: str) -> Tensor:
    """A column at the sampled tokens (response_mask): float64 [tokens] on the CPU."""
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
    """1 - var(returns - values) / var(returns): 1 for a perfect critic, 0 for one that predicts the mean."""
    if "returns" not in batch or "values" not in batch:
        return {}
    returns, values = _sampled_tokens(batch, "returns"), _sampled_tokens(batch, "values")
    if returns.numel() < 2:
        return {}
    # verl's epsilon, against division by zero for constant returns.
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
    """The fraction of groups (of two or more) with equal scores, which give no relative advantage."""
    if "uid" not in batch or "token_level_scores" not in batch:
        return {}
    uids = batch["uid"].tolist() if isinstance(batch["uid"], Tensor) else batch["uid"]
    groups: dict[object, list[float]] = {}
    samples = batch["sample"] if "sample" in batch else range(len(batch))
    first = {key: uid for key, uid in zip(zip(uids, samples, strict=True), uids, strict=True)}
    for uid, score in zip(first.values(), sample_sums(batch, "token_level_scores").tolist(), strict=True):
        groups.setdefault(uid, []).append(score)
    metrics = {"rollout/num_groups": float(len(groups))}
    compared = [scores for scores in groups.values() if len(scores) > 1]
    if compared:
        equal = sum(max(scores) - min(scores) <= 1e-9 for scores in compared)
        metrics["rollout/zero_variance_groups"] = equal / len(compared)
    return metrics


def _conversations(batch: Batch) -> dict[str, float]:
    """Turns per trajectory (the prompt included, as verl counts), seconds of waiting for tools, and what they did."""
    if "turns" not in batch:
        return {}
    turns = batch["turns"]
    metrics = _spread("num_turns", torch.tensor([len(row) + 1 for row in turns], dtype=torch.float64))
    waits = [turn.latency for row in turns for turn in row if turn.role != "assistant"]
    metrics["tools/wait_seconds"] = sum(waits)
    counts: dict[str, float] = {}
    for info in batch["conversation"]:
        for name, value in info.get("tools", {}).items():
            if isinstance(value, int | float):
                counts[name] = counts.get(name, 0.0) + value
    drifts = [info["tokenization_drift"] for info in batch["conversation"] if "tokenization_drift" in info]
    if drifts:
        metrics["rollout/tokenization_drift"] = sum(drifts) / len(drifts)
    return metrics | {f"tools/{name}": float(value) for name, value in counts.items()}


def engine_metrics(counts: Mapping[str, float], min_prefill: int) -> dict[str, float]:
    """How busy the engine was with conversations, from its counters. `min_prefill`: tokens that had to be prefilled."""
    metrics = {}
    for kind, name in (("decode", "decode_occupancy"), ("loaded", "decode_occupancy_loaded")):
        if counts.get(f"{kind}_slots"):
            metrics[f"rollout/{name}"] = counts[f"{kind}_tokens"] / counts[f"{kind}_slots"]
    if "prefill_tokens" in counts:
        metrics["rollout/prefill_tokens"] = float(counts["prefill_tokens"])
        if min_prefill:
            metrics["rollout/prefill_ratio"] = counts["prefill_tokens"] / min_prefill
    if "evicted_sessions" in counts:
        metrics["rollout/evicted_sessions"] = float(counts["evicted_sessions"])
    return metrics


def draft_metrics(counts: Mapping[str, float]) -> dict[str, float]:
    """What speculative decoding has verified since the last step, from the engine's counters."""
    names = ("draft_tokens", "draft_accepted")
    return {f"rollout/{name}": float(counts[name]) for name in names if name in counts}


def _truncation(batch: Batch) -> dict[str, float]:
    if "finish_reason" not in batch:
        return {}
    reasons = batch["finish_reason"]
    return {"rollout/truncated": sum(reason == "length" for reason in reasons) / len(reasons)}


def _mismatch(batch: Batch) -> dict[str, float]:
    """Difference between the probabilities of the engine and the trainer, at the sampled tokens."""
    if "rollout_log_probs" not in batch or "old_log_probs" not in batch:
        return {}
    rollout = _sampled_tokens(batch, "rollout_log_probs").exp()
    trainer = _sampled_tokens(batch, "old_log_probs").exp()
    if rollout.numel() == 0:
        return {}
    difference = (rollout - trainer).abs()
    metrics = {
        "training/rollout_probs_diff_max": float(difference.max()),
        "training/rollout_probs_diff_mean": float(difference.mean()),
        "training/rollout_probs_diff_std": float(difference.std()) if difference.numel() > 1 else 0.0,
    }
    gap = _sampled_tokens(batch, "old_log_probs") - _sampled_tokens(batch, "rollout_log_probs")
    metrics["rollout_corr/kl"] = float(-gap.mean())
    metrics["rollout_corr/k3_kl"] = float((gap.clamp(-20, 20).exp() - 1 - gap).mean())
    if rollout.numel() > 1 and float(rollout.std()) > 0 and float(trainer.std()) > 0:
        correlation = torch.corrcoef(torch.stack([rollout, trainer]))[0, 1]
        metrics["training/rollout_actor_probs_pearson_corr"] = float(correlation)
    return metrics
