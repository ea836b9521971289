"""load and finetune: initial weights and resuming."""

import json

from .configs import items, refusals, translate

LOAD = ("actor_config.load", "./megatron")
RESUME = ("actor_config.finetune", False)


def test_megatron_weights_are_replaced_by_hf_weights():
    translation = translate(LOAD)
    assert translation.exit_status == 0
    assert "tokenizer_name_or_path" in items(translation, LOAD[0])[0].why


def test_megatron_weights_without_hf_weights_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert "model.safetensors" in refusals(translate(LOAD))[LOAD[0]]
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    assert refusals(translate(LOAD)) == {}


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
