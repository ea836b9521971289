"""Credit assignment: scores -> rewards -> advantages and returns."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish.algos.advantages import Credit, clip_scores
from burnish.algos.filtration import resample
from burnish.algos.kl import FixedKL, kl_penalty
from burnish.algos.masked import masked, row_means, row_sums
from burnish.algos.turns import TURN_CREDITS, Turns
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
    lengths, first = conversations(batch)
    scores = shaped(batch, "token_level_scores", "shaped_scores").flat
    penalty, metrics = kl_in_reward(batch, config, kl, old_column)
    clip = tuple(config.reward_clip_range) if config.reward_clip_range is not None else None
    greedy = shaped(batch, "greedy_scores", "shaped_greedy_scores")
    inputs = Credit(
        **KL_ORDERS[config.kl_order].load()(scores, penalty, clip, lengths),
        response_mask=batch["response_mask"].flat,
        lengths=lengths,
        groups=group_numbers([batch["uid"][row] for row in first]),
        values=batch["values"].flat if "values" in batch else None,
        greedy_scores=None if greedy is None else greedy[first],
        gamma=config.gamma,
        lam=config.lam,
        norm_by_std=config.norm_adv_by_std_in_grpo,
        std_eps=config.group_std_epsilon,
        whitening=config.whitening,
        observations=config.gae_observations,
        **_policy_columns(batch, estimator),
    )
    turn_credit = TURN_CREDITS[config.turn_credit]
    turns = turns_of(batch, lengths) if "turns" in turn_credit.needs else None
    advantages, returns = turn_credit.load()(inputs, turns, estimator.load())
    columns = {"token_level_rewards": inputs.token_rewards(), "advantages": advantages, "returns": returns}
    return batch.add(**{name: Ragged.like(flat, responses) for name, flat in columns.items()}), metrics


def conversations(batch: Batch) -> tuple[Tensor, list[int]]:
    """Token counts of conversations, and their first rows.

    An episode may give several adjacent rows (turns with contexts of their own); credit runs through all of them, as
    if they were one row.
    """
    responses: Ragged = batch["responses"]
    samples = list(zip(batch["uid"], batch["sample"], strict=True)) if "sample" in batch else list(range(len(batch)))
    if len(set(samples)) == len(samples):
        return responses.lengths, list(range(len(batch)))
    first = [row for row in range(len(batch)) if row == 0 or samples[row] != samples[row - 1]]
    ends = [*first[1:], len(batch)]
    lengths = [int(responses.lengths[start:end].sum()) for start, end in zip(first, ends, strict=True)]
    return torch.tensor(lengths, dtype=torch.int64), first


def turns_of(batch: Batch, lengths: Tensor) -> Turns:
    """The sampled turns of each conversation. Turns after the same observation of a group start in the same state."""
    responses, mask = batch["responses"], batch["response_mask"].flat.bool().cpu()
    ids = responses.flat.cpu()
    starts = torch.zeros_like(mask)
    offsets = responses.offsets.tolist()
    if "turns" in batch:
        spans = [(o + t.start, o + t.end) for o, ts in zip(offsets, batch["turns"], strict=False) for t in ts]
        starts[[start for start, end in spans if end > start and bool(mask[start])]] = True
    else:
        starts[[start for start, end in itertools.pairwise(offsets) if end > start]] = True
    of_token = torch.where(mask, starts.long().cumsum(0) - 1, -1)
    row = torch.arange(len(lengths)).repeat_interleave(lengths)
    counts = torch.bincount(row[starts], minlength=len(lengths))
    return Turns(counts, of_token.to(batch["response_mask"].flat.device), _states(ids, mask, starts, offsets))


def _states(ids: Tensor, mask: Tensor, starts: Tensor, offsets: list[int]) -> Tensor:
    """A number per turn: equal where the observation before the turn is. A first turn follows the prompt."""
    numbers: dict[bytes, int] = {}
    states = []
    for start in starts.nonzero().flatten().tolist():
        before, row_start = start, offsets[bisect_right(offsets, start) - 1]
        while before > row_start and not bool(mask[before - 1]):
            before -= 1
        states.append(numbers.setdefault(ids[before:start].numpy().tobytes(), len(numbers)))
    return torch.tensor(states, dtype=torch.int64)


def _policy_columns(batch: Batch, estimator: Entry) -> dict[str, Any]:
    """What the policy computed before its update, for estimators that weight tokens by it."""
    if "sum_pi_squared" not in estimator.needs:
        return {}
    names = ("old_log_probs", "sum_pi_squared", "importance_weights")
    return {name: batch[name].flat for name in names if name in batch}


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
