"""Keys of the algorithm, and of the roles that it needs, that have no effect in some runs: rows of idle.IDLE."""

from __future__ import annotations

from dataclasses import fields

from burnish.config.conditions import Condition
from burnish.config.critic import CriticConfig
from burnish.config.names import ADVANTAGES, LOSSES, VALUE_ADVANTAGES, Line
from burnish.config.root import TrainConfig

_ACTOR, _REF, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout"

_NO_REWARD_KL = Line(
    "the KL is not in the reward (algorithm.use_kl_in_reward=false)", "奖励中没有 KL（algorithm.use_kl_in_reward）"
)
_NO_LOSS_KL = Line("the KL is not in the loss (actor.use_kl_loss=false)", "损失中没有 KL（actor.use_kl_loss）")
_FIXED_KL = Line("the KL's weight is fixed (algorithm.kl_ctrl.type)", "KL 的权重固定（algorithm.kl_ctrl.type）")
_NO_CRITIC = Line("this run has no critic (algorithm.adv_estimator)", "没有 critic（algorithm.adv_estimator）")
_NO_REFERENCE = Line(
    "this run has no reference model: no KL is in the loss or in the reward", "损失与奖励中都没有 KL，不使用参考模型"
)
_OTHER_ESTIMATOR = Line(
    "the advantage estimator does not use it (algorithm.adv_estimator)", "优势估计不使用它（algorithm.adv_estimator）"
)
_OTHER_LOSS = Line(
    "another loss is used (actor.policy_loss.loss_mode)", "使用的是其他损失（actor.policy_loss.loss_mode）"
)
_BY_TOKENS = Line(
    "micro-batches are formed by token count (use_dynamic_bsz)", "按 token 数组成微批次（use_dynamic_bsz）"
)
_NO_FUNCTION = Line(
    "no reward function is set (custom_reward_function.path)", "未设置奖励函数（custom_reward_function.path）"
)

# Estimators of ours that use a key. One of the user's may use any.
_DISCOUNTING = ("gae", "reinforce_plus_plus")
_DIVIDING = ("grpo", "grpo_vectorized", "grpo_passk")
# loss_mode -> the keys that only it uses.
_LOSS_KEYS = {
    "clip_cov": ("policy_loss.clip_cov_ratio", "policy_loss.clip_cov_lb", "policy_loss.clip_cov_ub"),
    "kl_cov": ("policy_loss.kl_cov_ratio", "policy_loss.ppo_kl_coef"),
    "sapo": ("tau_pos", "tau_neg"),
}
_CRITIC_KEYS = tuple(field.name for field in fields(CriticConfig) if field.name != "enable")


def _without_reward_kl(cfg: TrainConfig) -> bool:
    return not cfg.algorithm.use_kl_in_reward


def _without_loss_kl(cfg: TrainConfig) -> bool:
    return not cfg.actor_rollout_ref.actor.use_kl_loss


def _without_reference(cfg: TrainConfig) -> bool:
    return _without_reward_kl(cfg) and _without_loss_kl(cfg)


def _has_fixed_kl(cfg: TrainConfig) -> bool:
    return cfg.algorithm.kl_ctrl.type == "fixed"


def has_critic(cfg: TrainConfig) -> bool:
    """Whether a critic is trained."""
    if cfg.critic.enable is not None:
        return cfg.critic.enable
    return cfg.algorithm.adv_estimator in VALUE_ADVANTAGES


def _without_critic(cfg: TrainConfig) -> bool:
    return not has_critic(cfg)


def _estimates_without(*users: str) -> Condition:
    """One of our estimators of whole trajectories is used, and not one of `users`."""

    def holds(cfg: TrainConfig) -> bool:
        name, credit = cfg.algorithm.adv_estimator, cfg.algorithm.turn_credit
        return name in ADVANTAGES and name not in users and credit == "trajectory"

    return holds


def _uses_another_loss(mode: str) -> Condition:
    def holds(cfg: TrainConfig) -> bool:
        used = cfg.actor_rollout_ref.actor.policy_loss.loss_mode
        return used in LOSSES and used != mode

    return holds


def _policy_by_tokens(cfg: TrainConfig) -> bool:
    return cfg.actor_rollout_ref.actor.use_dynamic_bsz


def _critic_by_tokens(cfg: TrainConfig) -> bool:
    return cfg.critic.use_dynamic_bsz


def _rollout_by_tokens(cfg: TrainConfig) -> bool:
    return cfg.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz


def _reference_by_tokens(cfg: TrainConfig) -> bool:
    return cfg.actor_rollout_ref.ref.log_prob_use_dynamic_bsz


def _without_function(cfg: TrainConfig) -> bool:
    return not cfg.custom_reward_function.path


def _micro(section: str, name: str) -> tuple[str, ...]:
    return tuple(f"{section}.{name}{end}" for end in ("", "_per_gpu"))


# Condition, reason, and the patterns of the keys.
ALGORITHM_ROWS: tuple[tuple[Condition, Line, tuple[str, ...]], ...] = (
    (_without_reward_kl, _NO_REWARD_KL, ("algorithm.kl_penalty", "algorithm.kl_ctrl.*", "algorithm.kl_clamp")),
    (_has_fixed_kl, _FIXED_KL, ("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl")),
    (_without_loss_kl, _NO_LOSS_KL, (f"{_ACTOR}.kl_loss_coef", f"{_ACTOR}.kl_loss_type", f"{_ACTOR}.kl_loss_clamp")),
    (_without_reference, _NO_REFERENCE, (f"{_REF}.*",)),
    (_without_critic, _NO_CRITIC, tuple(f"critic.{name}{end}" for name in _CRITIC_KEYS for end in ("", ".*"))),
    (_estimates_without(*_DISCOUNTING), _OTHER_ESTIMATOR, ("algorithm.gamma",)),
    (_estimates_without("gae"), _OTHER_ESTIMATOR, ("algorithm.lam",)),
    (_estimates_without(*_DIVIDING), _OTHER_ESTIMATOR, ("algorithm.norm_adv_by_std_in_grpo",)),
    *(
        (_uses_another_loss(mode), _OTHER_LOSS, tuple(f"{_ACTOR}.{name}" for name in names))
        for mode, names in _LOSS_KEYS.items()
    ),
    (_policy_by_tokens, _BY_TOKENS, _micro(_ACTOR, "ppo_micro_batch_size")),
    (_rollout_by_tokens, _BY_TOKENS, _micro(_ROLLOUT, "log_prob_micro_batch_size")),
    (_reference_by_tokens, _BY_TOKENS, _micro(_REF, "log_prob_micro_batch_size")),
    (
        _critic_by_tokens,
        _BY_TOKENS,
        (*_micro("critic", "ppo_micro_batch_size"), *_micro("critic", "forward_micro_batch_size")),
    ),
    (_without_function, _NO_FUNCTION, ("custom_reward_function.name",)),
)
