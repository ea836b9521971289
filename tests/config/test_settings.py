"""What the user set, under our keys."""

import pytest

from burnish.config.overrides import Entry
from burnish.config.settings import Settings, nearest_key, unknown_key
from burnish.config.tree import tree


def settings(*rows, job="train"):
    made = Settings(tree(job))
    made.add_all(Entry(*row) if len(row) > 2 else Entry(*row, "here") for row in rows)
    return made


def values(made):
    return {key: setting.value for key, setting in made.values.items()}


def test_the_last_of_a_key_wins():
    assert values(settings(("trainer.seed", 1), ("trainer.seed", 2))) == {"trainer.seed": 2}


def test_a_mapping_for_a_section_merges():
    made = settings(("trainer.seed", 1), ("trainer", {"save_freq": 3, "checkpiont": 1}))
    assert values(made) == {"trainer.seed": 1, "trainer.save_freq": 3}
    assert [error.key for error in made.errors] == ["trainer.checkpiont"]


def test_true_means_enable():
    made = settings(("actor_rollout_ref.rollout.multi_turn", True))
    assert values(made) == {"actor_rollout_ref.rollout.multi_turn.enable": True}
    assert settings(("trainer", True)).errors[0].key == "trainer"


def test_removing_goes_back_to_the_default():
    made = settings(("trainer.seed", 1), ("data.shuffle", False), ("trainer", None, "here", None, True))
    assert values(made) == {"data.shuffle": False}


def test_free_mappings_take_any_key_and_merge():
    made = settings(("custom_reward_function.reward_kwargs.a.b", 1), ("custom_reward_function.reward_kwargs", {"c": 2}))
    assert values(made) == {
        "custom_reward_function.reward_kwargs.a.b": 1,
        "custom_reward_function.reward_kwargs.c": 2,
    }
    made.add_all([Entry("custom_reward_function.reward_kwargs.a", None, "here", remove=True)])
    assert list(made.values) == ["custom_reward_function.reward_kwargs.c"]


def test_aliases_set_their_target_and_give_a_notice():
    made = settings(("actor_rollout_ref.actor.checkpoint.contents", ["model"]))
    assert values(made) == {
        "actor_rollout_ref.actor.checkpoint.save_contents": ["model"],
        "actor_rollout_ref.actor.checkpoint.load_contents": ["model"],
    }
    assert "actor_rollout_ref.actor.checkpoint.contents" in made.notices[0]


def test_an_alias_against_its_target_is_an_error():
    rows = [("ray_init.num_cpus", 4), ("ray_kwargs.ray_init.num_cpus", 8)]
    assert settings(*rows).errors[0].key == "ray_init.num_cpus"
    assert settings(*reversed(rows)).errors[0].key == "ray_init.num_cpus"
    assert settings(("ray_init.num_cpus", 4), ("ray_kwargs.ray_init.num_cpus", 4)).errors == []


def test_the_command_line_may_overrule_a_file_in_another_spelling():
    made = settings(("ray_init.num_cpus", 4, "a file"), ("ray_kwargs.ray_init.num_cpus", 8, "the command line"))
    assert made.errors == []
    assert values(made) == {"ray_init.num_cpus": 8}


def test_nested_sections_of_another_spelling():
    made = settings(("ray_kwargs", {"ray_init": {"num_cpus": 2, "address": "auto"}}))
    assert values(made) == {"ray_init.num_cpus": 2, "ray_init.options.address": "auto"}


def test_values_and_groups_of_other_names():
    made = settings(("actor_rollout_ref.rollout.name", "sglang_async"))
    assert values(made) == {"actor_rollout_ref.rollout.name": "sglang"}
    assert made.notices
    grouped = settings(("engine", "megatron"), ("optim", "fsdp"), job="sft")
    assert values(grouped) == {"model.strategy": "megatron"}
    assert grouped.errors == []


def test_text_stays_as_typed():
    made = Settings(tree())
    made.add_all([Entry("trainer.experiment_name", 7, "here", "007")])
    assert values(made) == {"trainer.experiment_name": "007"}


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("data.train_batchsize", "data.train_batch_size"),
        ("actor.optim.lr", "actor_rollout_ref.actor.optim.lr"),
        ("use_kl_loss", "actor_rollout_ref.actor.use_kl_loss"),
        ("algorithm.adv_estimater", "algorithm.adv_estimator"),
        ("critic.optimizer.lr", "critic.optim.lr"),
        ("trainer.total_epoch", "trainer.total_epochs"),
    ],
)
def test_the_nearest_key_is_named(typo, meant):
    assert nearest_key(typo, tree()) == meant
    assert meant in str(unknown_key(typo, tree()))


@pytest.mark.parametrize(
    "key",
    [
        "actor_rollout_ref.actor.hyper_clip.enable",
        "actor_rollout_ref.rollout.kv_tiering.mode",
        "actor_rollout_ref.model.rope_scaling.factor",
        "retriever.url",
        "trainer.v2.mode",
    ],
)
def test_a_key_that_is_near_none_gets_no_suggestion(key):
    assert nearest_key(key, tree()) is None
    assert "leave it out" in str(unknown_key(key, tree()))


def test_keys_of_other_trainers_and_missing_sections_are_named():
    meant = {
        "actor_rollout_ref.actor.optim.learning_rate": "actor_rollout_ref.actor.optim.lr",
        "algorithm.kl_coef": "algorithm.kl_ctrl.kl_coef",
        "trainer.train_batch_size": "data.train_batch_size",
        "trainer.eval_steps": "trainer.test_freq",
    }
    assert {key: nearest_key(key, tree()) for key in meant} == meant
    assert nearest_key("actor_rollout_ref.rolout", tree(), sections=True) == "actor_rollout_ref.rollout"


def test_a_spelling_that_refers_to_another_spelling_is_no_conflict():
    tool = "actor_rollout_ref.actor.profiler.tool_config"
    chosen = Settings(tree())
    other = "global_profiler.global_tool_config.nsys.discrete"
    chosen.add_all([Entry(f"{tool}.nsys.discrete", f"${{oc.select:{other}}}", "x"), Entry(other, True, "x")])
    assert chosen.errors == []
    assert chosen.values["actor_rollout_ref.actor.profiler.discrete"].value is True
