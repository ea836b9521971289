"""Advantage estimators.

An estimator takes a Credit and returns (advantages, returns), both flat [T] along the responses and 0 on observations.
`needs` of a registry entry lists the optional fields of Credit it uses: values (a critic), groups (responses to one
prompt), greedy (the score of a greedy response), sum_pi_squared (with old log-probs, both from the policy before its
update). `min_group` is the smallest group it is defined on.

Notation: R_i is the sum of row i's token rewards; mean_g, std_g (n - 1) and n_g are those of its group. A group of one
has no baseline: its mean counts as 0 and its std as 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from burnish.algos.masked import masked, next_in_row, reverse_scan, row_counts, row_positions, row_sums, spread
from burnish.algos.whitening import WHITENINGS
from burnish.registry import Registry

ADVANTAGES = Registry("advantage estimator", key="algorithm.adv_estimator", arguments=["credit"])
OBSERVATIONS = Registry("treatment of observations", key="algorithm.gae_observations")

STD_EPS = 1e-6

Estimate = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Credit:
    """Inputs of an estimator. Flat columns [T] run along the responses; `lengths` [rows] is int64 on the CPU."""

    token_level_rewards: Tensor  # [T] float
    response_mask: Tensor  # [T], 1 on tokens sampled by the policy, 0 on observations
    lengths: Tensor  # [rows]
    groups: Tensor | None = None  # [rows] int; responses to the same prompt have the same number
    values: Tensor | None = None  # [T] float, the critic's
    greedy_scores: Tensor | None = None  # [rows] float
    gamma: float = 1.0
    lam: float = 1.0
    norm_by_std: bool = True
    std_eps: float = STD_EPS  # on top of std_g
    whitening: str = "unbiased"
    observations: str = "skip"  # how gae treats them
    penalty: Tensor | None = None  # [T] float, subtracted from tokens after groups are compared; 0 on observations
    clip: tuple[float, float] | None = None  # bounds of a row's score after groups are compared
    old_log_probs: Tensor | None = None  # [T] float, the policy's before the update
    sum_pi_squared: Tensor | None = None  # [T] float, sum over the vocabulary of that policy's squared probabilities
    importance_weights: Tensor | None = None  # [T] float, of rollout correction

    def __post_init__(self) -> None:
        tokens, rows = int(self.lengths.sum()), len(self.lengths)
        flat = ("token_level_rewards", "response_mask", "values", "penalty", "old_log_probs", "sum_pi_squared")
        sizes = dict.fromkeys((*flat, "importance_weights"), tokens)
        for name, size in {**sizes, "groups": rows, "greedy_scores": rows}.items():
            column = getattr(self, name)
            if column is not None and tuple(column.shape) != (size,):
                raise ValueError(f"{name} has shape {tuple(column.shape)}, expected ({size},)")

    def require(self, name: str) -> Tensor:
        """An optional column that this estimator needs."""
        column = getattr(self, name)
        if column is None:
            raise ValueError(f"this advantage estimator needs {name}, but Credit.{name} is None")
        return column

    def scores(self) -> Tensor:
        """R_i [rows]: the sum of each row's token rewards."""
        return row_sums(self.token_level_rewards, self.lengths)

    def on_tokens(self, per_row: Tensor) -> Estimate:
        """(advantages, returns) from one advantage per row: its value, minus the penalties from each token on."""
        per_row = per_row if self.clip is None else per_row.clamp(*self.clip)
        flat = spread(per_row.to(self.token_level_rewards), self.lengths)
        if self.penalty is not None:
            flat = flat - reverse_scan(self.penalty, self.lengths)
        flat = masked(flat, self.response_mask)
        return flat, flat

    def token_rewards(self) -> Tensor:
        """[T]: token rewards for estimators without groups: scores clipped to their bounds, minus the penalty."""
        rewards = self.token_level_rewards
        if self.clip is not None:
            rewards = clip_scores(rewards, self.lengths, *self.clip)
        return rewards if self.penalty is None else rewards - self.penalty

    def whiten(self, x: Tensor) -> Tensor:
        """Whiten over all response tokens of the batch."""
        return WHITENINGS[self.whitening].load()(x, self.response_mask)


def clip_scores(scores: Tensor, lengths: Tensor, low: float, high: float) -> Tensor:
    """Clip each row's sum to [low, high]; the difference goes to its last token."""
    sums = row_sums(scores, lengths)
    has_tokens = lengths > 0
    last = (lengths.cumsum(0) - 1)[has_tokens].to(scores.device)
    return scores.index_add(0, last, (sums.clamp(low, high) - sums)[has_tokens.to(scores.device)])


# Estimators on tokens


@ADVANTAGES.register("gae", needs={"values"})
def gae(credit: Credit) -> Estimate:
    """Generalized advantage estimation (arXiv 1506.02438) over sampled tokens, whitened over the batch.

    delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1},  return = A + V.
    V is 0 after the last token, also of a truncated response. `credit.observations` says which token t + 1 is.
    """
    advantages = OBSERVATIONS[credit.observations].load()(credit)
    returns = masked(advantages + credit.require("values"), credit.response_mask)
    return credit.whiten(advantages), returns


@OBSERVATIONS.register("skip")
def skip_observations(credit: Credit) -> Tensor:
    """t + 1 is the next sampled token: observations are skipped."""
    sampled = sampled_tokens(credit)
    values = credit.require("values")[sampled.index]
    delta = sampled.rewards + credit.gamma * next_in_row(values, sampled.lengths) - values
    return sampled.scatter(reverse_scan(delta, sampled.lengths, credit.gamma * credit.lam), credit)


@OBSERVATIONS.register("walk")
def walk_observations(credit: Credit) -> Tensor:
    """t + 1 is the next token of any kind; an observation has value 0 and is discounted like a sampled token."""
    sampled = sampled_tokens(credit)
    values = masked(credit.require("values"), credit.response_mask)
    delta = sampled.scatter(sampled.rewards, credit) + credit.gamma * next_in_row(values, credit.lengths) - values
    return masked(reverse_scan(delta, credit.lengths, credit.gamma * credit.lam), credit.response_mask)


@ADVANTAGES.register("reinforce_plus_plus")
def reinforce_plus_plus(credit: Credit) -> Estimate:
    """REINFORCE++ (arXiv 2501.03262): G_t = r_t + gamma G_{t+1}, carried across observations; A = whiten(G)."""
    sampled = sampled_tokens(credit)
    returns = sampled.scatter(reverse_scan(sampled.rewards, sampled.lengths, credit.gamma), credit)
    return credit.whiten(returns), returns


@ADVANTAGES.register("remax", needs={"greedy"})
def remax(credit: Credit) -> Estimate:
    """ReMax (arXiv 2310.10505): return_t = rewards from t on; A_t = return_t - the greedy response's score."""
    sampled = sampled_tokens(credit)
    returns = sampled.scatter(reverse_scan(sampled.rewards, sampled.lengths), credit)
    baseline = spread(credit.require("greedy_scores").to(returns), credit.lengths)
    return masked(returns - baseline, credit.response_mask), returns


@ADVANTAGES.register("optimal_token_baseline", needs={"groups", "sum_pi_squared"})
def optimal_token_baseline(credit: Credit, *, zero_tail: bool = True, eps: float = 1e-8) -> Estimate:
    """Optimal token baseline (arXiv 2602.07078): A_t = G_t - B_t, with one baseline per group and position.

    G_t = rewards from t on; w_t = (1 - 2 pi_t + sum pi^2) rho_t^2, the squared norm of the logits' gradient times the
    squared importance weight; W_t = w_1 + ... + w_t; B_t = sum_g(G_t W_t) / (sum_g(W_t) + eps) over the sampled tokens
    at position t. With `zero_tail` the longest row of a group has no baseline behind the second longest.
    """
    return _token_baseline(credit, row_positions(credit.lengths, credit.response_mask.device), zero_tail, eps)


@ADVANTAGES.register("tir_optimal_token_baseline", needs={"groups", "sum_pi_squared"})
def tir_optimal_token_baseline(credit: Credit, *, zero_tail: bool = True, eps: float = 1e-8) -> Estimate:
    """optimal_token_baseline for responses with observations: position t counts sampled tokens only."""
    mask = credit.response_mask.bool().long()
    before = mask.cumsum(0) - mask
    first = (row_counts(mask, credit.lengths).cumsum(0) - row_counts(mask, credit.lengths)).to(mask.device)
    return _token_baseline(credit, before - spread(first, credit.lengths), zero_tail, eps)


def _token_baseline(credit: Credit, positions: Tensor, zero_tail: bool, eps: float) -> Estimate:
    """`positions` [T]: tokens of a group at the same position share a baseline."""
    lengths, mask = credit.lengths, credit.response_mask
    sampled = sampled_tokens(credit)
    returns = sampled.scatter(reverse_scan(sampled.rewards, sampled.lengths), credit)
    gain = returns.double()
    energy = 1 - 2 * credit.require("old_log_probs").double().exp() + credit.require("sum_pi_squared").double()
    if credit.importance_weights is not None:
        energy = energy * credit.importance_weights.double().square()
    energy = masked(energy, mask)
    # Running sum from the row's start: the row's total minus what comes later.
    weight = masked(spread(row_sums(energy, lengths), lengths) - reverse_scan(energy, lengths) + energy, mask)
    _, group_of = credit.require("groups").to(gain.device).unique(return_inverse=True)
    cell = spread(group_of, lengths) * (int(positions.max()) + 1 if len(positions) else 1) + positions
    cells, cell_of = cell.unique(return_inverse=True)
    baseline = _group_sum(gain * weight, cell_of, len(cells)) / (_group_sum(weight, cell_of, len(cells)) + eps)
    tail = _tail_start(row_counts(mask, lengths).to(gain.device), group_of, zero_tail)
    baseline = torch.where(positions < spread(tail, lengths), baseline, torch.zeros_like(baseline))
    return masked(gain - baseline, mask).to(returns), returns


def _tail_start(counts: Tensor, group_of: Tensor, zero_tail: bool) -> Tensor:
    """The position from which a row has no baseline [rows]: 0 in a group of one; for the longest row of a group, with
    `zero_tail`, the length of the second longest; otherwise never."""
    num_groups = int(group_of.max()) + 1 if len(group_of) else 0
    never = torch.full_like(counts, torch.iinfo(counts.dtype).max)
    alone = _group_sum(torch.ones_like(counts), group_of, num_groups) == 1
    start = torch.where(alone, torch.zeros_like(counts), never)
    if not zero_tail:
        return start
    longest = counts == _group_max(counts, group_of, num_groups)
    unique = longest & (_group_sum(longest.long(), group_of, num_groups) == 1)
    second = _group_max(torch.where(longest, torch.full_like(counts, -1), counts), group_of, num_groups)
    return torch.where(unique & ~alone, second, start)


@ADVANTAGES.register("none")
def none(credit: Credit) -> Estimate:
    """A_t = r_t: the token rewards as they are."""
    flat = masked(credit.token_rewards(), credit.response_mask)
    return flat, flat


class SampledTokens(NamedTuple):
    """Responses of a batch without observations."""

    index: Tensor  # [N] positions of sampled tokens in the flat columns
    lengths: Tensor  # [rows]
    rewards: Tensor  # [N]

    def scatter(self, compact: Tensor, credit: Credit) -> Tensor:
        """[N] -> [T], 0 on observations."""
        flat = torch.zeros_like(credit.token_level_rewards)
        return flat.index_copy(0, self.index, compact.to(flat))


def sampled_tokens(credit: Credit) -> SampledTokens:
    """Leave observations out. A reward on an observation is credited to the sampled token before it."""
    mask, rewards = credit.response_mask.bool(), credit.token_rewards()
    index = mask.nonzero().squeeze(-1)
    lengths = row_counts(mask, credit.lengths).cpu()
    first = (lengths.cumsum(0) - lengths).to(mask.device)
    actor = mask.long().cumsum(0) - 1  # index of the last sampled token so far, perhaps of an earlier row
    has_actor = actor >= spread(first, credit.lengths)
    credited = rewards.new_zeros(len(index)).index_add(0, actor[has_actor], rewards[has_actor])
    return SampledTokens(index, lengths, credited)


# Estimators on rows


@ADVANTAGES.register("reward")
def reward(credit: Credit) -> Estimate:
    """A_i = R_i on every response token."""
    return credit.on_tokens(credit.scores())


@ADVANTAGES.register("grpo", "grpo_vectorized", needs={"groups"})
def grpo(credit: Credit) -> Estimate:
    """GRPO (arXiv 2402.03300): A_i = (R_i - mean_g) / (std_g + std_eps), or R_i - mean_g without norm_by_std."""
    group = GroupScores.of(credit)
    return credit.on_tokens(group.centered / (group.std() + credit.std_eps) if credit.norm_by_std else group.centered)


@ADVANTAGES.register("dr_grpo", needs={"groups"})
def dr_grpo(credit: Credit) -> Estimate:
    """Dr.GRPO (arXiv 2503.20783): A_i = R_i - mean_g."""
    return credit.on_tokens(GroupScores.of(credit).centered)


@ADVANTAGES.register("grpo_passk", needs={"groups"}, min_group=2)
def grpo_passk(credit: Credit) -> Estimate:
    """Pass@k (arXiv 2503.19595): a group's best has A = R_best - R_second (/ (std_g + std_eps)), the others 0."""
    group = GroupScores.of(credit)
    if bool((group.sizes < 2).any()):
        raise ValueError("grpo_passk needs at least two responses per prompt: its baseline is the second best")
    top = group.max_of(group.scores)
    numbers = torch.arange(len(top), device=top.device)
    best = -group.max_of(torch.where(group.scores == top, -numbers, -len(top))) == numbers  # the first among equals
    lead = top - group.max_of(torch.where(best, -torch.inf, group.scores))
    lead = lead / (group.std() + credit.std_eps) if credit.norm_by_std else lead
    return credit.on_tokens(torch.where(best, lead, torch.zeros_like(lead)))


@ADVANTAGES.register("reinforce_plus_plus_baseline", needs={"groups"})
def reinforce_plus_plus_baseline(credit: Credit) -> Estimate:
    """REINFORCE++ with the group's mean as baseline: A = whiten(R_i - mean_g) over all response tokens."""
    centered, _ = credit.on_tokens(GroupScores.of(credit).centered)
    white = credit.whiten(centered)
    return white, white


@ADVANTAGES.register("rloo", needs={"groups"})
def rloo(credit: Credit) -> Estimate:
    """Leave one out (arXiv 2402.14740): A_i = R_i - mean of the others = (R_i - mean_g) n_g / (n_g - 1)."""
    group = GroupScores.of(credit)
    return credit.on_tokens(group.centered * group.leave_one_out())


@ADVANTAGES.register("rloo_vectorized", needs={"groups"})
def rloo_vectorized(credit: Credit) -> Estimate:
    """rloo, but a group of one has A = 0."""
    group = GroupScores.of(credit)
    alone = group.sizes == 1
    return credit.on_tokens(torch.where(alone, 0.0, group.centered * group.leave_one_out()))


@ADVANTAGES.register("opo", needs={"groups"})
def opo(credit: Credit) -> Estimate:
    """OPO (arXiv 2505.23585): the baseline is the group's mean weighted by response length."""
    group = GroupScores.of(credit)
    length = row_counts(credit.response_mask, credit.lengths).to(group.scores)
    offset = group.sum_of(length * group.above) / group.sum_of(length).clamp(min=1)
    return credit.on_tokens(torch.where(group.sizes == 1, group.scores, group.above - offset))


@ADVANTAGES.register("gpg", needs={"groups"})
def gpg(credit: Credit) -> Estimate:
    """GPG (arXiv 2504.02546): A_i = alpha (R_i - mean_g), alpha = rows / rows with a score other than 0."""
    group = GroupScores.of(credit)
    scored = (group.scores != 0).sum().clamp(min=1)
    return credit.on_tokens(group.centered * len(group.scores) / scored)


@dataclass(frozen=True)
class GroupScores:
    """Scores of rows relative to their groups; every tensor is [rows]."""

    scores: Tensor
    group_of: Tensor  # index of the row's group
    num_groups: int
    sizes: Tensor  # n_g
    above: Tensor  # R_i - max_g, so that differences between large scores keep their precision
    centered: Tensor  # R_i - mean_g; R_i in a group of one; exactly 0 where all scores are equal

    @staticmethod
    def of(credit: Credit) -> GroupScores:
        scores = credit.scores()
        numbers, group_of = credit.require("groups").to(scores.device).unique(return_inverse=True)
        sizes = _group_sum(torch.ones_like(scores), group_of, len(numbers))
        above = scores - _group_max(scores, group_of, len(numbers))
        mean = _group_sum(above, group_of, len(numbers)) / sizes
        centered = torch.where(sizes == 1, scores, above - mean)
        return GroupScores(scores, group_of, len(numbers), sizes, above, centered)

    def sum_of(self, x: Tensor) -> Tensor:
        """Sum over the row's group."""
        return _group_sum(x, self.group_of, self.num_groups)

    def max_of(self, x: Tensor) -> Tensor:
        """Maximum over the row's group."""
        return _group_max(x, self.group_of, self.num_groups)

    def std(self) -> Tensor:
        """std_g with n - 1; 1 in a group of one."""
        std = (self.sum_of(self.centered.square()) / (self.sizes - 1).clamp(min=1)).sqrt()
        return torch.where(self.sizes == 1, torch.ones_like(std), std)

    def leave_one_out(self) -> Tensor:
        """n_g / (n_g - 1); 1 in a group of one."""
        return torch.where(self.sizes == 1, torch.ones_like(self.sizes), self.sizes / (self.sizes - 1).clamp(min=1))


def _group_sum(x: Tensor, group_of: Tensor, num_groups: int) -> Tensor:
    return x.new_zeros(num_groups).index_add(0, group_of, x)[group_of]


def _group_max(x: Tensor, group_of: Tensor, num_groups: int) -> Tensor:
    return x.new_zeros(num_groups).scatter_reduce(0, group_of, x, "amax", include_self=False)[group_of]
