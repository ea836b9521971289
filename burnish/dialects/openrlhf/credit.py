"""Rewards, advantages, policy loss."""

from __future__ import annotations

from burnish.dialects.openrlhf.estimators import get_estimator
from burnish.dialects.openrlhf.roles import ACTOR, ROLLOUT, has_custom_reward, has_reward_model
from burnish.dialects.openrlhf.translator import Translator

BUFFER = "reward_model.overlong_buffer"
REMOTE_TIMEOUT = 180.0  # seconds
LOSSES = {"ppo": ("vanilla", "token-mean"), "gspo": ("gspo", "seq-mean-token-mean")}


def translate(t: Translator) -> None:
    _reward_source(t)
    _estimator(t)
    _discounts(t)
    _rewards(t)
    _filtering(t)
    _clipping(t)
    entropy = t.get("entropy_loss_coef")
    if entropy is None:
        t.handled.add("entropy_loss_coef")
    else:
        t.set("entropy_loss_coef", f"{ACTOR}.entropy_coeff", why="" if entropy else "0 only reports the entropy")
    loss, aggregation = LOSSES[t.get("policy_loss_type")]
    t.set("policy_loss_type", f"{ACTOR}.policy_loss.loss_mode", loss)
    t.set("policy_loss_type", f"{ACTOR}.loss_agg_mode", aggregation, "mean over sequences of token means")


def _reward_source(t: Translator) -> None:
    url, agent = t.get("remote_rm_url"), t.get("agent_func_path")
    if agent:
        t.set("agent_func_path", f"{ROLLOUT}.agent.agent_func_path")
        t.inert("remote_rm_url", f"{t.spelling('agent_func_path')} returns the rewards")
        t.set_implicit("reward.on_error", "stop", "OpenRLHF stops when an agent fails")
    elif url:
        urls = [part.strip() for part in url.split(",") if part.strip()]
        why = (
            "calls reward_func of this file"
            if url.endswith(".py")
            else "requests alternate between servers"
            if len(urls) > 1
            else ""
        )
        t.set("remote_rm_url", "reward.remote_url", urls, why)
        t.set_implicit("reward.on_error", "stop", "OpenRLHF stops when a reward fails")
        t.set_implicit("reward.timeout", REMOTE_TIMEOUT, "OpenRLHF's timeout for reward servers")
    elif not has_reward_model(t) and t.has("pretrain"):
        names = " or ".join(map(t.spelling, ("reward_pretrain", "remote_rm_url", "agent_func_path")))
        t.refuse("remote_rm_url", f"no reward source: set {names}")


def _estimator(t: Translator) -> None:
    estimator, n = get_estimator(t), t.get("n_samples_per_prompt")
    t.set("advantage_estimator", "algorithm.adv_estimator", estimator.ours)
    for key, value in estimator.settings.items():
        t.set("advantage_estimator", key, value)
    if estimator.grouped and n < 2:
        name = f"{t.spelling('advantage_estimator')} {t.get('advantage_estimator')}"
        t.refuse("n_samples_per_prompt", f"{name} compares the samples of a prompt: must be at least 2")
    mean_only = t.get("no_advantage_std_norm")
    if estimator.whitened:
        why = (
            "subtracts the mean without dividing by std"
            if mean_only
            else "the std is the biased estimate (divided by N)"
        )
        t.set("no_advantage_std_norm", "algorithm.whitening", "mean" if mean_only else "biased", why)
    else:
        t.inert("no_advantage_std_norm", "this estimator does not normalize over the batch")
    if estimator.critic:
        t.set_implicit("algorithm.gae_observations", "walk", "OpenRLHF's GAE includes observation tokens")


def _discounts(t: Translator) -> None:
    estimator = get_estimator(t)
    name = f"{t.spelling('advantage_estimator')} {t.get('advantage_estimator')}"
    if estimator.discounts:
        t.set("gamma", "algorithm.gamma")
    else:
        t.inert("gamma", f"OpenRLHF sets it to 1 for {name}")
    if estimator.critic:
        t.set("lambd", "algorithm.lam")
    else:
        t.inert("lambd", f"{name} does not use it")


def _rewards(t: Translator) -> None:
    low, high = t.get("reward_clip_range")
    if low < high:
        t.set("reward_clip_range", "algorithm.reward_clip_range", why="applied after the group baseline")
    else:
        t.refuse("reward_clip_range", "must be LOW HIGH with LOW < HIGH")
    t.set_implicit("algorithm.kl_order", "after", "OpenRLHF computes the group baseline before subtracting the KL")
    if has_reward_model(t):
        t.set("normalize_reward", "reward_model.normalize")
    else:
        t.inert("normalize_reward", "only scores of a reward model are normalized")
    buffer, limit = t.get("overlong_buffer_len"), t.get("generate_max_len")
    if buffer is None:
        t.inert("overlong_penalty_factor", f"no penalty without {t.spelling('overlong_buffer_len')}")
    elif buffer != int(buffer) or buffer < 1:
        t.refuse("overlong_buffer_len", "must be a positive integer")
    elif not t.command.is_dotted and buffer > limit:
        t.refuse(
            "overlong_buffer_len", f"must not exceed the response length ({t.spelling('generate_max_len')} {limit})"
        )
    else:
        t.set("overlong_buffer_len", f"{BUFFER}.enable", True)
        t.set("overlong_buffer_len", f"{BUFFER}.len", int(buffer))
        t.set("overlong_penalty_factor", f"{BUFFER}.penalty_factor")
    if t.get("stop_properly_penalty_coef") is not None:
        t.set("stop_properly_penalty_coef", "reward.stop_properly_penalty")


def _filtering(t: Translator) -> None:
    low, high = t.get("dynamic_filtering_reward_range")
    if not t.get("dynamic_filtering"):
        return t.inert("dynamic_filtering_reward_range", f"filtering is off without {t.spelling('dynamic_filtering')}")
    if t.has("pretrain") and not has_custom_reward(t):
        sources = f"{t.spelling('remote_rm_url')} or {t.spelling('agent_func_path')}"
        t.refuse("dynamic_filtering", f"requires scores from {sources}")
    if t.get("n_samples_per_prompt") < 2:
        t.refuse("n_samples_per_prompt", f"{t.spelling('dynamic_filtering')} requires at least 2")
    if not low < high:
        return t.refuse("dynamic_filtering_reward_range", "must be LOW HIGH with LOW < HIGH")
    t.set("dynamic_filtering", "algorithm.filter_groups.enable")
    if has_custom_reward(t):
        t.set("dynamic_filtering", "algorithm.filter_groups.metric", "scores", "`scores` of the reward's result")
    why = "keeps a prompt if the mean of its scores is strictly in between"
    t.set("dynamic_filtering_reward_range", "algorithm.filter_groups.reward_range", why=why)
    return None


def _clipping(t: Translator) -> None:
    both, dual = t.get("eps_clip_low_high"), t.get("dual_clip")
    if both is None:
        t.set("eps_clip", f"{ACTOR}.clip_ratio")
    else:
        t.inert("eps_clip", f"{t.spelling('eps_clip_low_high')} replaces it")
        t.set("eps_clip_low_high", f"{ACTOR}.clip_ratio_low", both[0], f"clips the ratio at 1 - {both[0]:g}")
        t.set("eps_clip_low_high", f"{ACTOR}.clip_ratio_high", both[1], f"clips the ratio at 1 + {both[1]:g}")
    if dual is not None and dual <= 1:
        t.refuse("dual_clip", "must be greater than 1")
    else:
        t.set("dual_clip", f"{ACTOR}.clip_ratio_c", why="no dual clipping" if dual is None else "")
