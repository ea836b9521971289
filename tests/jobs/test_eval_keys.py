"""Every key of `burnish eval` acts, or the run reports why it has no effect."""

import pytest

from burnish.config import load
from burnish.config.status import status_of
from burnish.config.tree import tree
from burnish.jobs.eval.run import settings_of

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


def test_all_keys_are_tested():
    acting = {key for key in tree("eval").leaves if status_of(key, job="eval").kind == "acts"}
    assert acting == TESTED | set(PASSED_ON)


@pytest.mark.parametrize("key", PASSED_ON)
def test_settings_reach_the_scorer(key):
    before, after = (
        settings_of(load(overrides, job="eval", check=False).cfg) for overrides in ([], [f"{key}={PASSED_ON[key]}"])
    )
    assert before != after


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("ray_init.num_cpus=2", "without Ray"),
        ("reward.scale=2", "raw scores"),
        ("reward.model_weight=2", "no reward model"),
        ("reward.failure_threshold=0.5", "scores all rows"),
    ],
)
def test_keys_without_effect_are_reported(override, reason):
    (notice,) = load(["data.path=a.jsonl", override], job="eval").notices
    assert reason in notice
