"""Cures: cheapest first, none that is not needed, and after them it fits."""

from __future__ import annotations

import copy

from burnish.config import load
from burnish.doctor.cures import changed, cures
from burnish.doctor.memory import GIB, Shapes, train_plan
from burnish.doctor.shapes import find_shape

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
GRPO = ["algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=8"]


def found_for(model: str, capacity: float, *overrides: str):
    cfg = load([f"actor_rollout_ref.model.path={model}", *GRPO, *overrides], check=False).cfg
    shapes = Shapes(find_shape(model).shape)

    def plan_of(cfg):
        return train_plan(cfg, shapes, int(capacity * GIB))

    before = copy.deepcopy(cfg)
    found = cures(cfg, plan_of)
    assert cfg == before
    assert not plan_of(changed(cfg, *(cure.changes for cure in found))).too_big
    return found


def test_nothing_to_cure():
    assert found_for("qwen2.5-0.5b", 80) == []


def test_micro_batches_come_first():
    rows = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
    found = found_for("qwen2.5-0.5b", 24, f"{rows}=64", "data.max_response_length=1536")
    assert [cure.typed for cure in found] == [f"{rows}=1"]
    assert found[-1].fits


def test_a_token_budget_goes_down_to_the_longest_row():
    budget = f"{ACTOR}.ppo_max_token_len_per_gpu"
    found = found_for("qwen2.5-0.5b", 24, f"{ACTOR}.use_dynamic_bsz=true", f"{budget}=100000")
    assert found[0].typed == f"{budget}=1024"


def test_an_engine_that_takes_too_much_gets_less():
    share = f"{ROLLOUT}.gpu_memory_utilization"
    found = found_for("qwen2.5-0.5b", 80, f"{ROLLOUT}.name=vllm", f"{share}=0.98")
    assert [cure.changes[0][0] for cure in found] == [share]


def test_dear_cures_replace_the_cheap_ones_they_make_needless():
    found = found_for("qwen2.5-7b", 70)  # less than weights, gradients and the engine
    assert found[-1].fits
    assert "actor_rollout_ref.model.lora_rank=32" in found[-1].typed
    assert "offload_policy" not in " ".join(cure.typed for cure in found)
    assert "GiB" in found[-1].text()
