"""algorithm.*: advantage estimation, KL in the reward, group filtering, rollout correction."""

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
    TURN_CREDITS,
    WHITENINGS,
)


@dataclass
class KlCtrlConfig:
    """The weight of the KL in the reward."""

    type: str = one_of("fixed", KL_CONTROLLERS)
    """Keep the coefficient constant (fixed), or adapt it towards target_kl (adaptive)."""

    kl_coef: float = at_least(0.001, 0)
    """Weight of the KL in the reward; the initial value if adaptive."""

    horizon: int = at_least(10000, 1)
    """adaptive: time scale of the adaptation, in responses."""

    target_kl: float = above(0.1, 0)
    """adaptive: target KL."""


@dataclass
class PfPpoConfig:
    """Policy filtration (PF-PPO)."""

    reweight_method: str = one_of("pow", REWEIGHT_METHODS)
    """How sampling weights are computed from scores."""

    weight_pow: float = 2.0
    """pow: the exponent."""


@dataclass
class FilterGroupsConfig:
    """DAPO's dynamic sampling."""

    enable: bool = False
    """Replace groups whose metric is equal for all responses: they give no learning signal."""

    metric: str | None = None
    """Metric to compare within a group: score (null), acc, seq_reward or seq_final_reward (the score after length
    penalties and reward.scale), or any number that the reward returns with the score."""

    max_num_gen_batches: int = at_least(0, 0)
    """Maximum rounds of data.gen_batch_size prompts per step, after which the run stops; 0 is no limit."""

    reward_range: list[float] | None = None
    """[low, high]: keep a group if the mean of its metric is strictly between the two; null keeps groups whose
    responses differ."""


@dataclass
class RolloutCorrectionConfig:
    """Importance correction for the mismatch between engine and trainer probabilities."""

    rollout_is: str | None = one_of(None, IS_LEVELS)
    """Weight the loss by the ratio of trainer to engine probability, per token or per sequence; null disables it."""

    rollout_is_threshold: str = "2.0"
    """Upper bound of these weights, for instance 2.0; a pair low_high (0.5_2.0) sets weights outside it to 0
    (IcePop)."""

    rollout_is_threshold_lower: float | None = above(None, 0)
    """Lower bound of these weights (OpenRLHF: 0.5); null is none."""

    rollout_is_batch_normalize: bool = False
    """Normalize the weights to mean 1 over the batch."""

    rollout_rs: list[str] = one_of([], REJECTIONS, comma_separated=True, verl=None)
    """Rejection sampling: mask tokens or sequences by these measures, separated by commas, for instance
    token_k1,seq_max_k2; a token must pass all of them. Empty or null disables it."""

    rollout_rs_threshold: list[str] = setting([], comma_separated=True, verl=None)
    """Threshold of each measure, separated by commas, or one for all: the largest distance (k2, k3), or ratios low_high
    (k1 and the older names), where a single number h means 1/h to h."""

    rollout_rs_threshold_lower: float | None = above(None, 0)
    """Lower ratio of the measures whose threshold is a single number (older form)."""

    rollout_token_veto_threshold: float | None = above(None, 0)
    """Reject a sequence with a token whose ratio of trainer to engine probability is below this."""

    bypass_mode: bool = False
    """Compute ratios against the engine's log-probs; the trainer's old log-probs are then only computed if importance
    weights or rejection need them."""

    use_policy_gradient: bool = False
    """bypass_mode: plain policy gradient instead of the clipped loss (older form of loss_type)."""

    loss_type: str = one_of("ppo_clip", BYPASS_LOSSES)
    """bypass_mode: actor.policy_loss.loss_mode, or plain policy gradient."""


@dataclass
class AlgorithmConfig:
    """Advantage estimation."""

    adv_estimator: str = one_of("gae", ADVANTAGES, user_paths=True)
    """The advantage estimator: a name, or path/to/file.py:function."""

    gamma: float = between(1.0, 0, 1)
    """Discount factor (gae, reinforce_plus_plus)."""

    lam: float = between(1.0, 0, 1)
    """Lambda of GAE: 1 uses full returns, 0 one-step TD errors of the critic."""

    norm_adv_by_std_in_grpo: bool = True
    """Divide GRPO's advantages by the group's standard deviation; false is Dr. GRPO."""

    use_kl_in_reward: bool = False
    """Subtract the KL to the reference policy from each token's reward (PPO). Not together with actor.use_kl_loss."""

    kl_penalty: str = one_of("kl", KL_ESTIMATORS)
    """Estimator of the KL in the reward."""

    kl_ctrl: KlCtrlConfig = section(KlCtrlConfig)
    """The weight of the KL in the reward."""

    kl_clamp: float | None = above(None, 0)
    """Clamp the per-token KL in the reward to +-this value (OpenRLHF: 10); null does not clamp."""

    kl_order: str = one_of("before", KL_ORDERS)
    """Whether the KL is subtracted before the responses of a prompt are compared, or after (OpenRLHF)."""

    reward_clip_range: list[float] | None = None
    """[low, high]: clip a response's score (OpenRLHF: [-10,10]); with kl_order=after, clip it after the comparison."""

    whitening: str = one_of("unbiased", WHITENINGS)
    """How gae, reinforce_plus_plus and reinforce_plus_plus_baseline normalize advantages over the batch."""

    group_std_epsilon: float = at_least(1e-6, 0)
    """Added to a group's standard deviation before dividing by it (OpenRLHF: 1e-9)."""

    gae_observations: str = one_of("skip", OBSERVATIONS)
    """How gae treats tokens that the model did not generate."""

    turn_credit: str = one_of("trajectory", TURN_CREDITS)
    """How rewards within a conversation reach its turns; gamma counts turns where it is not trajectory or outcome."""

    use_pf_ppo: bool = False
    """Policy filtration: resample the step's responses by their score."""

    pf_ppo: PfPpoConfig = section(PfPpoConfig)
    """Resampling of policy filtration."""

    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig)
    """DAPO's dynamic sampling."""

    rollout_correction: RolloutCorrectionConfig = section(RolloutCorrectionConfig)
    """Importance correction for the mismatch between engine and trainer probabilities."""
