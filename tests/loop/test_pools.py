"""From a config to the processes of a run: how many, and which of them hold which roles."""

import pytest

from burnish.config import load
from burnish.loop.pools import Pool, pools

GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model", "trainer.device=cpu"]
TWO = "trainer.n_gpus_per_node=2"
APART = ("actor_rollout_ref.hybrid_engine=false", "rollout.nnodes=1", "rollout.n_gpus_per_node=3")
JUDGE = ("reward_model.enable=true", "reward_model.model.path=judge")
OWN = ("reward_model.enable_resource_pool=true", "reward_model.nnodes=2", "reward_model.n_gpus_per_node=1")
ALL = ("algorithm.adv_estimator=gae", "actor_rollout_ref.actor.use_kl_loss=true", *JUDGE)


def made(*overrides):
    return pools(load([*GIVEN, "algorithm.adv_estimator=grpo", *overrides]).cfg)


@pytest.mark.parametrize("more", [(), ALL, ("async_training.mode=queue",)])
def test_one_process_has_no_pools(more):
    assert made(*more) == []


def test_all_roles_share_the_policys_devices():
    assert made(TWO) == [Pool("trainer", 1, 2, ("policy", "engine"))]
    (pool,) = made("trainer.nnodes=4", TWO, *ALL)
    assert (pool.nodes, pool.per_node, pool.size) == (4, 2, 8)
    assert pool.roles == ("policy", "critic", "reference", "reward_model", "engine")


def test_roles_that_a_run_does_not_need_are_nowhere():
    (pool,) = made(TWO, "algorithm.use_kl_in_reward=true")
    assert pool.roles == ("policy", "reference", "engine")
    (pool,) = made(TWO, "critic.enable=true")
    assert pool.roles == ("policy", "critic", "engine")


def test_a_reward_model_of_the_users_own_class_stays_with_the_controller():
    own = ("reward_model.model.custom_cls.path=mine.py", "reward_model.model.custom_cls.name=Mine")
    (pool,) = made(TWO, *JUDGE, *own)
    assert "reward_model" not in pool.roles


def test_engines_on_devices_of_their_own():
    assert made(*APART) == [Pool("trainer", 1, 1, ("policy",)), Pool("rollout", 1, 3, ("engine",))]


def test_a_reward_model_on_devices_of_its_own():
    assert made(*JUDGE, *OWN) == [Pool("trainer", 1, 1, ("policy", "engine")), Pool("reward", 2, 1, ("reward_model",))]


def test_every_role_is_in_one_pool():
    found = [role for pool in made(TWO, *APART, *ALL, *OWN) for role in pool.roles]
    assert sorted(found) == ["critic", "engine", "policy", "reference", "reward_model"]


def test_a_pool_waits_as_long_as_the_most_patient_of_its_roles():
    limits = ("actor_rollout_ref.nccl_timeout=10", "critic.nccl_timeout=30", "reward_model.nccl_timeout=50")
    assert [pool.timeout for pool in made(TWO, *limits)] == [10]
    assert [pool.timeout for pool in made(TWO, *limits, "algorithm.adv_estimator=gae")] == [30]
    assert [pool.timeout for pool in made(TWO, *limits, *ALL)] == [50]
    assert [pool.timeout for pool in made(TWO, *limits, *ALL, *OWN, *APART)] == [30, 10, 50]


def test_a_worker_says_who_it_is():
    assert Pool("rollout", 2, 2, ("engine",)).worker_name(3) == "rollout rank 3 of 4"
