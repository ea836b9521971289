"""Sizes of groups that share a sequence, before any model is known."""

from __future__ import annotations

import pytest

from burnish.algos.kl import KL_ESTIMATORS
from burnish.config import load
from burnish.config.sequence_rules import EXACT_KL, SEQUENCE_RULES

ACTOR, REF = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
SIZE = "ulysses_sequence_parallel_size"


def broken(*overrides: str) -> list:
    cfg = load(["algorithm.adv_estimator=grpo", *overrides], check=False).cfg
    return [error for rule in SEQUENCE_RULES for error in rule(cfg)]


@pytest.mark.parametrize(
    ("ranks", "size", "allowed", "hint"), [(1, 2, [1], 1), (8, 3, [1, 2, 4, 8], 2), (6, 4, [1, 2, 3, 6], 3)]
)
def test_a_size_divides_the_ranks(ranks, size, allowed, hint):
    (error,) = broken(f"trainer.n_gpus_per_node={ranks}", f"{ACTOR}.{SIZE}={size}")
    assert (error.key, error.value, error.allowed) == (f"{ACTOR}.{SIZE}", size, allowed)
    assert error.hint == f"{ACTOR}.{SIZE}={hint}"
    assert error.problem.startswith(f"{ranks} rank")


def test_sizes_that_fit():
    assert broken() == []
    assert broken("trainer.nnodes=2", "trainer.n_gpus_per_node=4", f"{ACTOR}.{SIZE}=8") == []


@pytest.mark.parametrize(
    ("words", "key", "allowed", "hint"),
    [
        (("trainer.n_gpus_per_node=3",), f"{ACTOR}.fsdp_config.fsdp_size", [-1, 1, 3], 1),
        (("trainer.n_gpus_per_node=6", "algorithm.adv_estimator=gae"), "critic.model.fsdp_config.fsdp_size", None, 3),
        (("trainer.n_gpus_per_node=6", f"{ACTOR}.use_kl_loss=true"), f"{REF}.fsdp_config.fsdp_size", None, 3),
        (
            ("trainer.n_gpus_per_node=6", "reward_model.enable=true"),
            "reward_model.model.fsdp_config.fsdp_size",
            [-1, 1, 2, 3, 6],
            3,
        ),
        (
            (
                *("trainer.n_gpus_per_node=12", f"{ACTOR}.strategy=megatron"),
                *(f"{ACTOR}.megatron.{name}_model_parallel_size=2" for name in ("tensor", "pipeline")),
            ),
            f"{ACTOR}.fsdp_config.fsdp_size",
            [-1, 1, 3],
            1,
        ),
    ],
)
def test_copies_of_the_weights_divide_the_ranks(words, key, allowed, hint):
    size = 2 if allowed and len(allowed) == 3 else 4
    (error,) = broken(*words, f"{key}={size}")
    assert (error.key, error.value, error.hint) == (key, size, f"{key}={hint}")
    assert error.allowed == (allowed or [-1, 1, 2, 3, 6])
    for fitting in (-1, 1, hint, 100):
        assert broken(*words, f"{key}={fitting}") == []


@pytest.mark.parametrize(
    ("section", "there"),
    [
        (REF, f"{ACTOR}.use_kl_loss=true"),
        ("critic", "critic.enable=true"),
        ("reward_model", "reward_model.enable=true"),
    ],
)
def test_a_role_counts_where_it_is_used(section, there):
    asked = ("trainer.n_gpus_per_node=4", f"{section}.{SIZE}=3")
    assert broken(*asked) == []
    assert [error.key for error in broken(*asked, there)] == [f"{section}.{SIZE}"]


def test_a_reward_model_may_have_ranks_of_its_own():
    own = ("reward_model.enable=true", "reward_model.enable_resource_pool=true", f"reward_model.{SIZE}=3")
    assert broken(*own, "reward_model.nnodes=1", "reward_model.n_gpus_per_node=3") == []
    (error,) = broken(*own, "reward_model.nnodes=1", "reward_model.n_gpus_per_node=4", "trainer.n_gpus_per_node=3")
    assert "4 ranks (reward_model.nnodes x" in error.problem


@pytest.mark.parametrize(
    ("kl", "refused"),
    [
        ((f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=full"), True),
        ((f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=k3"), False),
        (("algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=full+"), True),
        (("algorithm.kl_penalty=full",), False),
    ],
)
def test_the_exact_kl_needs_equal_sizes(kl, refused):
    sizes = ("trainer.n_gpus_per_node=4", f"{ACTOR}.{SIZE}=4")
    assert broken(*sizes, *kl) == []  # the reference follows
    found = broken(*sizes, f"{REF}.{SIZE}=2", *kl)
    assert [error.key for error in found] == [f"{REF}.{SIZE}"] * refused
    assert not refused or found[0].hint == f"{REF}.{SIZE}=4"


def test_exact_estimators_are_those_of_the_table():
    assert {name for name in KL_ESTIMATORS.names() if "exact" in KL_ESTIMATORS[name].needs} == EXACT_KL


@pytest.mark.parametrize(
    ("words", "section"),
    [
        (("trainer.n_gpus_per_node=2", f"{ACTOR}.{SIZE}=2"), ACTOR),
        ((f"{ACTOR}.aux_loss_coef=0.1",), ACTOR),
        ((f"{ACTOR}.router_replay.mode=R2",), ACTOR),
        (("trainer.n_gpus_per_node=2", f"critic.{SIZE}=2", "algorithm.adv_estimator=gae"), "critic"),
    ],
)
def test_what_shared_prompts_do_not_go_with(words, section):
    assert broken(*words) == []
    (error,) = broken(*words, f"{ACTOR}.use_prefix_grouper=true")
    assert error.key == f"{section}.use_prefix_grouper"
    assert broken(*words, f"{ACTOR}.use_prefix_grouper=true", error.hint) == []
