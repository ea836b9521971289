"""Rules across keys: each broken rule names the key and says what to type."""

import pytest

from burnish.config import load
from burnish.config.rules import check_rules, has_critic

GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model", "trainer.device=cpu"]
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
FILTER = "algorithm.filter_groups"


def broken(*overrides):
    errors, _ = check_rules(load([*GIVEN, *overrides], check=False).cfg)
    return [error.key for error in errors]


def remarks(*overrides):
    return check_rules(load([*GIVEN, *overrides], check=False).cfg)[1]


def test_the_defaults_break_nothing():
    assert broken() == []
    assert remarks() == []


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["data.train_batch_size=8"], f"{ACTOR}.ppo_mini_batch_size"),
        (["data.train_batch_size=0"], "data.train_batch_size"),
        (["trainer.n_gpus_per_node=3"], "data.train_batch_size"),
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=7"], f"{ACTOR}.ppo_micro_batch_size_per_gpu"),
        (["critic.ppo_micro_batch_size_per_gpu=7"], "critic.ppo_micro_batch_size_per_gpu"),
        ([f"{ACTOR}.use_kl_loss=true", "algorithm.use_kl_in_reward=true"], f"{ACTOR}.use_kl_loss"),
        ([f"{ROLLOUT}.max_model_len=512"], f"{ROLLOUT}.max_model_len"),
        ([f"{ROLLOUT}.prompt_length=100"], f"{ROLLOUT}.prompt_length"),
        ([f"{ROLLOUT}.temperature=0"], f"{ROLLOUT}.temperature"),
        (["reward_model.enable=true"], "reward_model.model.path"),
        (["critic.optim.betas=[0.9]"], "critic.optim.betas"),
        (["trainer.resume_mode=resume_path"], "trainer.resume_from_path"),
        ([f"{ACTOR}.policy_loss.clip_cov_lb=9"], f"{ACTOR}.policy_loss.clip_cov_lb"),
        (["trainer.val_only=true"], "data.val_files"),
        ([f"{FILTER}.enable=true", f"{FILTER}.reward_range=[1,0]"], f"{FILTER}.reward_range"),
        ([f"{FILTER}.enable=true", f"{FILTER}.reward_range=[1]"], f"{FILTER}.reward_range"),
        (
            [f"{FILTER}.enable=true", f"{FILTER}.metric=seq_final_reward", "algorithm.use_kl_in_reward=true"],
            f"{FILTER}.metric",
        ),
        (["reward_model.overlong_buffer.enable=true"], "reward_model.overlong_buffer.len"),
        (["reward.clip_range=[0,0]"], "reward.clip_range"),
    ],
)
def test_a_broken_rule_names_its_key(overrides, key):
    assert broken(*overrides) == [key]


@pytest.mark.parametrize(
    "role", [f"{ACTOR}.ppo", "critic.ppo", f"{ROLLOUT}.log_prob", "actor_rollout_ref.ref.log_prob"]
)
def test_a_micro_batch_size_is_given_once(role):
    key = f"{role}_micro_batch_size"
    assert broken(f"{key}=8", f"{key}_per_gpu=8") == [key]


def test_forward_sizes_follow_without_a_conflict():
    assert broken("critic.ppo_micro_batch_size=8", "critic.forward_micro_batch_size_per_gpu=4") == []
    assert broken("critic.forward_micro_batch_size=8", "critic.forward_micro_batch_size_per_gpu=4") == [
        "critic.forward_micro_batch_size"
    ]


def test_a_short_last_mini_batch_is_legal():
    assert broken("data.train_batch_size=100", f"{ACTOR}.ppo_mini_batch_size=64") == []


def test_token_budgets_need_no_divisibility():
    assert broken(f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_micro_batch_size_per_gpu=7") == []


def test_critic_rules_hold_only_where_there_is_one():
    bad = ["critic.ppo_micro_batch_size_per_gpu=7", f"{ROLLOUT}.n=2"]
    assert broken(*bad, "algorithm.adv_estimator=grpo") == []
    assert has_critic(load([*GIVEN, "critic.enable=true", "algorithm.adv_estimator=grpo"]).cfg)
    assert not has_critic(load([*GIVEN, "algorithm.adv_estimator=grpo"]).cfg)


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (["algorithm.adv_estimator=grpo"], "n=1"),
        ([f"{ROLLOUT}.do_sample=false"], "greedy"),
        ([f"{ROLLOUT}.max_model_len=1000"], "24 less than prompt_length + response_length"),
        (["trainer.resume_from_path=x"], "resume_mode"),
        (["trainer.test_freq=2"], "val_files"),
        (["algorithm.kl_ctrl.type=adaptive"], "use_kl_in_reward"),
    ],
)
def test_remarks(overrides, word):
    lines = remarks(*overrides)
    assert len(lines) == 1
    assert word in lines[0]


def test_a_missing_file_gives_a_hint():
    errors, _ = check_rules(load([], check=False).cfg)
    assert {error.key: bool(error.hint) for error in errors} == {
        "actor_rollout_ref.model.path": True,
        "data.train_files": True,
    }


def test_ranks_that_share_a_row_do_not_split_the_batch():
    sizes = ["data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=64", f"{ROLLOUT}.n=5", "trainer.nnodes=32"]
    micro = f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"
    assert broken(*sizes, micro) == [f"{ACTOR}.ppo_micro_batch_size_per_gpu"]  # 64 x 5 / 32 = 10 responses
    assert broken(*sizes, micro, f"{ACTOR}.ulysses_sequence_parallel_size=2") == []  # on 16: 20 responses
    split = [f"{ACTOR}.strategy=megatron", f"{ACTOR}.megatron.tensor_model_parallel_size=4"]
    assert broken(*sizes, micro, *split) == []  # on 8: 40 responses


def test_streamed_prompts_need_no_batch_size():
    assert broken("data.train_batch_size=0") == ["data.train_batch_size"]
    assert broken("data.train_batch_size=0", "async_training.mode=one_step_off") == ["data.train_batch_size"]
    assert broken("data.train_batch_size=0", "async_training.mode=queue") == []
