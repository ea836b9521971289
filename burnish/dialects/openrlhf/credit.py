"""From rewards to advantages, and the loss they go into."""

from __future__ import annotations

from burnish.dialects.openrlhf.estimators import ACTOR, ROLLOUT, estimator, has_reward_model, is_remote
from burnish.dialects.openrlhf.writing import Writing

BUFFER = "reward_model.overlong_buffer"
SECONDS = 180.0
LOSSES = {"ppo": ("vanilla", "token-mean"), "gspo": ("gspo", "seq-mean-token-mean")}


def write(w: Writing) -> None:
    _source(w)
    _estimator(w)
    _discounts(w)
    _rewards(w)
    _filtering(w)
    _clipping(w)
    entropy = w.get("entropy_loss_coef")
    if entropy is None:
        w.told.add("entropy_loss_coef")
    else:
        w.put("entropy_loss_coef", f"{ACTOR}.entropy_coeff", why="" if entropy else "0 reports the entropy only")
    loss, aggregation = LOSSES[w.get("policy_loss_type")]
    w.put("policy_loss_type", f"{ACTOR}.policy_loss.loss_mode", loss)
    w.put("policy_loss_type", f"{ACTOR}.loss_agg_mode", aggregation, "one mean per sequence")


def _source(w: Writing) -> None:
    url, agent = w.get("remote_rm_url"), w.get("agent_func_path")
    if agent:
        w.put("agent_func_path", f"{ROLLOUT}.agent.agent_func_path")
        w.inert("remote_rm_url", f"{w.name('agent_func_path')} brings the rewards")
    elif url:
        urls = [part.strip() for part in url.split(",") if part.strip()]
        what = "reward_func of this file" if url.endswith(".py") else "servers take turns" if len(urls) > 1 else ""
        w.put("remote_rm_url", "reward.remote_url", urls, what)
        w.itself("reward.on_error", "stop", "a reward that fails ends the run")
        w.itself("reward.timeout", SECONDS, "a server's limit there; a function has none")
    elif not has_reward_model(w) and w.given("pretrain"):
        names = " or ".join(map(w.name, ("reward_pretrain", "remote_rm_url", "agent_func_path")))
        w.refuse("remote_rm_url", f"nothing scores the responses: give {names}")


def _estimator(w: Writing) -> None:
    chosen, n = estimator(w), w.get("n_samples_per_prompt")
    w.put("advantage_estimator", "algorithm.adv_estimator", chosen.ours)
    for key, value in chosen.settings.items():
        w.put("advantage_estimator", key, value)
    if chosen.grouped and n < 2:
        asked = f"{w.name('advantage_estimator')} {w.get('advantage_estimator')}"
        w.refuse("n_samples_per_prompt", f"{asked} compares the samples of a prompt: it must be at least 2")
    plain = w.get("no_advantage_std_norm")
    if chosen.whitened:
        why = "the mean is taken off, nothing divided" if plain else "advantages are scaled by the variance over N"
        w.put("no_advantage_std_norm", "algorithm.whitening", "mean" if plain else "biased", why)
    else:
        w.inert("no_advantage_std_norm", "this estimator is not scaled over the batch")
    if chosen.critic:
        w.itself("algorithm.gae_observations", "walk", "GAE walks through tokens that the model did not write")


def _discounts(w: Writing) -> None:
    chosen = estimator(w)
    asked = f"{w.name('advantage_estimator')} {w.get('advantage_estimator')}"
    if chosen.discounts:
        w.put("gamma", "algorithm.gamma")
    else:
        w.inert("gamma", f"theirs sets it to 1 for {asked}")
    if chosen.critic:
        w.put("lambd", "algorithm.lam")
    else:
        w.inert("lambd", f"{asked} does not read it")


def _rewards(w: Writing) -> None:
    low, high = w.get("reward_clip_range")
    if low < high:
        w.put("reward_clip_range", "algorithm.reward_clip_range", why="after samples of a prompt were compared")
    else:
        w.refuse("reward_clip_range", "needs the smaller number first")
    w.itself("algorithm.kl_order", "after", "samples of a prompt are compared before the KL is taken off")
    if has_reward_model(w):
        w.put("normalize_reward", "reward_model.normalize")
    else:
        w.inert("normalize_reward", "only a reward model's score is normalised")
    buffer, limit = w.get("overlong_buffer_len"), w.get("generate_max_len")
    if buffer is None:
        w.inert("overlong_penalty_factor", f"there is no penalty without {w.name('overlong_buffer_len')}")
    elif buffer != int(buffer) or buffer < 1:
        w.refuse("overlong_buffer_len", "must be a whole number of tokens")
    elif not w.command.is_dotted and buffer > limit:
        w.refuse("overlong_buffer_len", f"is longer than a response ({w.name('generate_max_len')} {limit})")
    else:
        w.put("overlong_buffer_len", f"{BUFFER}.enable", True)
        w.put("overlong_buffer_len", f"{BUFFER}.len", int(buffer))
        w.put("overlong_penalty_factor", f"{BUFFER}.penalty_factor")
    if w.get("stop_properly_penalty_coef") is not None:
        w.put("stop_properly_penalty_coef", "reward.stop_properly_penalty")


def _filtering(w: Writing) -> None:
    low, high = w.get("dynamic_filtering_reward_range")
    if not w.get("dynamic_filtering"):
        return w.inert("dynamic_filtering_reward_range", f"nothing is filtered without {w.name('dynamic_filtering')}")
    if w.given("pretrain") and not is_remote(w):
        names = f"{w.name('remote_rm_url')} or {w.name('agent_func_path')}"
        w.refuse("dynamic_filtering", f"needs scores of {names}")
    if w.get("n_samples_per_prompt") < 2:
        w.refuse("n_samples_per_prompt", f"{w.name('dynamic_filtering')} needs at least 2")
    if not low < high:
        return w.refuse("dynamic_filtering_reward_range", "needs the smaller number first")
    w.put("dynamic_filtering", "algorithm.filter_groups.enable")
    if is_remote(w):
        w.put("dynamic_filtering", "algorithm.filter_groups.metric", "scores", "the scores that the reward returns")
    why = "a prompt stays if the mean of its scores lies strictly between"
    w.put("dynamic_filtering_reward_range", "algorithm.filter_groups.reward_range", why=why)
    return None


def _clipping(w: Writing) -> None:
    both, dual = w.get("eps_clip_low_high"), w.get("dual_clip")
    if both is None:
        w.put("eps_clip", f"{ACTOR}.clip_ratio")
    else:
        w.inert("eps_clip", f"{w.name('eps_clip_low_high')} says it")
        w.put("eps_clip_low_high", f"{ACTOR}.clip_ratio_low", both[0], f"ratios from 1 - {both[0]:g}")
        w.put("eps_clip_low_high", f"{ACTOR}.clip_ratio_high", both[1], f"to 1 + {both[1]:g}")
    if dual is not None and dual <= 1:
        w.refuse("dual_clip", "must be above 1")
    else:
        w.put("dual_clip", f"{ACTOR}.clip_ratio_c", why="no dual clip" if dual is None else "")
