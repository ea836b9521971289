"""A run whose device runs out of memory says where, who holds it, and what to type."""

from __future__ import annotations

import pytest
import torch

from burnish.config import load
from burnish.errors import UserError
from burnish.loop.memory import PHASES, explain
from burnish.rollout.engines.builtin.engine import BuiltinEngine
from burnish.training.backends.module import ModuleBackend
from burnish.training.device_memory import OutOfMemory

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"


def run_out(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")


@pytest.mark.parametrize(
    ("owner", "method", "phase", "given", "typed"),
    [
        (
            ModuleBackend,
            "log_probs",
            "update actor",
            f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
            "ppo_micro_batch_size_per_gpu=1",
        ),
        (ModuleBackend, "values", "values", "algorithm.adv_estimator=gae", "critic.forward_max_token_len_per_gpu=21"),
        (BuiltinEngine, "generate", "rollout", f"{ROLLOUT}.gpu_memory_utilization=0.9", "gpu_memory_utilization=0.5"),
    ],
    ids=["teaching", "reading values", "generating"],
)
def test_the_phase_the_owners_and_the_next_key(launch, monkeypatch, owner, method, phase, given, typed):
    monkeypatch.setattr(owner, method, run_out)
    with pytest.raises(UserError) as caught:
        launch(given)
    text = caught.value.text()
    assert f"ran out of memory in the phase '{phase}', allocating 3.00 GiB more" in text
    assert "policy weights 0.00 GiB" in text and "policy optimizer 0.00 GiB" in text and "engine weights" in text
    assert f"{typed}  (" in caught.value.hint
    assert isinstance(caught.value.__cause__, OutOfMemory)


def test_the_largest_owner_comes_first_and_nothing_may_be_left_to_try():
    cfg = load(["actor_rollout_ref.model.path=m"], check=False).cfg
    held = {"policy weights": 2 << 30, "activations and the rest": 100 << 30, "engine cache": 30 << 30}
    text = explain(cfg, "old log-probs", OutOfMemory("", held, None, 140 << 30)).text()
    assert "of 140.0 GiB" in text
    assert (
        text.index("activations and the rest 100.00 GiB")
        < text.index("engine cache 30")
        < text.index("policy weights 2")
    )
    assert explain(cfg, "adv", OutOfMemory("", held, None, None)).key is not None


def test_every_phase_with_a_model_has_its_name():
    assert {"gen", "old_log_prob", "ref", "values", "update_critic", "update_actor"} <= PHASES.keys()
