"""Rules for rollout correction, policy filtration and score clipping."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.names import VALUE_ADVANTAGES
from burnish.config.root import TrainConfig
from burnish.config.thresholds import SECTION, rejection_bounds, weight_bounds
from burnish.errors import UserError

CAP = "actor_rollout_ref.actor.tis_imp_ratio_cap"


def rollout_correction(cfg: TrainConfig) -> Iterator[UserError]:
    """Valid thresholds, one source of importance weights, and bypass losses only in bypass mode."""
    correction, cap = cfg.algorithm.rollout_correction, cfg.actor_rollout_ref.actor.tis_imp_ratio_cap
    try:
        weight_bounds(correction.rollout_is_threshold, correction.rollout_is_threshold_lower)
    except UserError as error:
        yield error
    lower = correction.rollout_rs_threshold_lower
    try:
        list(rejection_bounds(correction.rollout_rs, correction.rollout_rs_threshold, lower))
    except UserError as error:
        yield error
    if cap is not None and correction.rollout_is is not None:
        problem = f"{SECTION}.rollout_is={correction.rollout_is} already weights the loss"
        yield UserError(problem, key=CAP, value=cap, hint=f"{SECTION}.rollout_is_threshold={cap:g}, and {CAP}=null")
    if correction.bypass_mode:
        return
    for name, default in (("loss_type", "ppo_clip"), ("use_policy_gradient", False)):
        value = getattr(correction, name)
        if value != default:
            hint = f"{SECTION}.bypass_mode=true, or actor_rollout_ref.actor.policy_loss.loss_mode=gpg"
            yield UserError("only used in bypass mode", key=f"{SECTION}.{name}", value=value, hint=hint)


def policy_filtration(cfg: TrainConfig) -> Iterator[UserError]:
    """Resampling by score breaks up groups, which group baselines need."""
    name = cfg.algorithm.adv_estimator
    if cfg.algorithm.use_pf_ppo and name not in VALUE_ADVANTAGES:
        problem = f"policy filtration requires a critic; algorithm.adv_estimator={name} has none"
        hint = "algorithm.adv_estimator=gae, or algorithm.use_pf_ppo=false"
        yield UserError(problem, key="algorithm.use_pf_ppo", value=True, hint=hint)


def score_bounds(cfg: TrainConfig) -> Iterator[UserError]:
    bounds = cfg.algorithm.reward_clip_range
    if bounds is not None and (len(bounds) != 2 or not bounds[0] < bounds[1]):
        key, allowed = "algorithm.reward_clip_range", "[low, high], low < high"
        yield UserError("not a range", key=key, value=list(bounds), allowed=allowed, hint=f"{key}=[-10,10]")


GROUP_CREDITS = ("return_to_go", "gigpo", "per_turn")  # they compare turns within a group
TURN_ESTIMATORS = ("grpo", "grpo_vectorized", "dr_grpo", "rloo")


def turn_credit(cfg: TrainConfig) -> Iterator[UserError]:
    """Credits that replace the estimator need one of their own kind: group baselines, or a critic."""
    key, name, estimator = "algorithm.turn_credit", cfg.algorithm.turn_credit, cfg.algorithm.adv_estimator
    if name in GROUP_CREDITS and estimator not in TURN_ESTIMATORS:
        problem = f"it compares turns within a group, and algorithm.adv_estimator={estimator} does not"
        allowed = f"algorithm.adv_estimator: {', '.join(TURN_ESTIMATORS)}"
        yield UserError(problem, key=key, value=name, allowed=allowed, hint="algorithm.adv_estimator=grpo")
    if name == "gae" and estimator not in VALUE_ADVANTAGES:
        problem = f"it needs a critic, and algorithm.adv_estimator={estimator} has none"
        yield UserError(problem, key=key, value=name, hint="algorithm.adv_estimator=gae")


def correction_remarks(cfg: TrainConfig) -> Iterator[str]:
    """Importance weights have no effect on the clipped loss of bypass mode."""
    correction, cap = cfg.algorithm.rollout_correction, cfg.actor_rollout_ref.actor.tis_imp_ratio_cap
    clipped = correction.loss_type == "ppo_clip" and not correction.use_policy_gradient
    if correction.bypass_mode and clipped and (correction.rollout_is is not None or cap is not None):
        key = f"{SECTION}.rollout_is" if cap is None else CAP
        yield f"{key} has no effect: in bypass mode the ratio of the loss is already that of trainer to engine."


def rounding_remarks(cfg: TrainConfig) -> Iterator[str]:
    """The engine samples with other weights than the trainer's."""
    correction, cap = cfg.algorithm.rollout_correction, cfg.actor_rollout_ref.actor.tis_imp_ratio_cap
    if cfg.actor_rollout_ref.rollout.quantization and correction.rollout_is is None and cap is None:
        yield (
            "actor_rollout_ref.rollout.quantization rounds the weights that responses are sampled with, and nothing"
            f" corrects for it: {SECTION}.rollout_is=token is recommended."
        )


RULES = (rollout_correction, policy_filtration, score_bounds, turn_credit)
