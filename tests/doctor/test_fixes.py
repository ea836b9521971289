"""Memory fixes: cheapest first, none superfluous, and with them the plan fits."""

from __future__ import annotations

import copy

from burnish.config import load
from burnish.config.memory_fixes import changed
from burnish.doctor.fixes import MemoryFix, memory_fixes
from burnish.doctor.memory import Shapes, train_plan
from burnish.doctor.shapes import find_shape
from burnish.sizing import GIB

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
GRPO = ["algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=8"]


def fixes_for(model: str, capacity: float, *overrides: str) -> list[MemoryFix]:
    cfg = load([f"actor_rollout_ref.model.path={model}", *GRPO, *overrides], check=False).cfg
    shapes = Shapes(find_shape(model).shape)

    def plan_of(cfg):
        return train_plan(cfg, shapes, int(capacity * GIB))

    before = copy.deepcopy(cfg)
    fixes = memory_fixes(cfg, plan_of)
    assert cfg == before
    assert not plan_of(changed(cfg, *(fix.changes for fix in fixes))).too_big
    return fixes


def test_nothing_to_fix():
    assert fixes_for("qwen2.5-0.5b", 80) == []


def test_micro_batches_come_first():
    rows = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    fixes = fixes_for("qwen2.5-0.5b", 24, f"{rows}=64", "data.max_response_length=1536")
    assert [fix.typed for fix in fixes] == [f"{rows}=1"]
    assert fixes[-1].fits


def test_a_token_budget_goes_down_to_the_longest_sequence():
    budget = f"{ACTOR}.ppo_max_token_len_per_gpu"
    fixes = fixes_for("qwen2.5-0.5b", 24, f"{ACTOR}.use_dynamic_bsz=true", f"{budget}=100000")
    assert fixes[0].typed == f"{budget}=1024"


def test_an_engine_with_too_much_memory_gets_less():
    share = f"{ROLLOUT}.gpu_memory_utilization"
    fixes = fixes_for("qwen2.5-0.5b", 80, f"{ROLLOUT}.name=vllm", f"{share}=0.98")
    assert [fix.changes[0][0] for fix in fixes] == [share]


def test_expensive_fixes_replace_cheap_ones_that_they_make_superfluous():
    fixes = fixes_for("qwen2.5-7b", 70)  # less than weights, gradients and the engine
    assert fixes[-1].fits
    assert "actor_rollout_ref.model.lora_rank=32" in fixes[-1].typed
    assert "offload_policy" not in " ".join(fix.typed for fix in fixes)
    assert "GiB" in fixes[-1].text()
