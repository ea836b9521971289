"""Entry 5 of the step: scores -> rewards -> advantages and returns."""

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
    """Adds token_level_rewards, advantages and returns. `old_column` are the log-probs whose KL counts."""
    responses = batch["responses"]
    scores = shaped(batch, "token_level_scores", "shaped_scores").flat
    penalty, metrics = kl_in_reward(batch, config, kl, old_column)
    clip = tuple(config.reward_clip_range) if config.reward_clip_range is not None else None
    asked = Credit(
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
    advantages, returns = estimator.load()(asked)
    columns = {"token_level_rewards": asked.token_rewards(), "advantages": advantages, "returns": returns}
    return batch.add(**{name: Ragged.like(flat, responses) for name, flat in columns.items()}), metrics


def kl_in_reward(
    batch: Batch, config: AlgorithmConfig, kl: FixedKL, old_column: str
) -> tuple[Tensor | None, dict[str, float]]:
    """What the KL to the reference costs each token; None where it does not belong into the reward."""
    if not config.use_kl_in_reward:
        return None, {}
    mask, lengths = batch["response_mask"].flat, batch["responses"].lengths
    exact = batch["exact_kl"].flat if "exact_kl" in batch else None
    old, reference = batch[old_column].flat, batch["ref_log_prob"].flat
    distance = kl_penalty(old, reference, config.kl_penalty, exact=exact, clamp=config.kl_clamp)
    mean = float(row_means(distance, mask, lengths).mean())
    used = kl.value
    kl.update(mean, len(batch))
    metrics = {"actor/reward_kl_penalty": mean, "actor/reward_kl_penalty_coeff": used}
    return used * masked(distance, mask), metrics


Clip = tuple[float, float] | None


@KL_ORDERS.register("before")
def kl_before(scores: Tensor, penalty: Tensor | None, clip: Clip, lengths: Tensor) -> dict[str, Any]:
    """The bounds hold for the score, and what is compared is the score less the KL."""
    scores = scores if clip is None else clip_scores(scores, lengths, *clip)
    return {"token_level_rewards": scores if penalty is None else scores - penalty}


@KL_ORDERS.register("after")
def kl_after(scores: Tensor, penalty: Tensor | None, clip: Clip, lengths: Tensor) -> dict[str, Any]:
    """Scores are compared; the bounds hold for what comes of it, and then the KL is taken off token by token."""
    return {"token_level_rewards": scores, "penalty": penalty, "clip": clip}


def filtrate(batch: Batch, config: AlgorithmConfig, seed: int, step: int) -> Batch:
    """Policy filtration: adds weight, how often each response was drawn again by its score."""
    if not config.use_pf_ppo:
        return batch
    scores = shaped(batch, "token_level_scores", "shaped_scores")
    generator = torch.Generator().manual_seed(derive_seed(seed, "pf_ppo", step))
    how = config.pf_ppo
    drawn = resample(row_sums(scores.flat, scores.lengths), how.reweight_method, how.weight_pow, generator)
    return batch.add(weight=drawn)


def shaped(batch: Batch, raw: str, column: str) -> Any:
    """The scores that credit is given for: after penalties, scale and bounds (loop/shape.py), where there are any."""
    return batch[column] if column in batch else batch.get(raw)


def group_numbers(uids: list[str]) -> Tensor:
    """Rows with the same uid get the same number."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(uid, len(numbers)) for uid in uids])
