"""From a command line and files to a config, or to all errors at once."""

import pytest
from omegaconf import OmegaConf

from burnish.config import TrainConfig, load
from burnish.errors import UserError, UserErrors

GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model"]


def test_a_verl_command_line():
    loaded = load(
        [
            *GIVEN,
            "algorithm.adv_estimator=grpo",
            "data.val_files=['a.parquet', 'b.parquet']",
            "actor_rollout_ref.actor.optim.lr=1e-6",
            "+trainer.seed=9",
            "++data.max_response_length=64",
            "actor_rollout_ref.rollout.n=5",
            'trainer.logger=["console","wandb"]',
            "+custom_reward_function.reward_kwargs.bonus=0.5",
        ]
    )
    cfg = loaded.cfg
    assert isinstance(cfg, TrainConfig)
    assert cfg.data.val_files == ["a.parquet", "b.parquet"]
    assert cfg.trainer.seed == 9
    assert cfg.actor_rollout_ref.rollout.response_length == 64
    assert cfg.critic.rollout_n == 5
    assert cfg.trainer.logger == ["console", "wandb"]
    assert cfg.custom_reward_function.reward_kwargs == {"bonus": 0.5}
    assert cfg.trainer.default_local_dir == "checkpoints/burnish/default"
    assert loaded.settings["trainer.seed"].value == 9
    assert loaded.settings["trainer.seed"].origin == "the command line"
    assert loaded.notices == []


def test_all_errors_come_at_once():
    with pytest.raises(UserErrors) as caught:
        load(["trainer.sed=1", "trainer.save_freq=often", "algorithm.gamma=2", "data.val_files=${nope}", "b=("])
    keys = [error.key for error in caught.value.errors]
    assert {"trainer.sed", "trainer.save_freq", "algorithm.gamma", "data.val_files"} <= set(keys)
    assert {"data.train_files", "actor_rollout_ref.model.path"} <= set(keys)
    assert any("cannot parse the override" in str(error) for error in caught.value.errors)


def test_check_off_reads_without_rules():
    loaded = load(["actor_rollout_ref.rollout.name=vllm", "trainer.n_gpus_per_node=8"], check=False)
    assert loaded.cfg.actor_rollout_ref.rollout.name == "vllm"


def test_what_is_given_otherwise_is_not_missed():
    load(["actor_rollout_ref.model.path=model"], given=["data.train_files"])
    with pytest.raises(UserError, match=r"data\.train_files"):
        load(["actor_rollout_ref.model.path=model"])


def test_interpolations_of_the_user(monkeypatch):
    monkeypatch.setenv("BURNISH_TEST_DIR", "/somewhere")
    loaded = load(
        [
            "actor_rollout_ref.model.path=model",
            "data.train_files=${oc.env:BURNISH_TEST_DIR}/train.parquet",
            "data.val_files=${data.train_files}",
            "data.max_response_length=${data.max_prompt_length}",
            "data.max_prompt_length=77",
        ]
    )
    assert loaded.cfg.data.train_files == ["/somewhere/train.parquet"]
    assert loaded.cfg.data.val_files == ["/somewhere/train.parquet"]
    assert loaded.cfg.actor_rollout_ref.rollout.response_length == 77


def test_missing_interpolations_are_user_errors():
    for text in ("trainer.project_name=${oc.env:BURNISH_NO_SUCH}", "trainer.seed=${data.nope}"):
        with pytest.raises(UserError, match="cannot resolve the interpolation"):
            load([*GIVEN, text])


def test_an_interpolated_value_is_checked():
    with pytest.raises(UserError, match="out of range"):
        load([*GIVEN, "algorithm.gamma=${trainer.seed}", "trainer.seed=3"])


def test_files_and_groups(tmp_path):
    (tmp_path / "algo").mkdir()
    (tmp_path / "algo" / "grpo.yaml").write_text("# @package algorithm\nadv_estimator: grpo\n")
    (tmp_path / "algo" / "rloo.yaml").write_text("# @package algorithm\nadv_estimator: rloo\n")
    (tmp_path / "mine.yaml").write_text(
        "defaults:\n  - ppo_trainer\n  - algo: grpo\n  - _self_\n"
        "data:\n  train_files: a.parquet,b.parquet\n"
        "actor_rollout_ref:\n  model: {path: model}\n  actor: {optim: {lr: 1e-5}}\n"
        "  rollout: {n: 4, multi_turn: false}\n"
    )
    loaded = load(["algo=rloo", "trainer.seed=2"], config_path=str(tmp_path), config_name="mine")
    assert loaded.cfg.algorithm.adv_estimator == "rloo"
    assert loaded.cfg.data.train_files == ["a.parquet", "b.parquet"]
    assert loaded.cfg.actor_rollout_ref.actor.optim.lr == 1e-5
    assert loaded.settings["actor_rollout_ref.rollout.n"].origin == "mine.yaml"


def test_a_file_of_verl_that_is_not_here(tmp_path):
    load(GIVEN, config_path=str(tmp_path), config_name="ppo_trainer.yaml")
    loaded = load(GIVEN, config_name="ppo_megatron_trainer", check=False)
    assert loaded.cfg.critic.strategy == "megatron"
    with pytest.raises(UserError, match="no such config file"):
        load(GIVEN, config_path=str(tmp_path), config_name="no_such")


def test_the_tree_prints_as_yaml_under_the_keys_that_users_write():
    loaded = load([*GIVEN, "trainer.controller_nsight_options.cuda-memory-usage=false"], check=False)
    printed = OmegaConf.create(loaded.yaml())
    assert printed.trainer.controller_nsight_options["cuda-memory-usage"] == "false"
    again = load([], check=False).cfg
    assert OmegaConf.select(printed, "critic.ppo_epochs") == again.critic.ppo_epochs


def test_what_is_printed_can_be_read_again(tmp_path):
    loaded = load([*GIVEN, "trainer.seed=5"])
    (tmp_path / "run.yaml").write_text(loaded.yaml())
    again = load([], config_path=str(tmp_path), config_name="run")
    assert again.cfg == loaded.cfg


def test_other_jobs_have_trees_of_their_own():
    loaded = load(
        ["data.train_files=a", "engine=fsdp", "model.path=m", "trainer.test_freq=after_each_epoch"],
        job="sft",
        check=False,
    )
    assert loaded.cfg.model.partial_pretrain == "m"
    assert loaded.cfg.trainer.test_freq == "after_each_epoch"
    assert load(["data.path=a.parquet,b.parquet"], job="eval").cfg.data.path == ["a.parquet", "b.parquet"]


def test_values_are_taken_as_they_are():
    rate, path = 1.2345678901234e-7, "a, b's {x}"
    values = {"actor_rollout_ref.actor.optim.lr": rate, "trainer.rollout_data_dir": path, "data.train_files": ["a,b"]}
    cfg = load(values=values, check=False).cfg
    assert (cfg.actor_rollout_ref.actor.optim.lr, cfg.trainer.rollout_data_dir) == (rate, path)
    assert cfg.data.train_files == ["a,b"]
    with pytest.raises(UserError, match="Did you mean"):
        load(values={"algorithm.adv_estimater": "grpo"}, check=False)
