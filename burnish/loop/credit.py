"""Credit assignment: scores -> rewards -> advantages and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish.algos.advantages import Credit, clip_scores
from burnish.algos.filtration import resample
from burnish.algos.kl import FixedKL, kl_penalty
from burnish.algos.masked import masked, row_means, row_sums
from burnish.batch import Batch, Ragged
from burnish.registry import Entry, Registry
from burnish.seeding import derive_seed

if TYPE_CHECKING:
    from burnish.config.algorithm import AlgorithmConfig


KL_ORDERS = Registry("KL order", key="algorithm.kl_order")


def credit(
    batch: Batch, config: AlgorithmConfig, estimator: Entry, kl: FixedKL, old_column: str = "old_log_probs"
) -> tuple[Batch, dict[str, float]]:
    """Add token_level_rewards, advantages and returns. `old_column` has the policy's log-probs for the KL."""
    responses = batch["responses"]
    scores = shaped(batch, "token_level_scores", "shaped_scores").flat
    penalty, metrics = kl_in_reward(batch, config, kl, old_column)
    clip = tuple(config.reward_clip_range) if config.reward_clip_range is not None else None
    inputs = Credit(
        **KL_ORDERS[config.kl_order].load()(scores, penalty, clip, responses.lengths),
        response_mask=batch["response_mask"].flat,
        lengths=responses.lengths,
        groups=group_numbers(batch["uid"]),
        values=batch["values"].flat if "values" in batch else None,
        greedy_scores=shaped(batch, "greedy_scores", "shaped_greedy_scores"),
        gamma=config.gamma,
        lam=config.lam,
        norm_by_std=config.norm_adv_by_std_in_grpo,
        std_eps=config.group_std_epsilon,
        whitening=config.whitening,
        observations=config.gae_observations,
    )
    advantages, returns = estimator.load()(inputs)
    columns = {"token_level_rewards": inputs.token_rewards(), "advantages": advantages, "returns": returns}
    return batch.add(**{name: Ragged.like(flat, responses) for name, flat in columns.items()}), metrics


def kl_in_reward(
    batch: Batch, config: AlgorithmConfig, kl: FixedKL, old_column: str
) -> tuple[Tensor | None, dict[str, float]]:
    """The KL penalty of each token; None unless algorithm.use_kl_in_reward."""
    if not config.use_kl_in_reward:
        return None, {}
    mask, lengths = batch["response_mask"].flat, batch["responses"].lengths
    exact = batch["exact_kl"].flat if "exact_kl" in batch else None
    old, reference = batch[old_column].flat, batch["ref_log_prob"].flat
    distance = kl_penalty(old, reference, config.kl_penalty, exact=exact, clamp=config.kl_clamp)
    mean = float(row_means(distance, mask, lengths).mean())
    coefficient = kl.value
    kl.update(mean, len(batch))
    metrics = {"actor/reward_kl_penalty": mean, "actor/reward_kl_penalty_coeff": coefficient}
    return coefficient * masked(distance, mask), metrics


Clip = tuple[float, float] | None


@KL_ORDERS.register("before")
def kl_before(scores: Tensor, penalty: Tensor | None, clip: Clip, lengths: Tensor) -> dict[str, Any]:
    """Clip the score, then subtract the KL; advantages compare the result."""
    scores = scores if clip is None else clip_scores(scores, lengths, *clip)
    return {"token_level_rewards": scores if penalty is None else scores - penalty}


@KL_ORDERS.register("after")
def kl_after(scores: Tensor, penalty: Tensor | None, clip: Clip, lengths: Tensor) -> dict[str, Any]:
    """Advantages compare scores; the result is clipped, then the KL is subtracted token by token."""
    return {"token_level_rewards": scores, "penalty": penalty, "clip": clip}


def filtrate(batch: Batch, config: AlgorithmConfig, seed: int, step: int) -> Batch:
    """Policy filtration (PF-PPO): add `weight`, how often each response was resampled by its score."""
    if not config.use_pf_ppo:
        return batch
    scores = shaped(batch, "token_level_scores", "shaped_scores")
    generator = torch.Generator().manual_seed(derive_seed(seed, "pf_ppo", step))
    options = config.pf_ppo
    sums = row_sums(scores.flat, scores.lengths)
    return batch.add(weight=resample(sums, options.reweight_method, options.weight_pow, generator))


def shaped(batch: Batch, raw: str, column: str) -> Any:
    """Scores after shaping (reward/shaping.py), or the raw ones without it."""
    return batch[column] if column in batch else batch.get(raw)


def group_numbers(uids: list[str]) -> Tensor:
    """Group number of each row: rows with the same uid form a group."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(uid, len(numbers)) for uid in uids])
