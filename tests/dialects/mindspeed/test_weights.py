"""load and finetune: initial weights and resuming."""

import json

import pytest

from .configs import items, refusals, translate

LOAD = ("actor_config.load", "./megatron")
RESUME = ("actor_config.finetune", False)


MODEL = "actor_rollout_ref.model"


def test_weights_come_from_load_and_the_config_from_the_tokenizers_folder():
    """Nobody can tell from the paths whether `load` is the base model or an SFT checkpoint."""
    translation = translate(LOAD)
    assert translation.exit_status == 0
    assert translation.settings[f"{MODEL}.path"] == "./megatron"
    assert translation.settings[f"{MODEL}.tokenizer_path"] == "./model"
    assert translation.settings[f"{MODEL}.hf_config_path"] == "./model"
    (item,) = items(translation, LOAD[0])
    assert "Hugging Face format" in item.why
    assert "remove load" in item.why


@pytest.mark.parametrize("load", [None, "./model/", "model"])
def test_without_another_folder_weights_come_from_the_tokenizers(load):
    settings = translate(("actor_config.load", load)).settings
    assert settings[f"{MODEL}.path"] == "./model"
    assert f"{MODEL}.tokenizer_path" not in settings


def test_a_reference_of_its_own_weights():
    key, base = "rl_config.integrated_mode_config", {"ref_model_load_path": "./base"}
    assert translate((key, base)).settings["actor_rollout_ref.ref.model.path"] == "./base"
    assert "actor_rollout_ref.ref.model.path" not in translate((key, base), ("rl_config.init_kl_coef", 0)).settings
    assert "actor_rollout_ref.ref.model.path" not in translate((key, {"ref_model_load_path": "./model"})).settings


@pytest.mark.parametrize(("load", "path"), [("./base", "./base"), ("./model", None), ("./policy", None), (None, None)])
def test_a_reference_with_a_worker_of_its_own_has_the_weights_of_its_section(load, path):
    translation = translate(("ref_config", {"load": load}), ("actor_config.load", "./policy"))
    assert translation.settings.get("actor_rollout_ref.ref.model.path") == (path if load != "./model" else "./model")


def test_a_critic_of_its_own_weights():
    critic = ("critic_config", {"lr": 1e-6, "load": "./critic", "finetune": True})
    stage = (("megatron_training.stage", "ray_ppo"), ("rl_config.adv_estimator", "gae"))
    settings = translate(*stage, critic).settings
    assert settings["critic.model.path"] == "./critic"
    assert settings[f"{MODEL}.path"] == "./model"


@pytest.mark.parametrize("file", ["latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model_optim_rng.pt"])
@pytest.mark.parametrize("changes", [(LOAD,), (LOAD, RESUME), (LOAD, RESUME, ("actor_config.save", "./megatron"))])
def test_a_megatron_checkpoint_on_this_machine_is_refused(tmp_path, monkeypatch, file, changes):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "megatron" / file).parent.mkdir(parents=True)
    (tmp_path / "megatron" / file).write_bytes(b"")
    why = refusals(translate(*changes))[LOAD[0]]
    assert "Megatron checkpoint" in why
    assert "Hugging Face" in why


def test_resuming_from_a_megatron_checkpoint_is_refused():
    assert "finetune: true" in refusals(translate(LOAD, RESUME))[LOAD[0]]


def test_load_equal_to_save_resumes_from_the_newest():
    settings = translate(LOAD, RESUME, ("actor_config.save", "./megatron")).settings
    assert settings.get("trainer.resume_mode", "auto") == "auto"
    assert settings["trainer.default_local_dir"] == "./megatron"


def test_resuming_from_a_burnish_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = tmp_path / "run" / "global_step_4"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text(json.dumps({}))
    settings = translate(RESUME, ("actor_config.load", "run/global_step_4")).settings
    assert (settings["trainer.resume_mode"], settings["trainer.resume_from_path"]) == (
        "resume_path",
        "run/global_step_4",
    )
    run_folder = translate(RESUME, ("actor_config.load", "run"))
    assert "global_step_N" in refusals(run_folder)["actor_config.load"]


def test_without_load_nothing_is_resumed():
    """finetune is off by default; without `load` there is nothing to resume from."""
    settings = translate("actor_config.finetune").settings
    assert settings["trainer.resume_mode"] == "disable"


def test_contents_of_a_resumed_checkpoint():
    save = ("actor_config.save", "./megatron")
    settings = translate(LOAD, RESUME, save, ("actor_config.no_load_optim", True)).settings
    assert settings["actor_rollout_ref.actor.checkpoint.load_contents"] == ["model"]
    fresh = translate(LOAD, ("actor_config.no_load_optim", True))
    assert items(fresh, "actor_config.no_load_optim")[0].status == "inert"
    assert "seed and step" in items(translate(("actor_config.no_save_rng", True)), "actor_config.no_save_rng")[0].why
