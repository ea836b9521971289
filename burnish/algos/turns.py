"""Credit of turns: how rewards within a conversation reach the turns that earned them.

A function takes a Credit, the Turns of its rows and the row estimator, and returns (advantages, returns) like an
estimator. r_k is the reward of turn k (the conversation's score belongs to its last turn), G_k = r_k + gamma G_{k+1}.
The policy decides when a conversation ends, so a turn's baseline must not depend on whether it was taken:
tests/algos/test_turns.py compares every expected gradient with the exact one on small games.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from burnish.algos.advantages import Credit, Estimate, GroupScores, grpo, sampled_tokens
from burnish.algos.masked import masked, next_in_row, reverse_scan
from burnish.registry import Registry

TURN_CREDITS = Registry("turn credit", key="algorithm.turn_credit")

Estimator = Callable[[Credit], Estimate]


@dataclass(frozen=True)
class Turns:
    """The sampled turns of all rows, row by row. N is their number."""

    counts: Tensor  # [rows] turns of each row, int64 on the CPU
    of_token: Tensor  # [T] index of the token's turn among all N; -1 on observations
    states: Tensor  # [N] equal numbers: the turn started in the same state

    @property
    def rows(self) -> Tensor:
        """[N] row of each turn."""
        return torch.arange(len(self.counts)).repeat_interleave(self.counts).to(self.of_token.device)

    @property
    def numbers(self) -> Tensor:
        """[N] position of each turn in its row, from 0."""
        first = (self.counts.cumsum(0) - self.counts).repeat_interleave(self.counts)
        return (torch.arange(int(self.counts.sum())) - first).to(self.of_token.device)

    def rewards(self, credit: Credit) -> Tensor:
        """r_k [N]. A reward on an observation belongs to the turn before it."""
        sampled = sampled_tokens(credit)
        turn = self.of_token[sampled.index]
        return sampled.rewards.new_zeros(int(self.counts.sum())).index_add(0, turn, sampled.rewards)

    def on_tokens(self, per_turn: Tensor, credit: Credit) -> Tensor:
        """Each turn's value on its tokens [T], 0 on observations; minus the penalties from each token on."""
        flat = per_turn.to(credit.token_level_rewards)[self.of_token.clamp(min=0)]
        if credit.penalty is not None:
            flat = flat - reverse_scan(credit.penalty, credit.lengths)
        return masked(flat, credit.response_mask)


@TURN_CREDITS.register("trajectory")
def trajectory(credit: Credit, turns: Turns | None, estimator: Estimator) -> Estimate:
    """The estimator sees the sum of all rewards of a conversation."""
    return estimator(credit)


@TURN_CREDITS.register("outcome", needs={"turns"})
def outcome(credit: Credit, turns: Turns, estimator: Estimator) -> Estimate:
    """Only what the last turn earned counts: the score, without rewards of earlier turns."""
    is_last = turns.numbers == turns.counts.repeat_interleave(turns.counts).to(turns.numbers) - 1
    keep = is_last[turns.of_token.clamp(min=0)] & (turns.of_token >= 0)
    return estimator(replace(credit, token_level_rewards=masked(credit.token_level_rewards, keep)))


@TURN_CREDITS.register("return_to_go", needs={"turns", "groups"})
def return_to_go(credit: Credit, turns: Turns, estimator: Estimator) -> Estimate:
    """A_k = G_k - the mean G_k of the group's other conversations that reached turn k; unbiased.

    A conversation that reached turn k alone has no baseline there. norm_by_std divides by the group's std_g.
    """
    gains = reverse_scan(turns.rewards(_without_penalty(credit)), turns.counts, credit.gamma)
    advantages = gains - _mean_of_others(gains, turns, credit)
    return _finish(_divide_by_std(advantages, turns, credit), gains, turns, credit)


@TURN_CREDITS.register("gae", needs={"turns", "values"})
def turn_gae(credit: Credit, turns: Turns, estimator: Estimator) -> Estimate:
    """GAE whose steps are turns: V_k is the critic's value at a turn's first token, lam and gamma count turns.

    All tokens of a turn have its advantage (whitened over the batch) and its return.
    """
    index = credit.response_mask.bool().nonzero().squeeze(-1)
    turn = turns.of_token[index]
    is_first = torch.ones_like(turn, dtype=torch.bool)
    is_first[1:] = turn[1:] != turn[:-1]
    values = credit.require("values").new_zeros(int(turns.counts.sum()))
    values = values.index_copy(0, turn[is_first], credit.require("values")[index[is_first]])
    delta = turns.rewards(credit) + credit.gamma * next_in_row(values, turns.counts) - values
    advantages = reverse_scan(delta, turns.counts, credit.gamma * credit.lam)
    flat = masked(advantages.to(values)[turns.of_token.clamp(min=0)], credit.response_mask)
    returns = masked((advantages + values)[turns.of_token.clamp(min=0)], credit.response_mask)
    return credit.whiten(flat), returns


@TURN_CREDITS.register("gigpo", needs={"turns", "groups"})
def gigpo(credit: Credit, turns: Turns, estimator: Estimator) -> Estimate:
    """GiGPO (arXiv 2505.10978): GRPO's advantage of the conversation plus that of the turn among all turns of the
    group that started in the same state: G_k minus their mean, over their std with norm_by_std."""
    credit = _without_penalty(credit)
    gains = reverse_scan(turns.rewards(credit), turns.counts, credit.gamma)
    groups = credit.require("groups").to(gains.device)[turns.rows]
    cell = torch.stack([groups, turns.states.to(gains.device)])
    cells, cell_of = cell.unique(dim=1, return_inverse=True)
    # One turn per row of a virtual batch: the group of a turn is its state.
    each = replace(
        credit,
        token_level_rewards=gains,
        response_mask=torch.ones_like(gains),
        lengths=torch.ones(len(gains), dtype=torch.int64),
        groups=cell_of,
        values=None,
        penalty=None,
        clip=None,
    )
    step, _ = grpo(each)
    alone = torch.bincount(cell_of, minlength=cells.shape[1])[cell_of] == 1
    step = torch.where(alone, torch.zeros_like(step), step)  # a state that was visited once says nothing
    episode, _ = grpo(credit)
    return masked(episode + turns.on_tokens(step, credit), credit.response_mask), turns.on_tokens(gains, credit)


@TURN_CREDITS.register("per_turn", needs={"turns", "groups"})
def per_turn(credit: Credit, turns: Turns, estimator: Estimator) -> Estimate:
    """MT-GRPO: rewards are normalized among the group's turns of the same number, and the score is added to all.

    Biased where the policy decides when to stop: an extra turn is worth nothing on average, whatever it earns.
    """
    credit = _without_penalty(credit)
    rewards = turns.rewards(credit)
    is_last = turns.numbers == turns.counts.repeat_interleave(turns.counts).to(turns.numbers) - 1
    intermediate = torch.where(is_last, torch.zeros_like(rewards), rewards)
    groups = credit.require("groups").to(rewards.device)[turns.rows]
    _, cell_of = torch.stack([groups, turns.numbers.to(groups)]).unique(dim=1, return_inverse=True)
    sums = rewards.new_zeros(len(rewards)).index_add(0, cell_of, intermediate)
    sizes = torch.bincount(cell_of, minlength=len(rewards)).to(rewards)
    centered = torch.where(sizes[cell_of] > 1, intermediate - sums[cell_of] / sizes[cell_of], torch.zeros_like(rewards))
    final, _ = outcome(credit, turns, estimator)
    return masked(final + turns.on_tokens(centered, credit), credit.response_mask), final


def _mean_of_others(gains: Tensor, turns: Turns, credit: Credit) -> Tensor:
    """For each turn, the mean gain of the same turn number over the group's other rows; 0 where there is none."""
    groups = credit.require("groups").to(gains.device)[turns.rows]
    _, cell_of = torch.stack([groups, turns.numbers.to(groups)]).unique(dim=1, return_inverse=True)
    sums = gains.new_zeros(len(gains)).index_add(0, cell_of, gains)[cell_of]
    others = torch.bincount(cell_of, minlength=len(gains)).to(gains)[cell_of] - 1
    return torch.where(others > 0, (sums - gains) / others.clamp(min=1), torch.zeros_like(gains))


def _divide_by_std(advantages: Tensor, turns: Turns, credit: Credit) -> Tensor:
    if not credit.norm_by_std:
        return advantages
    return advantages / (GroupScores.of(credit).std().to(advantages)[turns.rows] + credit.std_eps)


def _without_penalty(credit: Credit) -> Credit:
    """Rewards that are compared between conversations; the KL penalty is subtracted afterwards (kl_order=after)."""
    return replace(credit, penalty=None, clip=None) if credit.penalty is not None else credit


def _finish(advantages: Tensor, gains: Tensor, turns: Turns, credit: Credit) -> Estimate:
    return turns.on_tokens(advantages, credit), turns.on_tokens(gains, credit)
