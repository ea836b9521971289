"""rl_config: rule-based rewards, overlong penalty, group filtering."""

from __future__ import annotations

import math
import re

from burnish.config.names import VERIFIERS
from burnish.dialects.mindspeed.translator import Translator
from burnish.errors import nearest

_BUFFER = "reward_model.overlong_buffer"
_FILTER = "algorithm.filter_groups"
# Older releases name a verifier's score as it is logged: grpo/math_17k_acc_rewards/mean.
_LOGGED_SCORE = re.compile(r"\w+/(\w+)_rewards/mean")


def translate_rewards(t: Translator) -> None:
    for translate_keys in (_rules, _verifiers, _reward_workers, _overlong, _filter):
        translate_keys(t)


def _rules(t: Translator) -> None:
    rule = t.rl["rule_reward"]
    if rule.value:
        t.inert(rule, "verifier_function selects the rules")
    elif t.rl.value("use_integrated_worker"):
        why = "with use_integrated_worker only rules compute rewards: there would be none, and MindSpeed RL would hang"
        t.refuse(rule, f"{why}. Write rule_reward: true")
    else:
        why = "Megatron reward models are not supported"
        t.refuse(rule, f"{why}: add reward_model.enable=true reward_model.model.path=/a/hugging/face/folder")


def _verifiers(t: Translator) -> None:
    functions, weights = t.rl["verifier_function"], t.rl["verifier_weight"]
    names = functions.value if isinstance(functions.value, list) else [functions.value]
    unknown = [str(name) for name in names if name not in VERIFIERS]
    if unknown:
        suggestion = nearest(unknown[0], VERIFIERS)
        hint = f" Did you mean {suggestion!r}?" if suggestion else ""
        why = f"unknown verifier: {', '.join(unknown)}; MindSpeed RL would skip it silently.{hint}"
        t.refuse(functions, f"{why} Allowed: {', '.join(VERIFIERS)}")
    elif len(names) != len(weights.value):
        t.refuse(weights, f"{len(weights.value)} weights for {len(names)} verifiers: write one per verifier")
    else:
        t.set(functions, "reward.verifiers", list(names))
        t.set(weights, "reward.verifier_weights", [float(weight) for weight in weights.value])


def _reward_workers(t: Translator) -> None:
    """num_cpus_for_local_task: MindSpeed RL uses it for rule-based rewards only."""
    cpus = t.rl["num_cpus_for_local_task"]
    if cpus.explicit:
        t.set(cpus, "reward.num_workers", max(1, math.ceil(cpus.value)), "processes that compute rule rewards")


def _overlong(t: Translator) -> None:
    rl, max_tokens = t.rl, t.sampling.value("max_tokens")
    enable, length, factor, limit = (
        rl[name]
        for name in (
            "overlong_buffer_enable",
            "overlong_buffer",
            "overlong_buffer_penalty_factor",
            "rollout_max_tokens",
        )
    )
    t.set(enable, f"{_BUFFER}.enable")
    if not enable.value:
        for setting in (length, factor, limit):
            t.inert(setting, "overlong_buffer_enable is off")
        return
    if length.value >= max_tokens:
        t.refuse(length, f"must be less than sampling_config.max_tokens={max_tokens}, also in MindSpeed RL")
        return
    if limit.value != max_tokens:
        t.refuse(limit, f"must equal sampling_config.max_tokens={max_tokens}, also in MindSpeed RL")
        return
    t.set(length, f"{_BUFFER}.len")
    t.set(factor, f"{_BUFFER}.penalty_factor")
    t.inert(limit, "the maximum response length is the limit in Burnish too")


def _filter(t: Translator) -> None:
    rl, stage = t.rl, t.stage
    enable, metric, max_batches = (rl[f"filter_groups_{name}"] for name in ("enable", "metric", "max_batches"))
    batch_size = rl["filter_groups_train_batch_size"]
    if not stage.filters or not enable.value:
        why = "filter_groups_enable is off" if stage.filters else f"only train_dapo filters groups, not {stage.script}"
        for setting in (metric, max_batches, batch_size):
            t.inert(setting, why)
        if stage.filters:
            t.set(enable, f"{_FILTER}.enable")
        else:
            t.inert(enable, why)
        return
    t.set(enable, f"{_FILTER}.enable")
    logged = _LOGGED_SCORE.fullmatch(str(metric.value))
    name = logged[1] if logged else metric.value
    if name not in rl.value("verifier_function"):
        names = rl.value("verifier_function")
        t.refuse(metric, f"must be one of verifier_function={names}, also in MindSpeed RL")
    else:
        t.set(metric, f"{_FILTER}.metric", name, "the score of that verifier alone, before length penalties")
    why = "no limit" if max_batches.value <= 0 else "generation batches of global_batch_size prompts"
    t.set(max_batches, f"{_FILTER}.max_num_gen_batches", max(0, max_batches.value), why)
