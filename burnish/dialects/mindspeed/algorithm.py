"""rl_config: advantage estimator, KL, clipping, entropy, and the keys of DAPO and PPO."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.dialects.mindspeed.roles import ACTOR, ROLLOUT
from burnish.dialects.mindspeed.translator import Translator


@dataclass(frozen=True)
class Estimator:
    """An advantage estimator. `needs_critic` also means that it uses gamma and lam."""

    ours: str
    needs_critic: bool = False


_ESTIMATORS = {"group_norm": Estimator("grpo"), "gae": Estimator("gae", needs_critic=True)}
_KL_ESTIMATORS = ("kl", "abs", "mse", "low_var_kl")
_KL_CONTROLLERS = ("fixed", "adaptive")


def translate_algorithm(t: Translator) -> None:
    for translate_keys in (_estimator, _kl, _clipping, _loss, _shuffling, _critic):
        translate_keys(t)


def _estimator(t: Translator) -> None:
    rl, name = t.rl, t.rl["adv_estimator"]
    t.set(rl["n_samples_per_prompt"], f"{ROLLOUT}.n")
    if name.value not in _ESTIMATORS:
        t.refuse(name, f"must be {' or '.join(_ESTIMATORS)}")
        return
    estimator = _ESTIMATORS[name.value]
    if estimator.needs_critic and not t.stage.critic:
        t.refuse(name, f"requires a critic, and {t.stage.script} has none: write group_norm, or stage: ray_ppo")
        return
    t.set(name, "algorithm.adv_estimator", estimator.ours)
    for key in ("gamma", "lam"):
        if estimator.needs_critic:
            t.set(rl[key], f"algorithm.{key}")
        else:
            t.inert(rl[key], "only gae uses it")


def _kl(t: Translator) -> None:
    rl = t.rl
    coef, estimator, controller, in_reward = (
        rl[key] for key in ("init_kl_coef", "kl_penalty", "kl_ctrl_type", "use_kl_in_reward")
    )
    if estimator.value not in _KL_ESTIMATORS:
        t.refuse(estimator, f"must be a KL estimator: {', '.join(_KL_ESTIMATORS)}")
        return
    if controller.value not in _KL_CONTROLLERS:
        t.refuse(controller, f"must be one of {', '.join(_KL_CONTROLLERS)}")
    elif controller.value == "adaptive":
        why = "MindSpeed RL never updates its adaptive controller: the coefficient stays init_kl_coef there too"
        t.set(controller, "algorithm.kl_ctrl.type", "fixed", why)
    else:
        t.inert(controller, "the KL coefficient is constant")
    if t.stage.kl is None:
        for setting in (coef, estimator, in_reward):
            t.inert(setting, f"{t.stage.script} uses neither a reference model nor a KL")
    elif t.stage.kl == "loss":
        t.inert(in_reward, f"{t.stage.script} applies the KL in the loss")
        _kl_loss(t)
    elif in_reward.value:
        t.set(in_reward, "algorithm.use_kl_in_reward")
        t.set(coef, "algorithm.kl_ctrl.kl_coef")
        t.set(estimator, "algorithm.kl_penalty")
    else:
        t.set(in_reward, "algorithm.use_kl_in_reward", False)
        for setting in (coef, estimator):
            t.inert(setting, "no KL is computed: use_kl_in_reward is off")


def _kl_loss(t: Translator) -> None:
    coef, estimator = t.rl["init_kl_coef"], t.rl["kl_penalty"]
    why = "added to the loss" if coef.value else "coefficient 0: no reference model is needed"
    t.set(coef, f"{ACTOR}.use_kl_loss", bool(coef.value), why)
    if coef.value:
        t.set(coef, f"{ACTOR}.kl_loss_coef")
        t.set(estimator, f"{ACTOR}.kl_loss_type")
        return
    t.inert(estimator, "the KL coefficient is 0")


def _clipping(t: Translator) -> None:
    rl, stage = t.rl, t.stage
    ratio, higher, low, high = (
        rl[name] for name in ("clip_ratio", "clip_higher_enable", "clip_ratio_low", "clip_ratio_high")
    )
    if stage.clips_higher and higher.value:
        t.set(low, f"{ACTOR}.clip_ratio_low")
        t.set(high, f"{ACTOR}.clip_ratio_high")
        t.inert(ratio, "clip_higher_enable: clip_ratio_low and clip_ratio_high apply")
        t.inert(higher, "clip_ratio_low and clip_ratio_high apply")
        if low.value > high.value:
            t.refuse(low, f"must not exceed clip_ratio_high={high.value}; MindSpeed RL requires this too")
    else:
        t.set(ratio, f"{ACTOR}.clip_ratio")
        why = (
            "clip_ratio applies on both sides" if stage.clips_higher else f"only train_dapo uses it, not {stage.script}"
        )
        for setting in (higher, low, high):
            t.inert(setting, why)
    t.set_implicit(ratio, f"{ACTOR}.clip_ratio_c", None, "MindSpeed RL has no dual clipping")


def _loss(t: Translator) -> None:
    rl = t.rl
    level, entropy = rl["token_level_loss"], rl["entropy_coeff"]
    t.set(entropy, f"{ACTOR}.entropy_coeff")
    if not t.stage.clips_higher:
        t.inert(level, f"{t.stage.script} always averages over tokens")
    elif level.value:
        t.set(level, f"{ACTOR}.loss_agg_mode", "token-mean")
    elif entropy.value:
        why = "MindSpeed RL averages the policy loss by sequence, the entropy by token; Burnish has one mode for both"
        t.refuse(level, f"{why}: write token_level_loss: true, or entropy_coeff: 0")
    else:
        t.set(level, f"{ACTOR}.loss_agg_mode", "seq-mean-token-mean")


def _shuffling(t: Translator) -> None:
    t.set(t.rl["shuffle_mini_batch"], f"{ACTOR}.shuffle_mini_batches", why="their order, not their samples")


def _critic(t: Translator) -> None:
    cliprange = t.rl["cliprange_value"]
    if t.stage.critic:
        t.set(cliprange, "critic.cliprange_value")
    else:
        t.inert(cliprange, f"{t.stage.script} has no critic")
