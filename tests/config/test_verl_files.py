"""What verl's own config files say, without having them."""

import pytest

from burnish.config.overrides import flat
from burnish.config.settings import Settings
from burnish.config.tree import tree
from burnish.config.verl_files import VERL_FILES


@pytest.mark.parametrize("name", VERL_FILES)
def test_every_file_sets_keys_of_a_job(name):
    settings = Settings(tree("sft" if "sft" in name else "train"))
    settings.add_all(flat(VERL_FILES[name], name))
    assert settings.errors == []
    assert settings.notices == []  # our own names


def test_files_that_build_on_others_hold_them():
    megatron = VERL_FILES["dapo_megatron_trainer"]
    assert megatron["actor_rollout_ref"]["actor"]["strategy"] == "megatron"
    assert megatron["reward_model"]["reward_manager"] == "dapo"
    assert "reward_model" not in VERL_FILES["ppo_megatron_trainer"]
