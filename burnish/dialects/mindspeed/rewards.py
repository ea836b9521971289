"""rl_config: rules that score, what length costs, which groups are kept."""

from __future__ import annotations

import math

from burnish.config.names import VERIFIERS
from burnish.dialects.mindspeed.reading import Reading
from burnish.errors import nearest

_BUFFER = "reward_model.overlong_buffer"
_FILTER = "algorithm.filter_groups"


def read_rewards(reading: Reading) -> None:
    for read in (_rules, _verifiers, _local_tasks, _overlong, _filter):
        read(reading)


def _rules(reading: Reading) -> None:
    rule = reading.rl["rule_reward"]
    if rule.value:
        reading.inert(rule, "verifier_function says which rules score")
    elif reading.rl.value("use_integrated_worker"):
        why = "with use_integrated_worker only rules score: nothing would give a reward, and MindSpeed RL would wait"
        reading.refuse(rule, f"{why}. Write rule_reward: true")
    else:
        why = "a reward model of Megatron's cannot be read"
        reading.refuse(rule, f"{why}: add reward_model.enable=true reward_model.model.path=/a/hugging/face/folder")


def _verifiers(reading: Reading) -> None:
    functions, weights = reading.rl["verifier_function"], reading.rl["verifier_weight"]
    names = functions.value if isinstance(functions.value, list) else [functions.value]
    unknown = [str(name) for name in names if name not in VERIFIERS]
    if unknown:
        meant = nearest(unknown[0], VERIFIERS)
        hint = f" Did you mean {meant!r}?" if meant else ""
        why = f"no such verifier: {', '.join(unknown)}; MindSpeed RL would skip it without a word.{hint}"
        reading.refuse(functions, f"{why} There are {', '.join(VERIFIERS)}")
    elif len(names) != len(weights.value):
        reading.refuse(weights, f"{len(weights.value)} weights for {len(names)} verifiers: write one for each")
    else:
        reading.put(functions, "reward.verifiers", list(names))
        reading.put(weights, "reward.verifier_weights", [float(weight) for weight in weights.value])


def _local_tasks(reading: Reading) -> None:
    """Rules are MindSpeed RL's only work that is given CPUs by number."""
    cpus = reading.rl["num_cpus_for_local_task"]
    if cpus.given:
        reading.put(cpus, "reward.num_workers", max(1, math.ceil(cpus.value)), "processes in which rules score")


def _overlong(reading: Reading) -> None:
    rl, most = reading.rl, reading.sampling.value("max_tokens")
    enable, length, factor, limit = (
        rl[name]
        for name in (
            "overlong_buffer_enable",
            "overlong_buffer",
            "overlong_buffer_penalty_factor",
            "rollout_max_tokens",
        )
    )
    reading.put(enable, f"{_BUFFER}.enable")
    if not enable.value:
        for setting in (length, factor, limit):
            reading.inert(setting, "overlong_buffer_enable is off")
        return
    if length.value >= most:
        reading.refuse(length, f"must be below sampling_config.max_tokens={most}, as MindSpeed RL says too")
        return
    if limit.value != most:
        reading.refuse(limit, f"must be sampling_config.max_tokens={most}, as MindSpeed RL says too")
        return
    reading.put(length, f"{_BUFFER}.len")
    reading.put(factor, f"{_BUFFER}.penalty_factor")
    reading.inert(limit, "it is the longest response, as there")


def _filter(reading: Reading) -> None:
    rl, stage = reading.rl, reading.stage
    enable, metric, most = (rl[f"filter_groups_{name}"] for name in ("enable", "metric", "max_batches"))
    kept = rl["filter_groups_train_batch_size"]
    if not stage.filters or not enable.value:
        why = "filter_groups_enable is off" if stage.filters else f"only train_dapo filters groups, not {stage.script}"
        for setting in (metric, most, kept):
            reading.inert(setting, why)
        if stage.filters:
            reading.put(enable, f"{_FILTER}.enable")
        else:
            reading.inert(enable, why)
        return
    reading.put(enable, f"{_FILTER}.enable")
    if metric.value not in rl.value("verifier_function"):
        reading.refuse(
            metric, f"must be one of verifier_function={rl.value('verifier_function')}, as MindSpeed RL says too"
        )
    else:
        reading.put(metric, f"{_FILTER}.metric", why="the number of that verifier alone, before penalties for length")
    unlimited = "no limit" if most.value <= 0 else "rounds of global_batch_size prompts"
    reading.put(most, f"{_FILTER}.max_num_gen_batches", max(0, most.value), unlimited)
