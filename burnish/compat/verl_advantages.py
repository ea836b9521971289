"""verl's advantage functions with padded [B, T] arguments, and estimators that users wrote for verl."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from burnish.algos.advantages import ADVANTAGES, Credit, Estimate
from burnish.compat.padding import flat, full_lengths, group_numbers, padded


def compute_gae_advantage_return(
    token_level_rewards: Tensor, values: Tensor, response_mask: Tensor, gamma: float, lam: float
) -> Estimate:
    return _estimate("gae", token_level_rewards, response_mask, values=values, gamma=float(gamma), lam=float(lam))


def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any],
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
) -> Estimate:
    options = {"norm_by_std": norm_adv_by_std_in_grpo, "std_eps": epsilon}
    return _estimate("grpo", token_level_rewards, response_mask, index=index, **options)


def compute_grpo_passk_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Sequence[Any],
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
) -> Estimate:
    norm = norm_adv_by_std_in_grpo if config is None else config.norm_adv_by_std_in_grpo
    options = {"norm_by_std": norm, "std_eps": epsilon}
    return _estimate("grpo_passk", token_level_rewards, response_mask, index=index, **options)


def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    config: Any = None,
    gamma: float = 1.0,
) -> Estimate:
    discount = float(gamma if config is None else config.gamma)
    return _estimate("reinforce_plus_plus", token_level_rewards, response_mask, gamma=discount)


def compute_remax_outcome_advantage(
    token_level_rewards: Tensor,
    reward_baselines: Tensor,
    response_mask: Tensor,
    config: Any = None,
) -> Estimate:
    return _estimate("remax", token_level_rewards, response_mask, greedy_scores=reward_baselines)


def _token_baseline(name: str) -> Callable[..., Estimate]:
    """verl's signature of the optimal token baselines."""

    def compute(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Sequence[Any],
        old_log_probs: Tensor,
        sum_pi_squared: Tensor,
        rollout_is_weights: Tensor | None = None,
        handle_zero_tail: bool = True,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ) -> Estimate:
        columns = {"old_log_probs": old_log_probs, "sum_pi_squared": sum_pi_squared}
        if rollout_is_weights is not None:
            columns["importance_weights"] = rollout_is_weights
        credit = _credit(
            token_level_rewards,
            response_mask,
            index=index,
            **{column: x.reshape(-1) for column, x in columns.items()},
        )
        estimate = ADVANTAGES[name].load()(credit, zero_tail=handle_zero_tail, eps=epsilon)
        return _reshaped(estimate, token_level_rewards)

    compute.__doc__ = f"Estimator {name!r}."
    return compute


compute_optimal_token_baseline_advantage = _token_baseline("optimal_token_baseline")
compute_multi_turn_optimal_token_baseline_advantage = _token_baseline("tir_optimal_token_baseline")


def _grouped(name: str) -> Callable[..., Estimate]:
    """verl's signature of an estimator that uses only scores and groups."""

    def compute(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Sequence[Any],
        epsilon: float = 1e-6,
        config: Any = None,
    ) -> Estimate:
        return _estimate(name, token_level_rewards, response_mask, index=index)

    compute.__doc__ = f"Estimator {name!r}."
    return compute


compute_grpo_vectorized_outcome_advantage = compute_grpo_outcome_advantage
compute_reinforce_plus_plus_baseline_outcome_advantage = _grouped("reinforce_plus_plus_baseline")
compute_rloo_outcome_advantage = _grouped("rloo")
compute_rloo_vectorized_outcome_advantage = _grouped("rloo_vectorized")
compute_opo_outcome_advantage = _grouped("opo")
compute_gpg_outcome_advantage = _grouped("gpg")


# Argument in an estimator's signature -> what the estimator needs.
NEEDED_FOR = {
    "values": "values",
    "index": "groups",
    "reward_baselines": "greedy",
    "sum_pi_squared": "sum_pi_squared",
    "old_log_probs": "sum_pi_squared",
}


def estimator_from_verl(function: Callable[..., Estimate]) -> Callable[[Credit], Estimate]:
    """Wrap a verl-style estimator (padded [B, T] tensors) as one of ours.

    It is called with those of verl's arguments that its signature names; `config` holds gamma, lam and
    norm_adv_by_std_in_grpo. `needs` follows from the signature as well.
    """
    names = inspect.signature(function).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in names.values())

    def estimate(credit: Credit) -> Estimate:
        arguments = _verl_arguments(credit)
        kwargs = {name: value for name, value in arguments.items() if takes_all or name in names}
        advantages, returns = function(**kwargs)
        return flat(advantages, credit.lengths), flat(returns, credit.lengths)

    estimate.needs = frozenset(NEEDED_FOR[name] for name in names if name in NEEDED_FOR)  # type: ignore[attr-defined]
    return estimate


def _verl_arguments(credit: Credit) -> dict[str, Any]:
    lengths = credit.lengths
    settings = {"gamma": credit.gamma, "lam": credit.lam, "norm_adv_by_std_in_grpo": credit.norm_by_std}
    arguments: dict[str, Any] = {
        "token_level_rewards": padded(credit.token_rewards(), lengths),
        "response_mask": padded(credit.response_mask, lengths),
        "config": _Settings(settings),
    }
    names = {"values": "values", "old_log_probs": "old_log_probs", "sum_pi_squared": "sum_pi_squared"}
    for name, column in {**names, "rollout_is_weights": "importance_weights"}.items():
        if getattr(credit, column) is not None:
            arguments[name] = padded(getattr(credit, column), lengths)
    if credit.groups is not None:
        arguments["index"] = credit.groups.cpu().numpy()
    if credit.greedy_scores is not None:
        arguments["reward_baselines"] = credit.greedy_scores
    return {**settings, **arguments}


class _Settings(dict):
    """A dict with attribute access: verl users write config.gamma and config.get("gamma", 1.0)."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"no setting {name!r}; available: {sorted(self)}")
        return self[name]


# verl's registry


def register_adv_est(name: str) -> Callable[[Callable[..., Estimate]], Callable[..., Estimate]]:
    """Decorator: register a verl-style estimator under this name."""

    def register(function: Callable[..., Estimate]) -> Callable[..., Estimate]:
        estimate = estimator_from_verl(function)
        ADVANTAGES.register(name, needs=estimate.needs)(estimate)  # type: ignore[attr-defined]
        return function

    return register


def get_adv_estimator_fn(name: str) -> Callable[..., Estimate]:
    """The estimator of that name with verl's arguments."""
    functions = {
        "gae": compute_gae_advantage_return,
        "grpo": compute_grpo_outcome_advantage,
        "grpo_vectorized": compute_grpo_vectorized_outcome_advantage,
        "grpo_passk": compute_grpo_passk_outcome_advantage,
        "reinforce_plus_plus": compute_reinforce_plus_plus_outcome_advantage,
        "remax": compute_remax_outcome_advantage,
        "optimal_token_baseline": compute_optimal_token_baseline_advantage,
        "tir_optimal_token_baseline": compute_multi_turn_optimal_token_baseline_advantage,
    }
    return functions.get(ADVANTAGES[name].name) or _grouped(name)


def _estimate(name: str, token_level_rewards: Tensor, response_mask: Tensor, **columns: Any) -> Estimate:
    credit = _credit(token_level_rewards, response_mask, **columns)
    return _reshaped(ADVANTAGES[name].load()(credit), token_level_rewards)


def _credit(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    *,
    index: Sequence[Any] | None = None,
    values: Tensor | None = None,
    **fields: Any,
) -> Credit:
    return Credit(
        token_level_rewards.reshape(-1),
        response_mask.reshape(-1),
        full_lengths(response_mask),
        groups=None if index is None else group_numbers(index),
        values=None if values is None else values.reshape(-1),
        **fields,
    )


def _reshaped(estimate: Estimate, like: Tensor) -> Estimate:
    advantages, returns = estimate
    return advantages.view_as(like), returns.view_as(like)
