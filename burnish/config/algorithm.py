"""algorithm.*: how scores become advantages."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config.fields import above, at_least, between, one_of, section, setting
from burnish.config.names import (
    ADVANTAGES,
    BYPASS_LOSSES,
    IS_LEVELS,
    KL_CONTROLLERS,
    KL_ESTIMATORS,
    KL_ORDERS,
    OBSERVATIONS,
    REJECTIONS,
    REWEIGHT_METHODS,
    WHITENINGS,
)


@dataclass
class KlCtrlConfig:
    """The weight of the KL in the reward."""

    type: str = one_of("fixed", KL_CONTROLLERS)
    """Keep the weight (fixed), or steer it towards target_kl (adaptive)."""

    kl_coef: float = at_least(0.001, 0)
    """Weight of the KL in the reward, at the start if adaptive."""

    horizon: int = at_least(10000, 1)
    """adaptive: how slowly the weight moves, in responses."""

    target_kl: float = above(0.1, 0)
    """adaptive: the KL to hold."""


@dataclass
class PfPpoConfig:
    """Policy filtration."""

    reweight_method: str = one_of("pow", REWEIGHT_METHODS)
    """How scores become sampling weights."""

    weight_pow: float = 2.0
    """pow: the exponent."""


@dataclass
class FilterGroupsConfig:
    """DAPO's dynamic sampling."""

    enable: bool = False
    """Replace groups whose metric is the same for all responses: they teach nothing."""

    metric: str | None = None
    """What is compared within a group: score (null), acc, seq_reward or seq_final_reward (the score after length
    penalties and reward.scale), or any number that the reward returns beside the score."""

    max_num_gen_batches: int = at_least(0, 0)
    """Most rounds of data.gen_batch_size prompts per step; then the run stops. 0 is no limit."""

    reward_range: list[float] | None = None
    """[low, high]: keep a group if the mean of its metric is strictly between the two; null keeps those that differ."""


@dataclass
class RolloutCorrectionConfig:
    """Importance correction between the engine's and the trainer's probabilities."""

    rollout_is: str | None = one_of(None, IS_LEVELS)
    """Weight the loss by the ratio of trainer to engine probability, per token or per sequence; null is off."""

    rollout_is_threshold: str = "2.0"
    """Largest such weight, for instance 2.0; a pair low_high (0.5_2.0) sets weights outside it to 0 (IcePop)."""

    rollout_is_threshold_lower: float | None = above(None, 0)
    """Smallest such weight: lower ones count as this (OpenRLHF: 0.5); null has no lower bound."""

    rollout_is_batch_normalize: bool = False
    """Scale the weights to mean 1 over the batch."""

    rollout_rs: list[str] = one_of([], REJECTIONS, comma_separated=True, verl=None)
    """Reject tokens or sequences by these measures, separated by commas, for instance token_k1,seq_max_k2; a token must
    pass them all. Empty or null is off."""

    rollout_rs_threshold: list[str] = setting([], comma_separated=True, verl=None)
    """Threshold of each measure, separated by commas, or one for all: the largest distance (k2, k3), or ratios low_high
    (k1 and the older names), where a single number h means 1/h to h."""

    rollout_rs_threshold_lower: float | None = above(None, 0)
    """Lower ratio of the measures whose threshold is a single number (older form)."""

    rollout_token_veto_threshold: float | None = above(None, 0)
    """Reject a sequence with a token whose ratio of trainer to engine probability is below this."""

    bypass_mode: bool = False
    """Take ratios against the engine's log-probs instead of the trainer's, which are then not read again unless weights
    or rejection need them."""

    use_policy_gradient: bool = False
    """bypass_mode: plain policy gradient instead of the clipped loss (older form of loss_type)."""

    loss_type: str = one_of("ppo_clip", BYPASS_LOSSES)
    """bypass_mode: actor.policy_loss.loss_mode, or plain policy gradient."""


@dataclass
class AlgorithmConfig:
    """From scores to advantages."""

    adv_estimator: str = one_of("gae", ADVANTAGES, user_paths=True)
    """The advantage estimator: a name, or path/to/file.py:function."""

    gamma: float = between(1.0, 0, 1)
    """Discount of later rewards (gae, reinforce_plus_plus)."""

    lam: float = between(1.0, 0, 1)
    """Lambda of GAE: 1 trusts returns, 0 trusts the critic."""

    norm_adv_by_std_in_grpo: bool = True
    """Divide GRPO's advantages by the group's standard deviation; off is Dr. GRPO."""

    use_kl_in_reward: bool = False
    """Take the KL to the reference policy off each token's reward (PPO). Not together with actor.use_kl_loss."""

    kl_penalty: str = one_of("kl", KL_ESTIMATORS)
    """Estimator of the KL in the reward."""

    kl_ctrl: KlCtrlConfig = section(KlCtrlConfig)
    """The weight of the KL in the reward."""

    kl_clamp: float | None = above(None, 0)
    """Hold the KL in the reward within +- this on each token (OpenRLHF: 10); null leaves it as it is."""

    kl_order: str = one_of("before", KL_ORDERS)
    """Whether the KL is taken off the reward before the responses of a prompt are compared, or after (OpenRLHF)."""

    reward_clip_range: list[float] | None = None
    """[low, high] for a response's score (OpenRLHF: [-10,10]); with kl_order=after, for what comparing leaves of it."""

    whitening: str = one_of("unbiased", WHITENINGS)
    """How gae, reinforce_plus_plus and reinforce_plus_plus_baseline scale advantages over the batch."""

    group_std_epsilon: float = at_least(1e-6, 0)
    """Added to a group's standard deviation before dividing by it (OpenRLHF: 1e-9)."""

    gae_observations: str = one_of("skip", OBSERVATIONS)
    """How gae gets past tokens that the model did not write."""

    use_pf_ppo: bool = False
    """Policy filtration: draw the step's responses again by their score."""

    pf_ppo: PfPpoConfig = section(PfPpoConfig)
    """How policy filtration draws."""

    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig)
    """DAPO's dynamic sampling."""

    rollout_correction: RolloutCorrectionConfig = section(RolloutCorrectionConfig)
    """Importance correction between engine and trainer."""
