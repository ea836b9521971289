"""Real commands and those of the seed: every flag translates, and only expected ones are refused."""

import re
from functools import cache

import pytest

from burnish.config import load
from burnish.errors import UserError

from .commands import cases, refused, shared, translate

REJECTION = "train_rejection_sampling_llama.sh"
# (version, script) -> flags that are expected to be refused.
EXPECTED_REFUSALS = {
    # Without --output_key, v0.9.2 has no responses and drops every row.
    ("0.9.2", REJECTION): {"--output_key"},
}
NUM_CASES = {"train_ppo_ray": 5, "train_sft": 6}


@cache
def translated_cases():
    translated = []
    for case in cases():
        program = case["entry"].removeprefix("openrlhf.cli.")
        if program in NUM_CASES:
            translated.append((case, program, translate(case["argv"], program=program)))
    return translated


def test_every_case_translates():
    translated = translated_cases()
    assert {program: sum(case[1] == program for case in translated) for program in NUM_CASES} == NUM_CASES
    for case, _, translation in translated:
        expected = EXPECTED_REFUSALS.get((case["version"], case["name"].rpartition("/")[2]), set())
        assert set(refused(translation)) == expected, case["name"]


def test_every_flag_of_a_case_has_an_item():
    for case, _, translation in translated_cases():
        flags = {word for word in case["argv"] if re.match(r"--[a-z]", word)}
        assert flags <= {item.theirs for item in translation.items}, case["name"]


def test_every_case_gives_a_config_that_loads():
    for case, _, translation in translated_cases():
        loaded = load(translation.overrides(), job=translation.job, check=False)
        assert {key: loaded.settings[key].value for key in translation.settings} == translation.settings, case["name"]
        assert translation.config()


def test_unsupported_programs_are_refused():
    others = {case["entry"] for case in cases()} - {f"openrlhf.cli.{program}" for program in NUM_CASES}
    assert len(others) >= 4
    for entry in others:
        with pytest.raises(UserError, match=rf"{entry}: .*Allowed: openrlhf\.cli\.train_ppo_ray"):
            translate("--pretrain m", program=entry.removeprefix("openrlhf.cli."))


def test_prorl_settings():
    (translation,) = [
        translation
        for case, _, translation in translated_cases()
        if case["version"] == "0.9.2" and "prorlv2" in case["name"]
    ]
    settings = translation.settings
    assert settings["actor_rollout_ref.actor.ppo_mini_batch_size"] == 8192 // 16
    assert settings["algorithm.rollout_correction.rollout_is_threshold"] == "0.5_5.0"
    assert settings["algorithm.adv_estimator"] == "reinforce_plus_plus_baseline"
    assert settings["algorithm.filter_groups.reward_range"] == [0.0, 1.0]
    (epochs,) = [item for item in translation.items if item.theirs == "--max_epochs"]
    assert epochs.ours_value == 100
    assert "Did you mean --num_episodes 100?" in epochs.why


def seed():
    return shared("seeds", "003_7fde56a900b6fd95.txt").read_text(encoding="utf-8")


def test_every_flag_of_the_seed_is_known():
    from burnish.dialects.openrlhf.flags import PPO

    flags = set(re.findall(r"--([a-z_0-9]+)", seed()))
    assert len(flags) == 95
    assert flags <= set(PPO)


def test_commands_of_the_seed_translate():
    blocks = [block for block in re.findall(r"```bash\n(.*?)```", seed(), re.S) if "\\\n" in block]
    assert len(blocks) == 3
    for block in blocks:
        translation = translate(block.replace("\\\n", " "))
        assert refused(translation) == {}
        assert load(translation.overrides(), check=False)
