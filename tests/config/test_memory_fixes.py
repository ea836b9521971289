"""The next override to try after a phase ran out of memory."""

from __future__ import annotations

import pytest

from burnish.config import load
from burnish.config.memory_fixes import next_change

GRPO = ["actor_rollout_ref.model.path=m", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8"]
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SMALL = (f"{ACTOR}.ppo_micro_batch_size_per_gpu=1",)
KEPT = (*SMALL, "actor_rollout_ref.model.enable_gradient_checkpointing=true")
# What a run that chose its layers by memory has: null is all layers.
PLANNED = ("actor_rollout_ref.model.recompute.method=auto", "actor_rollout_ref.model.recompute.num_layers=3")
PARKED = (*KEPT, f"{ACTOR}.fsdp_config.optimizer_offload=true", f"{ACTOR}.fsdp_config.param_offload=true")


@pytest.mark.parametrize(
    ("phase", "given", "typed"),
    [
        ("update actor", (f"{ACTOR}.ppo_micro_batch_size_per_gpu=8",), SMALL[0]),
        ("update actor", (f"{ACTOR}.use_dynamic_bsz=true",), f"{ACTOR}.ppo_max_token_len_per_gpu=1024"),
        (
            "update actor",
            (*SMALL, "actor_rollout_ref.model.enable_gradient_checkpointing=false"),
            "actor_rollout_ref.model.enable_gradient_checkpointing=true",
        ),
        ("update actor", (*KEPT, *PLANNED), "actor_rollout_ref.model.recompute.method=null"),
        ("update actor", (*KEPT, PLANNED[0]), f"{ACTOR}.fsdp_config.optimizer_offload=true"),
        ("update actor", KEPT, f"{ACTOR}.fsdp_config.optimizer_offload=true"),
        ("update actor", PARKED, f"data.max_response_length=256 {ROLLOUT}.response_length=256"),
        ("update critic", ("critic.ppo_micro_batch_size_per_gpu=4",), "critic.ppo_micro_batch_size_per_gpu=1"),
        (
            "old log-probs",
            (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4",),
            f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=1",
        ),
        ("rollout", (f"{ROLLOUT}.gpu_memory_utilization=0.8",), f"{ROLLOUT}.gpu_memory_utilization=0.5"),
    ],
)
def test_the_next_key_to_lower(phase, given, typed):
    cfg = load([*GRPO, *given], check=False).cfg
    fix = next_change(cfg, phase)
    assert fix is not None and fix[0] == typed
