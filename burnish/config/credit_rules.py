"""Rules for rollout correction, policy filtration and score clipping."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from burnish.config.async_rules import CORRECTION_KEYS
from burnish.config.conditions import without_device_loop
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


def apply_rounding(cfg: TrainConfig, set_keys: Collection[str]) -> Iterator[str]:
    """An engine in 8 bits samples with other probabilities than the trainer's, so importance weights are on by default.

    Asynchronous runs have them already.
    """
    correction, key = cfg.algorithm.rollout_correction, rounding_key(cfg)
    if key and correction.rollout_is is None and not any(name in set_keys for name in CORRECTION_KEYS):
        correction.rollout_is = "token"
        yield (
            f"{SECTION}.rollout_is=token: with {key} responses are sampled in 8 bits, so each token's loss is weighted"
            f" by the ratio of trainer to engine probability, at most {correction.rollout_is_threshold}"
            f" ({SECTION}.rollout_is=null disables it)."
        )


def rounding_remarks(cfg: TrainConfig) -> Iterator[str]:
    """Where importance weights were turned off."""
    correction, cap = cfg.algorithm.rollout_correction, cfg.actor_rollout_ref.actor.tis_imp_ratio_cap
    key = rounding_key(cfg)
    if key and correction.rollout_is is None and cap is None:
        yield (
            f"{key}: responses are sampled in 8 bits, and nothing corrects for it: {SECTION}.rollout_is=token is"
            " recommended."
        )


def rounding_key(cfg: TrainConfig) -> str | None:
    """The key by which the engine's weights or its KV cache are rounded to 8 bits."""
    rollout = cfg.actor_rollout_ref.rollout
    if rollout.quantization is not None:
        return "actor_rollout_ref.rollout.quantization"
    arguments = getattr(rollout.engine_kwargs, rollout.name, None) or {}
    rounds = str(arguments.get("kv_cache_dtype", "auto")).startswith("fp8")
    if not rounds or (rollout.name == "builtin" and without_device_loop(cfg)):
        return None
    return f"actor_rollout_ref.rollout.engine_kwargs.{rollout.name}.kv_cache_dtype"


RULES = (rollout_correction, policy_filtration, score_bounds, turn_credit)
