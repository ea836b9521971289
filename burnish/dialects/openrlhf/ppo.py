"""train_ppo_ray and train_ppo: reinforcement."""

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
    logging,
    model_data,
    optimisation,
    placement,
)
from burnish.dialects.openrlhf.command import Typed, Vocabulary, read
from burnish.dialects.openrlhf.flags import PPO
from burnish.dialects.openrlhf.renames import ALL, DOTTED, DOTTED_DEFAULTS, EARLIER, LATER, SAME_AS
from burnish.dialects.openrlhf.writing import Writing
from burnish.dialects.report import Translation

# Later flat names: those that were ever flat.
LATER_FLAT = ("vllm_is_correction_type", "max_new_tokens", "partial_rollout", "rollout_tasks_per_gpu")
VOCABULARY = Vocabulary(
    flags=ALL,
    names=(
        {name: name for name in PPO},
        DOTTED,
        {name: name for name in LATER_FLAT if name in LATER},
        {name: name for name in EARLIER},
    ),
    dotted_defaults=DOTTED_DEFAULTS,
    same_as=SAME_AS,
)
SUBJECTS = (
    model_data,
    placement,
    deepspeed,
    batches,
    optimisation,
    kl,
    credit,
    correction,
    generation,
    checkpoint,
    logging,
)
# What launchers call the number of processes on a machine, and of machines.
PROCESSES = {"num_gpus": "actor_num_gpus_per_node", "nproc_per_node": "actor_num_gpus_per_node"}
MACHINES = {"num_nodes": "actor_num_nodes", "nnodes": "actor_num_nodes"}


def translate(invocation: Invocation) -> Translation:
    w = Writing(read(invocation.argv, VOCABULARY), Translation("openrlhf", "train"))
    for option, flag in {**PROCESSES, **MACHINES}.items():
        size = invocation.processes.get(option, "")
        if size.isdigit() and not w.given(flag):  # train_ppo is started on its ranks; it has no flag for them
            w.command.given[flag] = Typed(f"--{option}", int(size))
    for subject in SUBJECTS:
        subject.write(w)
    return w.finish()
