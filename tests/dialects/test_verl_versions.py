"""Which version of verl a command was written for, and the defaults of that version."""

import pytest

from burnish.dialects.report import CONVERTED, REFUSED
from burnish.dialects.translate import translate_command, translate_yaml
from burnish.dialects.verl.versions import ASSUMED, SINCE, UNTIL, VERSIONS, assume_version, parse_version
from burnish.errors import UserError

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"
MEGATRON = ("--config-path=config", "--config-name=ppo_megatron_trainer")


def verl(*argv, entry="verl.trainer.main_ppo", assume=None, folder="."):
    return translate_command(["python3", "-m", entry, *argv], folder, assume)


def version_of(translation):
    (note,) = translation.notes
    return note.split()[1]


@pytest.mark.parametrize(
    ("argv", "version"),
    [
        ((), ASSUMED),
        (("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=5", "trainer.logger=[console]"), ASSUMED),
        ((f"{ACTOR}.fsdp_config.grad_offload=False",), "0.2"),
        (("+trainer.val_before_train=False",), "0.2"),
        (("trainer.val_before_train=False",), ASSUMED),
        ((f"{ROLLOUT}.multi_turn.max_turns=3",), "0.4.1"),
        ((f"{ROLLOUT}.name=sglang_async",), "0.4.1"),
        ((f"{ROLLOUT}.name=sglang",), "0.5"),
        ((f"{ACTOR}.policy_loss.loss_mode=clip_cov",), "0.5"),
        ((f"{ACTOR}.policy_loss.loss_mode=cispo",), "0.7"),
        ((f"{ACTOR}.optim.lr_scheduler_type=cosine",), "0.7"),
        (("algorithm.rollout_correction.rollout_is=token",), "0.7"),
        (("ray_kwargs.ray_init.num_cpus=4",), "0.7"),
        (("reward.reward_manager.name=dapo",), "0.8"),
        ((f"{ACTOR}.policy_loss.loss_mode=dppo_tv",), "0.8"),
        (("algorithm.adv_estimator=optimal_token_baseline",), "0.8"),
        (("critic.fsdp.param_offload=True",), "0.9"),
        ((f"+{ACTOR}.optim.lr_scheduler_type=cosine",), ASSUMED),  # added, so the command's version lacks the key
    ],
)
def test_keys_imply_a_version(argv, version):
    translation = verl(*argv)
    assert version_of(translation) == version
    assert "--as verl==VERSION overrides" in translation.notes[0]


def test_programs_imply_a_version():
    assert version_of(verl(entry="verl.experimental.one_step_off_policy.main_ppo")) == "0.7"
    assert version_of(verl(entry="recipe.one_step_off_policy.main_ppo")) == "0.5"
    assert translate_command(["burnish", "train", "critic.fsdp.param_offload=true"]).notes == []


def test_note_names_the_keys():
    note = verl(f"{MODEL}.lora.rank=8", f"{ROLLOUT}.data_parallel_size=1").notes[0]
    assert note.startswith(f"verl 0.7 is assumed: 0.5 does not have {MODEL}.lora.rank or {ROLLOUT}.data_parallel_size.")


def test_conflicting_keys_are_reported_and_the_newer_wins():
    translation = verl("ray_init.num_cpus=4", f"{ACTOR}.optim.lr_scheduler_type=cosine")
    assert version_of(translation) == "0.7"
    assert "Only older versions have ray_init.num_cpus: the newer of both is assumed." in translation.notes[0]
    assert translation.count(REFUSED) == 0


@pytest.mark.parametrize(
    ("version", "values"),
    [
        ("0.4.1", {f"{ROLLOUT}.enforce_eager": True}),
        ("0.5", {f"{ROLLOUT}.enforce_eager": True, f"{ROLLOUT}.mode": None}),
        ("0.7", {f"{ROLLOUT}.enforce_eager": False, f"{ROLLOUT}.mode": "async", f"{ACTOR}.data_loader_seed": 42}),
        ("0.8", {f"{ROLLOUT}.enforce_eager": False, f"{ROLLOUT}.max_num_seqs": None}),
        ("0.9", {f"{ROLLOUT}.max_num_seqs": 256}),
    ],
)
def test_defaults_of_a_version(version, values):
    # An engine of several devices is a server whatever rollout.mode says.
    settings = verl(f"{ROLLOUT}.tensor_model_parallel_size=1", assume=f"verl=={version}").settings
    assert {key: settings.get(key) for key in values} == values
    assert settings[f"{ROLLOUT}.name"] == "vllm"  # the same in all


@pytest.mark.parametrize(
    ("version", "decay", "checkpointing", "tensor_parallel"),
    [
        ("0.4.1", "linear", False, 1),
        ("0.5", "constant", False, 1),
        ("0.7", "constant", True, 2),
        ("0.8", "constant", True, 2),
    ],
)
def test_megatron_defaults_of_a_version(version, decay, checkpointing, tensor_parallel):
    translation = verl(*MEGATRON, assume=f"verl=={version}")
    settings = {item.ours: item.ours_value for item in translation.items}
    assert settings.get(f"{ACTOR}.optim.lr_decay_style", "constant") == decay
    assert settings.get("critic.optim.lr_decay_style", "constant") == decay
    assert settings.get(f"{MODEL}.enable_gradient_checkpointing", True) is checkpointing
    assert settings.get(f"{ROLLOUT}.tensor_model_parallel_size", 1) == tensor_parallel


def test_users_settings_win_over_defaults_of_a_version():
    settings = verl(*MEGATRON, f"{ACTOR}.optim.lr_decay_style=cosine", assume="verl==0.4.1").settings
    assert settings[f"{ACTOR}.optim.lr_decay_style"] == "cosine"
    eager = verl(f"{ROLLOUT}.enforce_eager=True", f"{ACTOR}.optim.lr_scheduler_type=cosine")
    assert eager.settings[f"{ROLLOUT}.enforce_eager"] is True


def test_reference_follows_the_policy_in_newer_versions():
    argv = (*MEGATRON, f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.megatron.tensor_model_parallel_size=4")
    key = f"{REF}.megatron.tensor_model_parallel_size"
    assert verl(*argv, assume="verl==0.7").settings[key] == 4
    assert key not in verl(*argv, assume="verl==0.5").settings
    assert verl(*argv, f"{key}=2", assume="verl==0.7").settings[key] == 2


def test_zero_warmup_steps_use_the_ratio_in_the_newest_version():
    argv = (f"{ACTOR}.optim.lr_warmup_steps=0", f"{ACTOR}.optim.lr_warmup_steps_ratio=0.1")
    assert verl(*argv, assume="verl==0.8").settings[f"{ACTOR}.optim.lr_warmup_steps"] == 0
    newest = verl(*argv, assume="verl==0.9")
    assert newest.settings[f"{ACTOR}.optim.lr_warmup_steps"] == -1
    assert CONVERTED in [item.status for item in newest.items if item.theirs == f"{ACTOR}.optim.lr_warmup_steps"]


def test_interpolations_see_verls_defaults():
    settings = verl("trainer.experiment_name=${trainer.project_name}-a").settings
    assert settings["trainer.experiment_name"] == "verl_examples-a"


def test_files_that_build_on_verls(tmp_path):
    text = "defaults:\n  - ppo_megatron_trainer\n  - _self_\nactor_rollout_ref:\n  actor:\n    optim:\n      lr: 1e-5\n"
    (tmp_path / "mine.yaml").write_text(text)
    for assume, decay in ((None, "constant"), ("verl==0.4.1", "linear")):
        by_name = verl(f"--config-path={tmp_path}", "--config-name=mine", assume=assume)
        by_path = translate_yaml(str(tmp_path / "mine.yaml"), (), assume)
        for translation in (by_name, by_path):
            assert translation.settings.get(f"{ACTOR}.optim.lr_decay_style", "constant") == decay
            assert translation.settings[f"{ACTOR}.optim.lr"] == 1e-5
            assert len(translation.notes) == 1


@pytest.mark.parametrize(
    ("text", "version"), [("0.7", "0.7"), ("0.7.1", "0.7"), ("v0.5.0", "0.5"), ("0.4", "0.4.1"), ("0.4.0", "0.4.1")]
)
def test_spellings_of_a_version(text, version):
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["verl==1.9", "verl", "verl=0.7", "openrlhf==0.9", "verl==new", "verl=="])
def test_unknown_versions_are_refused(text):
    with pytest.raises(UserError) as caught:
        verl(assume=text)
    assert caught.value.key == "--as"
    assert caught.value.hint == "--as verl==0.7"


def test_other_dialects_have_no_versions():
    with pytest.raises(UserError, match="only the defaults of verl depend on its version"):
        translate_command(["python3", "-m", "openrlhf.cli.train_sft", "--pretrain", "m"], assume="verl==0.7")


def test_tables_name_versions_in_order():
    for table in (SINCE, UNTIL):
        positions = [VERSIONS.index(version) for version in table]
        assert positions == sorted(positions)
    assert assume_version(["data.seed=1"]).version == ASSUMED


@pytest.mark.parametrize(
    ("version", "theirs", "ours"),
    [("0.5", "left", "right"), ("0.7", "right", "left"), ("0.7", "middle", "middle"), ("0.8", "left", "left")],
)
def test_the_truncated_side_means_what_it_meant_in_the_version(version, theirs, ours):
    key = f"{ROLLOUT}.multi_turn.tool_response_truncate_side"
    translation = verl(f"{key}={theirs}", assume=f"verl=={version}")
    (item,) = [item for item in translation.items if item.theirs == key]
    assert translation.settings[key] == item.ours_value == ours
    assert (item.status == CONVERTED) == (theirs != ours)
    if theirs != ours:
        assert item.why.startswith(f"in verl {version}, {theirs} names the side that is kept")
    assert translate_command(["burnish", "train", f"{key}=left"]).settings[key] == "left"  # our own meaning


def test_conversations_of_the_oldest_version_have_no_limits_of_tools():
    names = ("max_parallel_calls", "max_tool_response_length")
    turns = f"{ROLLOUT}.multi_turn"
    oldest = verl(f"{turns}.enable=True", assume="verl==0.4.1").settings
    assert [oldest[f"{turns}.{name}"] for name in names] == [None, None]
    for settings in (verl(assume="verl==0.4.1").settings, verl(f"{turns}.enable=True", assume="verl==0.5").settings):
        assert not any(f"{turns}.{name}" in settings for name in names)


TURNS = f"{ROLLOUT}.multi_turn"
LOOP = f"{ROLLOUT}.agent.default_agent_loop"
TOOLS = (f"{TURNS}.enable=True", f"{TURNS}.tool_config_path=tools.yaml", f"{ROLLOUT}.name=sglang")


@pytest.mark.parametrize(
    ("version", "mode", "is_older"),
    [
        *(("0.4.1", (), True), ("0.5", (), True), ("0.5", (f"{ROLLOUT}.mode=async",), False)),
        *(("0.6", (), False), ("0.6", (f"{ROLLOUT}.mode=sync",), True), ("0.7", (), False), ("0.9", (), False)),
    ],
)
def test_what_counts_as_a_user_turn_and_who_uses_tools_by_version(version, mode, is_older):
    translation = verl(*TOOLS, *mode, f"{TURNS}.max_user_turns=4", assume=f"verl=={version}")
    (item,) = [item for item in translation.items if item.theirs == f"{TURNS}.max_user_turns"]
    ours = f"{TURNS}.{'max_interaction_turns' if is_older else 'max_user_turns'}"
    assert (item.ours, translation.settings[ours], item.status == CONVERTED) == (ours, 4, is_older)
    assert not is_older or f"{TURNS}.max_user_turns" not in translation.settings
    assert translation.settings.get(LOOP) == (None if is_older else "single_turn_agent")
    if not is_older:
        (item,) = [item for item in translation.items if item.ours == LOOP]
        assert "only rows whose agent_name is tool_agent" in item.why and f"{LOOP}=tool_agent" in item.why


def test_what_enable_does_by_version():
    off = verl(f"{TURNS}.enable=False", *TOOLS[1:], assume="verl==0.4.1")
    assert off.settings[LOOP] == "single_turn_agent"
    given = verl(*TOOLS, f"{LOOP}=tool_agent", assume="verl==0.8")
    assert given.settings[LOOP] == "tool_agent"
    for version in ("0.5", "0.8"):  # nothing to talk to: one turn
        alone = verl(f"{TURNS}.enable=True", assume=f"verl=={version}")
        (item,) = [item for item in alone.items if item.theirs == f"{TURNS}.enable"]
        assert (item.status, item.ours_value, alone.settings[f"{TURNS}.enable"]) == (CONVERTED, False, False)


def test_the_oldest_versions_subtract_the_kl_from_the_reward():
    """Unless it is in the loss; their loss has no dual clip, and an entropy bonus."""
    old = verl("+trainer.val_before_train=False").settings
    assert (old["algorithm.use_kl_in_reward"], old[f"{ACTOR}.clip_ratio_c"]) == (True, None)
    assert old[f"{ACTOR}.entropy_coeff"] == verl(assume="verl==0.3").settings[f"{ACTOR}.entropy_coeff"] == 0.001
    for argv in ((f"{ACTOR}.use_kl_loss=True", "+trainer.val_before_train=False"), ()):
        assert verl(*argv).settings.get("algorithm.use_kl_in_reward", False) is False
    assert f"{ACTOR}.entropy_coeff" not in verl().settings
