"""What a key means."""

import json

import pytest

from burnish.config.explain import describe, describe_all, describe_section, search
from burnish.config.jobs import JOBS
from burnish.errors import UserError


def test_a_key_has_everything():
    row = describe("actor_rollout_ref.rollout.name")
    assert row.type == "str"
    assert row.default == "builtin"
    assert row.verl_default == "vllm"
    assert row.allowed["hf"].startswith("transformers")
    assert row.status == "acts"
    assert set(row.unsupported_values) == {"trtllm"}


def test_a_key_that_follows_another():
    row = describe("critic.ppo_epochs")
    assert row.follows == "${actor_rollout_ref.actor.ppo_epochs}"
    assert row.bounds == ">= 1"


def test_other_ways_to_name_a_key():
    assert describe("ray_kwargs.ray_init.num_cpus").key == "ray_init.num_cpus"
    assert describe("policy_loss.loss_mode").key == "actor_rollout_ref.actor.policy_loss.loss_mode"
    assert describe("custom_reward_function.reward_kwargs.x").key == "custom_reward_function.reward_kwargs"
    assert "critic.optim.lr_scheduler_type" in describe("critic.optim.warmup_style").aliases


def test_chinese():
    row = describe("algorithm.adv_estimator", lang="zh")
    assert "优势" in row.doc
    assert "广义优势估计" in row.allowed["gae"]


def test_unknown_keys_name_the_nearest():
    with pytest.raises(UserError, match=r"trainer\.total_epochs"):
        describe("trainer.total_epoch")
    with pytest.raises(UserError):
        describe_section("trainr")


def test_sections_and_search():
    assert {row.key for row in describe_section("algorithm.kl_ctrl")} == {
        f"algorithm.kl_ctrl.{name}" for name in ("type", "kl_coef", "horizon", "target_kl")
    }
    assert "data.truncation" in {row.key for row in search("longer prompt")}


def test_everything_is_json():
    for job in JOBS:
        for lang in ("en", "zh"):
            json.dumps([row.as_dict() for row in describe_all(lang, job)])
    assert "verl_default" not in describe("trainer.save_freq").as_dict()
