"""train_ppo_ray and train_ppo: RL training."""

from __future__ import annotations

from burnish.dialects.invocation import Invocation
from burnish.dialects.openrlhf import (
    batches,
    checkpoint,
    correction,
    credit,
    deepspeed,
    generation,
    kl,
    loggers,
    model_data,
    optimization,
    placement,
)
from burnish.dialects.openrlhf.flags import ALL, DOTTED, DOTTED_DEFAULTS, EARLIER, FLAG_ALIASES, LATER, PPO
from burnish.dialects.openrlhf.parser import FlagSet, FlagValue, parse
from burnish.dialects.openrlhf.translator import Translator
from burnish.dialects.report import Translation

# Later flags that had a flat name before v0.10.2.
LATER_FLAT = (
    *("vllm_is_correction_type", "max_new_tokens", "partial_rollout", "rollout_tasks_per_gpu"),
    *("image_key", "max_images_per_prompt", "freeze_visual_encoder"),
)
FLAG_SET = FlagSet(
    flags=ALL,
    names=(
        {name: name for name in PPO},
        DOTTED,
        {name: name for name in LATER_FLAT if name in LATER},
        {name: name for name in EARLIER},
    ),
    dotted_defaults=DOTTED_DEFAULTS,
    aliases=FLAG_ALIASES,
)
TOPICS = (
    model_data,
    placement,
    deepspeed,
    batches,
    optimization,
    kl,
    credit,
    correction,
    generation,
    checkpoint,
    loggers,
)
# Launcher options for the number of processes per node, and of nodes.
PROCESS_OPTIONS = {"num_gpus": "actor_num_gpus_per_node", "nproc_per_node": "actor_num_gpus_per_node"}
NODE_OPTIONS = {"num_nodes": "actor_num_nodes", "nnodes": "actor_num_nodes"}


# Variables of releases before a flag had the same meaning -> that flag.
VARIABLES = {"OPENRLHF_ASYNC_QUEUE_SIZE": "async_queue_size", "OPENRLHF_ASYNC_NUM_TASKS": "rollout_tasks_per_gpu"}


def translate(invocation: Invocation) -> Translation:
    t = Translator(parse(invocation.argv, FLAG_SET), Translation("openrlhf", "train"))
    for variable, flag in VARIABLES.items():
        size = invocation.env.get(variable, "")
        if size.isdigit() and not t.has(flag):
            t.command.values[flag] = FlagValue(variable, int(size))
    for option, flag in {**PROCESS_OPTIONS, **NODE_OPTIONS}.items():
        size = invocation.processes.get(option, "")
        if size.isdigit() and not t.has(
            flag
        ):  # a launcher starts train_ppo on its ranks; it has no flag for their number
            t.command.values[flag] = FlagValue(f"--{option}", int(size))
    for topic in TOPICS:
        topic.translate(t)
    return t.finish()
