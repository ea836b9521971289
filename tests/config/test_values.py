"""From what was written to what a field holds."""

import pytest

from burnish.config.tree import tree
from burnish.config.values import convert, written_as
from burnish.errors import UserError

LEAVES = tree().leaves


@pytest.mark.parametrize(
    ("key", "written", "held"),
    [
        ("actor_rollout_ref.actor.optim.lr", "1e-6", 1e-6),
        ("actor_rollout_ref.actor.optim.lr", 1, 1.0),
        ("trainer.save_freq", 10.0, 10),
        ("trainer.save_freq", "1e3", 1000),
        ("trainer.save_freq", False, 0),
        ("trainer.save_freq", True, 1),
        ("trainer.save_freq", "-1", -1),
        ("trainer.val_only", "True", True),
        ("trainer.val_only", 1, True),
        ("trainer.val_before_train", None, False),
        ("trainer.max_actor_ckpt_to_keep", False, None),
        ("trainer.max_actor_ckpt_to_keep", "", None),
        ("trainer.default_hdfs_dir", "", None),
        ("trainer.resume_from_path", False, None),
        ("actor_rollout_ref.actor.entropy_coeff", False, 0.0),
        ("custom_reward_function.name", None, "compute_score"),
        ("trainer.project_name", 7, "7"),
        ("trainer.controller_nsight_options.cuda-memory-usage", True, "true"),
        ("data.train_files", "a.parquet, b.parquet", ["a.parquet", "b.parquet"]),
        ("data.train_files", ["a,b.parquet"], ["a,b.parquet"]),
        ("data.val_files", None, []),
        ("trainer.logger", "console", ["console"]),
        ("trainer.logger", "['console', \"wandb\"]", ["console", "wandb"]),
        ("trainer.logger", "console,wandb", ["console", "wandb"]),
        ("data.train_files", "[/a.parquet, /b.parquet]", ["/a.parquet", "/b.parquet"]),
        ("data.train_files", "", []),
        ("actor_rollout_ref.rollout.top_k", 0, -1),
        ("actor_rollout_ref.rollout.top_k", None, -1),
        ("actor_rollout_ref.rollout.val_kwargs.top_k", -1, -1),
        ("actor_rollout_ref.actor.fsdp_config.reshard_after_forward", 4, 4),
        ("actor_rollout_ref.actor.fsdp_config.reshard_after_forward", False, False),
        ("trainer.profile_steps", [1, "2"], [1, 2]),
        ("trainer.profile_steps", None, None),
        ("actor_rollout_ref.model.override_config", None, {}),
        ("algorithm.adv_estimator", "mine.py:estimate", "mine.py:estimate"),
        ("algorithm.rollout_correction.rollout_is_threshold", "0.5_2.0", "0.5_2.0"),
        ("actor_rollout_ref.actor.clip_ratio_c", None, None),
    ],
)
def test_values_are_normalised(key, written, held):
    new = convert(LEAVES[key], written)
    assert new == held
    assert type(new) is type(held)


@pytest.mark.parametrize(
    ("key", "written"),
    [
        ("trainer.save_freq", 1.5),
        ("trainer.save_freq", -2),
        ("trainer.nnodes", False),
        ("trainer.val_only", 2),
        ("trainer.val_only", "yes"),
        ("algorithm.gamma", 1.1),
        ("algorithm.gamma", float("nan")),
        ("algorithm.adv_estimator", "gpro"),
        ("trainer.logger", ["console", "wandbb"]),
        ("data.train_batch_size", None),
        ("actor_rollout_ref.actor.clip_ratio_c", 1.0),
        ("actor_rollout_ref.model.override_config", "x"),
        ("actor_rollout_ref.actor.optim.betas", [0.9, 1.5]),
        ("trainer.project_name", {"a": 1}),
    ],
)
def test_wrong_values_name_key_value_and_allowed(key, written):
    with pytest.raises(UserError) as caught:
        convert(LEAVES[key], written)
    assert caught.value.key == key
    assert caught.value.value == written or written != written
    assert caught.value.allowed


def test_entries_of_a_mapping_of_text_are_text():
    leaf = LEAVES["data.handler.map_keys"]
    assert convert(leaf, {"prompt": "question", "query": None, "system": 7}) == {
        "prompt": "question",
        "query": "",
        "system": "7",
    }
    with pytest.raises(UserError, match="must be text"):
        convert(leaf, {"prompt": ["question"]})


def test_an_empty_number_hints_at_the_shell():
    with pytest.raises(UserError, match="shell variable"):
        convert(LEAVES["trainer.nnodes"], "")


def test_a_near_name_is_suggested():
    with pytest.raises(UserError) as caught:
        convert(LEAVES["algorithm.adv_estimator"], "gpro")
    assert caught.value.hint == "algorithm.adv_estimator=grpo"


def test_written_as_is_what_one_types():
    assert written_as([1e-6, None, True, {"a": "b"}]) == "[1e-06,null,true,{a:b}]"
