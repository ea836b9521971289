"""Values that follow from others."""

from burnish.config import load
from burnish.config.derive import derive


def test_removing_the_previous_checkpoint_keeps_one():
    loaded = load(["trainer.remove_previous_ckpt_in_save=true", "trainer.max_critic_ckpt_to_keep=3"], check=False)
    assert loaded.cfg.trainer.max_actor_ckpt_to_keep == 1
    assert loaded.cfg.trainer.max_critic_ckpt_to_keep == 3
    assert "max_actor_ckpt_to_keep=1" in loaded.notices[0]


def test_a_global_micro_batch_size_is_shared_by_the_ranks():
    loaded = load(
        [
            "actor_rollout_ref.actor.ppo_micro_batch_size=16",
            "actor_rollout_ref.ref.log_prob_micro_batch_size=8",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size=12",
            "critic.ppo_micro_batch_size=4",
            "trainer.n_gpus_per_node=4",
        ],
        check=False,
    )
    cfg = loaded.cfg
    assert cfg.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 4
    assert cfg.actor_rollout_ref.actor.ppo_micro_batch_size is None
    assert cfg.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu == 2
    assert cfg.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu == 3
    assert cfg.critic.ppo_micro_batch_size_per_gpu == 1
    assert cfg.critic.forward_micro_batch_size_per_gpu == 1
    assert len(loaded.notices) == 5


def test_a_size_per_rank_stays():
    overrides = ["critic.ppo_micro_batch_size=4", "critic.forward_micro_batch_size_per_gpu=2"]
    critic = load(overrides, check=False).cfg.critic
    assert critic.forward_micro_batch_size_per_gpu == 2
    assert critic.forward_micro_batch_size is None
    assert critic.ppo_micro_batch_size_per_gpu == 4


def test_nothing_is_filled_in_by_default_nor_twice():
    loaded = load([], check=False)
    assert loaded.cfg.trainer.max_actor_ckpt_to_keep is None
    assert loaded.cfg.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu is None
    assert loaded.notices == derive(loaded.cfg) == []


def test_ranks_that_share_a_row_count_once():
    sizes = ["actor_rollout_ref.actor.ppo_micro_batch_size=16", "actor_rollout_ref.rollout.log_prob_micro_batch_size=8"]
    shared = ["trainer.n_gpus_per_node=4", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"]
    cfg = load([*sizes, *shared], check=False).cfg
    assert cfg.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 8
    assert cfg.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu == 4
