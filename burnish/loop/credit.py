"""Row 5 of the step: scores -> rewards -> advantages and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from burnish.algos.advantages import Credit
from burnish.algos.kl import FixedKL, kl_penalty
from burnish.algos.masked import masked, row_means
from burnish.batch import Batch, Ragged
from burnish.table import Row

if TYPE_CHECKING:
    from burnish.config.algorithm import AlgorithmConfig


def credit(batch: Batch, config: AlgorithmConfig, estimator: Row, kl: FixedKL) -> tuple[Batch, dict[str, float]]:
    """Adds token_level_rewards, advantages and returns."""
    rewards, metrics = token_rewards(batch, config, kl)
    responses = batch["responses"]
    advantages, returns = estimator.load()(
        Credit(
            token_level_rewards=rewards,
            response_mask=batch["response_mask"].flat,
            lengths=responses.lengths,
            groups=group_numbers(batch["uid"]),
            values=batch["values"].flat if "values" in batch else None,
            greedy_scores=batch.get("greedy_scores"),
            gamma=config.gamma,
            lam=config.lam,
            norm_by_std=config.norm_adv_by_std_in_grpo,
        )
    )
    columns = {"token_level_rewards": rewards, "advantages": advantages, "returns": returns}
    return batch.add(**{name: Ragged.like(flat, responses) for name, flat in columns.items()}), metrics


def token_rewards(batch: Batch, config: AlgorithmConfig, kl: FixedKL) -> tuple[Tensor, dict[str, float]]:
    """Scores, less the KL to the reference where it belongs into the reward."""
    scores, mask = batch["token_level_scores"].flat, batch["response_mask"].flat
    if not config.use_kl_in_reward:
        return scores, {}
    lengths = batch["responses"].lengths
    distance = kl_penalty(batch["old_log_probs"].flat, batch["ref_log_prob"].flat, config.kl_penalty)
    mean = float(row_means(distance, mask, lengths).mean())
    used = kl.value
    kl.update(mean, len(batch))
    metrics = {"actor/reward_kl_penalty": mean, "actor/reward_kl_penalty_coeff": used}
    return scores - used * masked(distance, mask), metrics


def group_numbers(uids: list[str]) -> Tensor:
    """Rows with the same uid get the same number."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(uid, len(numbers)) for uid in uids])
