"""What a change of a setting means to a run that resumes."""

from fnmatch import fnmatchcase

import pytest

from burnish.config import load
from burnish.config.resume_rules import (
    CLASSES,
    Resume,
    changed_settings,
    declared_class,
    flat,
    resume_class,
    split_changes,
)
from burnish.config.tree import tree

MODEL = {"train": "actor_rollout_ref.model.path=model", "sft": "model.partial_pretrain=model"}
KEYS = [key for job in ("train", "sft") for key in tree(job).leaves]


def settings(job, *overrides):
    cfg = load([MODEL[job], *overrides], job=job, check=False).cfg
    return flat(cfg, job), cfg


@pytest.mark.parametrize("job", ["train", "sft"])
def test_every_key_has_a_class(job):
    assert [key for key in tree(job).leaves if declared_class(key) is None] == []


def test_every_row_of_the_table_is_used():
    patterns = [pattern for patterns in CLASSES.values() for pattern in patterns]
    assert [pattern for pattern in patterns if not any(fnmatchcase(key, pattern) for key in KEYS)] == []


def test_an_unknown_key_defines_the_experiment():
    assert declared_class("trainer.brand_new") is None and resume_class("trainer.brand_new") is Resume.DEFINING


@pytest.mark.parametrize(
    ("override", "kind"),
    [
        ("actor_rollout_ref.model.path=other", Resume.SOURCE),
        ("custom_reward_function.path=other.py", Resume.SOURCE),
        ("data.train_files=[other.parquet]", Resume.SOURCE),
        ("reward.remote_url=[http://other:5000/score]", Resume.SOURCE),
        ("algorithm.adv_estimator=grpo", Resume.DEFINING),
        ("actor_rollout_ref.rollout.n=7", Resume.DEFINING),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gspo", Resume.DEFINING),
        ("actor_rollout_ref.actor.optim.lr=0.5", Resume.DEFINING),
        ("actor_rollout_ref.model.lora_rank=8", Resume.DEFINING),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=8", Resume.DEFINING),
        ("data.max_prompt_length=8", Resume.DEFINING),
        ("data.train_batch_size=8", Resume.DEFINING),
        ("trainer.seed=8", Resume.DEFINING),
        ("data.val_files=[other.parquet]", Resume.VALIDATION),
        ("trainer.logger=[console]", Resume.HARMLESS),
        ("trainer.save_freq=8", Resume.HARMLESS),
        ("trainer.total_epochs=8", Resume.HARMLESS),
        ("trainer.total_training_steps=8", Resume.HARMLESS),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", Resume.HARMLESS),
        ("actor_rollout_ref.actor.fsdp_config.param_offload=true", Resume.HARMLESS),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.1", Resume.HARMLESS),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=8", Resume.HARMLESS),
        ("trainer.n_gpus_per_node=8", Resume.HARMLESS),
    ],
)
def test_what_a_change_means(override, kind):
    (before, _), (after, cfg) = settings("train"), settings("train", override)
    (change,) = changed_settings(before, after, "train")
    assert change.key == override.partition("=")[0] and resume_class(change.key) is kind
    refused, accepted = split_changes([change], cfg, "train")
    assert (accepted if kind is Resume.HARMLESS else refused) == [change]


def test_how_a_run_is_started_is_not_compared():
    (before, _) = settings("train")
    (after, _) = settings("train", "trainer.resume_mode=disable", "trainer.default_local_dir=elsewhere")
    assert changed_settings(before, after, "train") == []


def test_a_key_that_follows_another_is_listed_once():
    (before, _), (after, _) = settings("train"), settings("train", "data.max_response_length=9")
    assert [change.key for change in changed_settings(before, after, "train")] == ["data.max_response_length"]


def test_a_key_without_effect_in_this_run_is_accepted():
    (before, _), (after, cfg) = settings("train"), settings("train", "async_training.staleness_threshold=0.5")
    (change,) = changed_settings(before, after, "train")
    assert split_changes([change], cfg, "train") == ([], [change])


def test_a_key_that_the_checkpoint_does_not_know_had_its_default():
    (before, _), (after, _) = settings("train"), settings("train", "algorithm.gamma=0.5")
    del before["algorithm.gamma"], before["algorithm.lam"]
    assert [change.text() for change in changed_settings(before, after, "train")] == ["algorithm.gamma: 1 -> 0.5"]


def test_other_validation_data_is_accepted_by_a_run_that_only_validates():
    (before, _) = settings("train")
    (after, cfg) = settings("train", "data.val_files=[other.parquet]", "trainer.val_only=true")
    (change,) = changed_settings(before, after, "train")
    assert split_changes([change], cfg, "train") == ([], [change])


def test_an_8_bit_cache_is_another_experiment_and_the_block_size_is_not():
    gpu = ("trainer.device=cuda", "algorithm.rollout_correction.rollout_is=null")
    builtin = "actor_rollout_ref.rollout.engine_kwargs.builtin"
    (before, _) = settings("train", *gpu)
    for value, refused in (
        ("{block_size:32}", False),
        ("{kv_cache_dtype:auto}", False),
        ("{kv_cache_dtype:fp8}", True),
    ):
        (after, cfg) = settings("train", *gpu, f"{builtin}={value}")
        (change,) = changed_settings(before, after, "train")
        assert split_changes([change], cfg, "train") == (([change], []) if refused else ([], [change]))
