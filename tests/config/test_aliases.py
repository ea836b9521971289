"""Other spellings."""

import pytest

from burnish.config.aliases import ALIASES, GROUPS, VALUES, aliases_of, find_alias
from burnish.config.tree import tree


@pytest.mark.parametrize("job", ALIASES)
def test_an_alias_is_no_key_of_ours_and_its_targets_are(job):
    known = tree(job)
    for alias in ALIASES[job]:
        if "*" in alias.theirs:
            continue
        assert alias.theirs not in known.leaves, alias.theirs
        for target in alias.targets:
            assert known.find(target) is not None, target


def test_spellings_are_unique():
    for rows in ALIASES.values():
        theirs = [alias.theirs for alias in rows]
        assert len(set(theirs)) == len(theirs)


def test_stars_stand_for_the_same_text():
    _, targets = find_alias("critic.optim.lr_scheduler_type", "train")
    assert targets == ("critic.optim.warmup_style",)
    _, targets = find_alias("reward.sandbox_fusion.url", "train")
    assert targets == ("reward_model.sandbox_fusion.url",)


def test_the_first_row_decides():
    _, targets = find_alias("ray_kwargs.ray_init.num_cpus", "train")
    assert targets == ("ray_init.num_cpus",)


def test_the_other_spellings_of_a_key():
    assert "critic.optim.lr_scheduler_type" in aliases_of("critic.optim.warmup_style", "train")
    assert "trainer.val_generations_to_log_to_wandb" in aliases_of("trainer.log_val_generations", "train")


def test_values_and_groups_point_at_keys():
    assert all(key in tree().leaves for key, _ in VALUES)
    assert all(key in tree(job).leaves for (job, _, _), sets in GROUPS.items() for key in sets)


def test_a_converted_alias():
    alias, _ = find_alias("actor_rollout_ref.rollout.multi_turn.enable_tokenization_sanity_check", "train")
    assert (alias.convert(True), alias.convert(False)) == ("strict", "disable")
