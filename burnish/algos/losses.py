"""Policy losses and the value loss, per token; aggregate.py reduces them to a scalar.

A policy loss takes (log_probs, old_log_probs, advantages, mask, lengths, options), flat [T] columns with row lengths,
and returns (loss per token [T], metrics as Shares); values outside the mask are undefined. Metadata:
`aggregation` is the only aggregation for which the loss is defined; `couples_rows` marks losses in which a token's loss
depends on other rows of the micro-batch, so that the split into micro-batches matters; `weighting` replaces the plain
product with importance weights (`weighted`).

d = clamp(log pi - log pi_old, +-20), ratio = exp(d), A the advantage; sg() stops the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.algos.masked import EPS, Metrics, masked, masked_mean, masked_share, row_means, spread
from burnish.registry import Entry, Registry

LOSSES = Registry(
    "policy loss",
    key="actor_rollout_ref.actor.policy_loss.loss_mode",
    arguments=["log_probs", "old_log_probs", "advantages", "mask", "lengths", "options"],
)

LossPerToken = tuple[Tensor, Metrics]


@dataclass(frozen=True)
class LossOptions:
    """Hyperparameters of all losses; each loss uses some of them."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_c: float | None = 3.0  # dual clip: caps the loss at -A c where A < 0; None = off
    tau_pos: float = 1.0  # sapo
    tau_neg: float = 1.05
    clip_cov_ratio: float = 0.0002
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0
    kl_cov_ratio: float = 0.0002
    ppo_kl_coef: float = 0.1
    seed: int | torch.Generator = 0  # for losses that sample tokens; an int gives the same choice every time


@LOSSES.register("vanilla")
def vanilla(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, lengths: Tensor, options: LossOptions
) -> LossPerToken:
    """PPO (arXiv 1707.06347) with separate clip bounds (DAPO) and dual clip (arXiv 1912.09729).

    max(-A ratio, -A clamp(ratio, 1 - low, 1 + high)), capped at -A c where A < 0.
    """
    d = log_ratio(log_probs, old_log_probs, mask)
    loss, clipped = clipped_objective(d.exp(), advantages, options)
    metrics = {"ppo_kl": masked_share(-d, mask), "pg_clipfrac": masked_share(clipped, mask)}
    if options.clip_c is not None:
        cap = -advantages * options.clip_c
        capped = (advantages < 0) & (loss > cap)
        loss = torch.where(capped, cap, loss)
        metrics["pg_clipfrac_lower"] = masked_share(capped, mask)
    return loss, metrics


@LOSSES.register("gpg")
def gpg(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, lengths: Tensor, options: LossOptions
) -> LossPerToken:
    """Plain policy gradient (GPG, arXiv 2504.02546): -A log pi."""
    return -masked(advantages, mask) * log_probs, {}


@LOSSES.register("gspo")
def gspo(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, lengths: Tensor, options: LossOptions
) -> LossPerToken:
    """GSPO (arXiv 2507.18071): PPO's clip on the sequence's ratio, exp(mean_t(log pi - log pi_old)).

    The value is the sequence's ratio; the gradient flows through each token's own log-prob.
    """
    gap = masked(log_probs - old_log_probs, mask)
    sequence = spread(row_means(gap, mask, lengths), lengths).detach()
    ratio = (masked(log_probs - log_probs.detach(), mask) + sequence).clamp(max=10).exp()
    loss, clipped = clipped_objective(ratio, advantages, options)
    return loss, {"ppo_kl": masked_share(-gap, mask), "pg_clipfrac": masked_share(clipped, mask)}


@LOSSES.register("cispo")
def cispo(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, lengths: Tensor, options: LossOptions
) -> LossPerToken:
    """CISPO (arXiv 2506.13585): -sg(clamp(ratio, 1 - low, 1 + high)) A log pi. No token loses its gradient."""
    d = log_ratio(log_probs, old_log_probs, mask)
    ratio = d.detach().exp()
    weight = ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    metrics = {"ppo_kl": masked_share(-d, mask), "pg_clipfrac": masked_share(weight != ratio, mask)}
    return -weight * masked(advantages, mask) * log_probs, metrics


@LOSSES.register("sapo", aggregation="seq-mean-token-mean")
def sapo(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, lengths: Tensor, options: LossOptions
) -> LossPerToken:
    """SAPO (arXiv 2511.20347): -(4 / tau) sigmoid(tau (ratio - 1)) A, a soft clip; tau by the sign of A."""
    d = log_ratio(log_probs, old_log_probs, mask)
    tau = torch.where(advantages > 0, options.tau_pos, options.tau_neg)
    gate = torch.sigmoid(tau * (d.exp() - 1)) * 4 / tau
    return -gate * advantages, {"ppo_kl": masked_share(-d, mask)}


def geometric_mean(weights: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """The geometric mean of each row's weights, on all its tokens; 1e-10 keeps a weight of 0 finite."""
    return spread(row_means((weights + 1e-10).log(), mask, lengths).exp(), lengths)


@LOSSES.register("geo_mean", "gmpo", aggregation="seq-mean-token-mean", weighting=geometric_mean)
def geo_mean(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, lengths: Tensor, options: LossOptions
) -> LossPerToken:
    """GMPO (arXiv 2507.20673): -mean_t(A) exp(mean_t(d clipped to [-low, high])), the same on every token of the row.

    As in PPO, the clip applies only where it lowers the objective. A row's importance weight is the geometric mean of
    its tokens' weights.
    """
    d = log_ratio(log_probs, old_log_probs, mask)
    bounded = d.clamp(-options.clip_low, options.clip_high)
    pessimistic = torch.where(advantages >= 0, torch.minimum(d, bounded), torch.maximum(d, bounded))
    sequence = -row_means(advantages, mask, lengths) * row_means(pessimistic, mask, lengths).exp()
    clipped = bounded != d
    metrics = {
        "ppo_kl": masked_share(-d, mask),
        "pg_clipfrac": masked_share(clipped & (advantages > 0), mask),
        "pg_clipfrac_lower": masked_share(clipped & (advantages < 0), mask),
    }
    return spread(sequence, lengths), metrics


@LOSSES.register("dppo_tv")
def dppo_tv(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, lengths: Tensor, options: LossOptions
) -> LossPerToken:
    """DPPO with binary total variation (arXiv 2602.04879): -sg(min(ratio, c)) A log pi inside the trust region.

    A token leaves the loss where its update would move pi further from pi_old than allowed: pi - pi_old > high where
    A > 0, pi_old - pi > low elsewhere.
    """
    change = log_probs.detach().exp() - old_log_probs.exp()
    kept = torch.where(advantages > 0, change <= options.clip_high, change >= -options.clip_low)
    return _trust_region(log_probs, old_log_probs, advantages, mask, kept, options)


@LOSSES.register("dppo_kl")
def dppo_kl(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, lengths: Tensor, options: LossOptions
) -> LossPerToken:
    """DPPO with binary KL (arXiv 2602.04879): as dppo_tv, with KL(pi_old || pi) of token against not-token as distance.

    A token leaves the loss where pi has moved in the direction of its update and the KL exceeds high (A > 0) or low.
    """
    new, old = log_probs.detach().exp(), old_log_probs.exp()
    other = (1 - old) * ((1 - old + EPS) / (1 - new + EPS)).log()
    distance = old * (old_log_probs - log_probs.detach()) + other
    kept_up = (distance <= options.clip_high) | (new <= old)
    kept_down = (distance <= options.clip_low) | (new >= old)
    kept = torch.where(advantages > 0, kept_up, kept_down)
    return _trust_region(log_probs, old_log_probs, advantages, mask, kept, options)


def _trust_region(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, kept: Tensor, options: LossOptions
) -> LossPerToken:
    """DPPO's loss with the tokens that it keeps."""
    d = log_ratio(log_probs, old_log_probs, mask)
    ratio = d.detach().exp()
    metrics = {"ppo_kl": masked_share(-d, mask), "pg_clipfrac": masked_share(~kept, mask)}
    if options.clip_c is not None:
        metrics["pg_clipfrac_lower"] = masked_share(kept & (ratio > options.clip_c), mask)
        ratio = ratio.clamp(max=options.clip_c)
    return -masked(ratio * advantages, mask.bool() & kept) * log_probs, metrics


@LOSSES.register("clip_cov", couples_rows=True)
def clip_cov(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, lengths: Tensor, options: LossOptions
) -> LossPerToken:
    """Clip-Cov (arXiv 2505.22617): PPO without some of the tokens that would reduce entropy the most.

    Among the tokens that PPO does not clip and whose covariance lies in (lb, ub), a random fraction
    `clip_cov_ratio` of all tokens, at least one, is removed from the loss.
    """
    d = log_ratio(log_probs, old_log_probs, mask)
    loss, clipped = clipped_objective(d.exp(), advantages, options)
    covariance = token_covariance(log_probs, advantages, mask)
    eligible = mask.bool() & ~clipped & (covariance > options.clip_cov_lb) & (covariance < options.clip_cov_ub)
    count = max(1, int(options.clip_cov_ratio * int(mask.bool().sum())))
    dropped = torch.zeros_like(eligible)
    dropped[choose(eligible.nonzero().squeeze(-1), count, options.seed)] = True
    metrics = {"ppo_kl": masked_share(-d, mask), "pg_clipfrac": masked_share(dropped, mask)}
    return masked(loss, ~dropped), metrics


@LOSSES.register("kl_cov", couples_rows=True)
def kl_cov(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor, lengths: Tensor, options: LossOptions
) -> LossPerToken:
    """KL-Cov (arXiv 2505.22617): -A ratio + ppo_kl_coef |d| on the fraction `kl_cov_ratio` of highest covariance."""
    d = log_ratio(log_probs, old_log_probs, mask)
    tokens = int(mask.bool().sum())
    count = min(tokens, max(1, int(options.kl_cov_ratio * tokens))) if options.kl_cov_ratio > 0 else 0
    covariance = token_covariance(log_probs, advantages, mask).masked_fill(~mask.bool(), -torch.inf)
    penalized = torch.zeros_like(mask, dtype=torch.bool)
    penalized[covariance.topk(count).indices] = True
    loss = -advantages * d.exp() + masked(options.ppo_kl_coef * d.abs(), penalized)
    return loss, {"ppo_kl": masked_share(-d, mask)}


def weighted(loss: Entry, per_token: Tensor, weights: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
    """A loss per token times the importance weights of rollout correction, 0 outside the mask."""
    weighting = loss.metadata.get("weighting")
    weights = masked(weights if weighting is None else weighting(weights, mask, lengths), mask)
    return per_token * weights


def log_ratio(log_probs: Tensor, old_log_probs: Tensor, mask: Tensor) -> Tensor:
    """d, and 0 outside the mask."""
    return masked(log_probs - old_log_probs, mask).clamp(-20, 20)


def clipped_objective(ratio: Tensor, advantages: Tensor, options: LossOptions) -> tuple[Tensor, Tensor]:
    """The larger of PPO's unclipped and clipped loss, and where the clipped one is larger."""
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
    return torch.maximum(unclipped, clipped), clipped > unclipped


def token_covariance(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(A - mean A) (log pi - mean log pi) per token, detached: how much a token's update changes the entropy."""
    log_probs = log_probs.detach()
    return (advantages - masked_mean(advantages, mask)) * (log_probs - masked_mean(log_probs, mask))


def choose(candidates: Tensor, count: int, seed: int | torch.Generator) -> Tensor:
    """`count` of the candidates at random, or all if there are fewer."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    order = torch.randperm(len(candidates), generator=generator, device=generator.device)
    return candidates[order[:count].to(candidates.device)]


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, mask: Tensor, cliprange_value: float
) -> LossPerToken:
    """Half the larger squared error of the prediction and of the prediction clipped to old +- cliprange_value."""
    clipped = torch.clamp(values, old_values - cliprange_value, old_values + cliprange_value)
    loss, clipped_loss = (values - returns).square(), (clipped - returns).square()
    return 0.5 * torch.maximum(loss, clipped_loss), {"vf_clipfrac": masked_share(clipped_loss > loss, mask)}


def entropy_from_logits(logits: Tensor) -> Tensor:
    """H = logsumexp(z) - sum(softmax(z) z): [..., V] -> [...]. z: logits divided by the temperature."""
    finite = logits.masked_fill(logits == -torch.inf, 0)  # 0 * inf is NaN, in the gradient too
    return logits.logsumexp(-1) - (logits.softmax(-1) * finite).sum(-1)
