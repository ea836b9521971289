"""algorithm.*: how scores become advantages."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config.fields import above, at_least, between, one_of, section
from burnish.config.names import ADVANTAGES, KL_CONTROLLERS, KL_ESTIMATORS, REWEIGHT_METHODS


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
    """Metric that must differ within a group: acc, score, seq_reward, seq_final_reward."""

    max_num_gen_batches: int = at_least(0, 0)
    """Most generation rounds per step; 0 is no limit."""


@dataclass
class RolloutCorrectionConfig:
    """Importance correction between the engine's and the trainer's probabilities."""

    rollout_is: str | None = one_of(None, ("token", "sequence"))
    """Weight the loss by the ratio of trainer to engine probability, per token or per sequence; null is off."""

    rollout_is_threshold: float | str = 2.0
    """Largest such weight; "low_high" sets weights outside to 0."""

    rollout_is_batch_normalize: bool = False
    """Scale the weights to mean 1 over the batch."""

    rollout_rs: str | None = None
    """Reject tokens or sequences by these measures, separated by commas, for instance token_k1,seq_max_k2."""

    rollout_rs_threshold: str | None = None
    """Threshold of each measure, separated by commas; low_high for k1."""

    rollout_rs_threshold_lower: float | None = None
    """Lower threshold of rejection (older form)."""

    rollout_token_veto_threshold: float | None = above(None, 0)
    """Reject a sequence with a token whose ratio is below this."""

    bypass_mode: bool = False
    """Take the engine's log-probs as old log-probs instead of reading them again."""

    use_policy_gradient: bool = False
    """bypass_mode: plain policy gradient instead of the clipped loss (older form of loss_type)."""

    loss_type: str = one_of("ppo_clip", ("ppo_clip", "reinforce"))
    """bypass_mode: clipped loss, or plain policy gradient."""


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

    use_pf_ppo: bool = False
    """Policy filtration: draw the step's responses again by their score."""

    pf_ppo: PfPpoConfig = section(PfPpoConfig)
    """How policy filtration draws."""

    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig)
    """DAPO's dynamic sampling."""

    rollout_correction: RolloutCorrectionConfig = section(RolloutCorrectionConfig)
    """Importance correction between engine and trainer."""
