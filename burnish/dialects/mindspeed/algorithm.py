"""rl_config: estimator, KL, clipping, entropy; DAPO's and PPO's own keys."""

from __future__ import annotations

from burnish.dialects.mindspeed.reading import Reading
from burnish.dialects.mindspeed.roles import ACTOR, ROLLOUT

_ESTIMATORS = {"group_norm": "grpo", "gae": "gae"}
_KL_NAMES = ("kl", "abs", "mse", "low_var_kl")
_KL_KINDS = ("fixed", "adaptive")


def read_algorithm(reading: Reading) -> None:
    for read in (_estimator, _kl, _clipping, _loss, _order, _critic):
        read(reading)


def _estimator(reading: Reading) -> None:
    rl, name = reading.rl, reading.rl["adv_estimator"]
    reading.put(rl["n_samples_per_prompt"], f"{ROLLOUT}.n")
    if name.value not in _ESTIMATORS:
        reading.refuse(name, f"MindSpeed RL knows {' and '.join(_ESTIMATORS)}")
        return
    if name.value == "gae" and not reading.stage.critic:
        reading.refuse(
            name, f"needs a critic, and {reading.stage.script} trains none: write group_norm, or stage: ray_ppo"
        )
        return
    reading.put(name, "algorithm.adv_estimator", _ESTIMATORS[name.value])
    for key in ("gamma", "lam"):
        if name.value == "gae":
            reading.put(rl[key], f"algorithm.{key}")
        else:
            reading.inert(rl[key], "only gae reads it")


def _kl(reading: Reading) -> None:
    rl = reading.rl
    coef, name, kind, in_reward = (
        rl[key] for key in ("init_kl_coef", "kl_penalty", "kl_ctrl_type", "use_kl_in_reward")
    )
    if name.value not in _KL_NAMES:
        reading.refuse(name, f"is the name of an estimator of the KL: {', '.join(_KL_NAMES)}")
        return
    if kind.value not in _KL_KINDS:
        reading.refuse(kind, f"write one of {', '.join(_KL_KINDS)}")
    in_loss = reading.stage.kl == "loss" and coef.value
    if kind.value == "adaptive" and in_loss:
        why = "the weight of a KL in the loss never adapts, and MindSpeed RL never updates its controller"
        reading.refuse(kind, f"{why}: write kl_ctrl_type: fixed")
    elif kind.value == "adaptive":
        reading.inert(kind, "MindSpeed RL never updates its controller: the weight stays init_kl_coef")
    else:
        reading.inert(kind, "the weight of the KL stays as it is")
    if reading.stage.kl is None:
        for setting in (coef, name, in_reward):
            reading.inert(setting, f"{reading.stage.script} has no reference and no KL")
    elif reading.stage.kl == "loss":
        reading.inert(in_reward, f"{reading.stage.script} puts the KL into the loss")
        _kl_loss(reading)
    elif in_reward.value:
        reading.put(in_reward, "algorithm.use_kl_in_reward")
        reading.put(coef, "algorithm.kl_ctrl.kl_coef")
        reading.put(name, "algorithm.kl_penalty")
    else:
        reading.put(in_reward, "algorithm.use_kl_in_reward", False)
        for setting in (coef, name):
            reading.inert(setting, "there is no KL: use_kl_in_reward is off")


def _kl_loss(reading: Reading) -> None:
    coef, name = reading.rl["init_kl_coef"], reading.rl["kl_penalty"]
    why = "added to the loss" if coef.value else "weight 0: no reference is needed"
    reading.put(coef, f"{ACTOR}.use_kl_loss", bool(coef.value), why)
    if coef.value:
        reading.put(coef, f"{ACTOR}.kl_loss_coef")
        reading.put(name, f"{ACTOR}.kl_loss_type")
        return
    reading.inert(name, "the KL has weight 0")


def _clipping(reading: Reading) -> None:
    rl, stage = reading.rl, reading.stage
    ratio, higher, low, high = (
        rl[name] for name in ("clip_ratio", "clip_higher_enable", "clip_ratio_low", "clip_ratio_high")
    )
    if stage.clips_higher and higher.value:
        reading.put(low, f"{ACTOR}.clip_ratio_low")
        reading.put(high, f"{ACTOR}.clip_ratio_high")
        reading.inert(ratio, "clip_higher_enable: clip_ratio_low and clip_ratio_high hold")
        reading.inert(higher, "clip_ratio_low and clip_ratio_high are set")
        if low.value > high.value:
            reading.refuse(low, f"is above clip_ratio_high={high.value}, as MindSpeed RL says too")
    else:
        reading.put(ratio, f"{ACTOR}.clip_ratio")
        why = (
            "clip_ratio holds on both sides" if stage.clips_higher else f"only train_dapo reads it, not {stage.script}"
        )
        for setting in (higher, low, high):
            reading.inert(setting, why)
    reading.also(ratio, f"{ACTOR}.clip_ratio_c", None, "MindSpeed RL has no dual clip")


def _loss(reading: Reading) -> None:
    rl = reading.rl
    level, entropy = rl["token_level_loss"], rl["entropy_coeff"]
    reading.put(entropy, f"{ACTOR}.entropy_coeff")
    if not reading.stage.clips_higher:
        reading.inert(level, f"{reading.stage.script} always takes the mean over tokens")
    elif level.value:
        reading.put(level, f"{ACTOR}.loss_agg_mode", "token-mean")
    elif entropy.value:
        why = "the policy loss would be averaged by sequences and the entropy by tokens; here one mean holds for both"
        reading.refuse(level, f"{why}: write token_level_loss: true, or entropy_coeff: 0")
    else:
        reading.put(level, f"{ACTOR}.loss_agg_mode", "seq-mean-token-mean")


def _order(reading: Reading) -> None:
    shuffle = reading.rl["shuffle_mini_batch"]
    if shuffle.value:
        why = "it shuffles the order of mini-batches and leaves their rows; here rows are shuffled or nothing is"
        reading.refuse(shuffle, f"{why}: write false, and actor_rollout_ref.actor.shuffle=true if rows may be shuffled")
    else:
        reading.put(shuffle, f"{ACTOR}.shuffle")


def _critic(reading: Reading) -> None:
    bound = reading.rl["cliprange_value"]
    if reading.stage.critic:
        reading.put(bound, "critic.cliprange_value")
    else:
        reading.inert(bound, f"{reading.stage.script} trains no critic")
