"""Every key of `burnish eval` acts, or the run reports why it has no effect."""

import pytest

from burnish.config import load
from burnish.config.status import status_of
from burnish.config.tree import tree
from burnish.distributed.ray import RayOptions
from burnish.errors import UserError
from burnish.jobs.eval import run
from burnish.jobs.eval.run import evaluate, on_nodes, settings_of
from burnish.loop import reward_nodes

# Tested in tests/jobs/test_eval.py.
TESTED = {f"data.{name}" for name in ("path", "prompt_key", "response_key", "data_source_key", "reward_model_key")}
TESTED |= {"data.output_path"}
TESTED |= {"data.image_key", "data.video_key"}  # in tests/jobs/test_pictures.py

# The others are passed to the scorer; tests/keys tests them under the same names.
PASSED_ON = {
    "custom_reward_function.path": "mine.py",
    "custom_reward_function.name": "graded",
    "custom_reward_function.reward_kwargs": "{bonus:1}",
    "reward.num_workers": "3",
    "reward.timeout": "1.5",
    "reward.memory_mb": "300",
    "reward.on_error": "stop",
    "reward.fallback_score": "-1",
    "reward.pass_env": "[TOKEN]",
    "reward.isolate": "true",
    "reward.network": "false",
    "reward.verifiers": "[acc]",
    "reward.verifier_weights": "[2.0]",
    "reward.remote_url": "mine.py",
    "reward.remote_timeout": "7",
    "reward.remote_retries": "2",
    "reward.remote_wait": "3",
    "sandbox.allow_weak": "true",
    "sandbox.timeout": "4",
    "sandbox.memory_mb": "100",
    "sandbox.output_kb": "9",
    "sandbox.max_cases": "2",
    "sandbox.max_parallel": "1",
}


RAY = {
    "reward_nodes": "3",
    "num_cpus": "5",
    "options": "{address: auto}",
    "timeline_json_file": "timeline.json",
}


def test_all_keys_are_tested():
    acting = {key for key in tree("eval").leaves if status_of(key, job="eval").kind == "acts"}
    assert acting == TESTED | set(PASSED_ON) | {f"ray_init.{name}" for name in RAY}


@pytest.mark.parametrize("key", PASSED_ON)
def test_settings_reach_the_scorer(key):
    before, after = (
        settings_of(load(overrides, job="eval", check=False).cfg) for overrides in ([], [f"{key}={PASSED_ON[key]}"])
    )
    assert before != after


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("ray_init.num_cpus=2", "scored on this machine"),
        ("reward.scale=2", "raw scores"),
        ("reward.model_weight=2", "no reward model"),
        ("reward.failure_threshold=0.5", "scores all rows"),
    ],
)
def test_keys_without_effect_are_reported(override, reason):
    (notice,) = load(["data.path=a.jsonl", override], job="eval").notices
    assert reason in notice


@pytest.mark.parametrize("name", RAY)
def test_keys_of_ray_reach_the_cluster_and_its_nodes(monkeypatch, name):
    monkeypatch.setattr(run, "RayCluster", lambda options: options)
    monkeypatch.setattr(reward_nodes, "RewardNodes", lambda cluster, nodes, *others: (cluster, nodes))

    def requested(*overrides: str) -> tuple[RayOptions, int]:
        cfg = load(["data.path=a.jsonl", "ray_init.reward_nodes=2", *overrides], job="eval").cfg
        return on_nodes(cfg, settings_of(cfg)).pool(None, None, None)

    before, after = requested(), requested(f"ray_init.{name}={RAY[name]}")
    assert before == (RayOptions(), 2) and after != before


def test_nodes_need_workers():
    with pytest.raises(UserError, match="runs reward functions in the process of the run"):
        load(["data.path=a.jsonl", "ray_init.reward_nodes=1", "reward.num_workers=0"], job="eval")


@pytest.mark.long
def test_nodes_of_a_cluster_score_what_this_machine_does():
    rows = [
        {"data_source": "openai/gsm8k", "reward_model": {"ground_truth": str(n)}, "responses": [f"#### {n}", "#### 3"]}
        for n in range(6)
    ]
    nodes = ["reward.num_workers=1", "ray_init.reward_nodes=1", "ray_init.num_cpus=2"]
    assert evaluate(nodes, rows=rows).scored == evaluate(["reward.num_workers=1"], rows=rows).scored
