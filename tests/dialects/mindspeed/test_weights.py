"""load and finetune: which weights a run starts from, and what it goes on from."""

import json

from .configs import items, refusals, translate

LOAD = ("actor_config.load", "./megatron")
RESUME = ("actor_config.finetune", False)


def test_megatron_weights_are_those_of_the_folder():
    translation = translate(LOAD)
    assert translation.exit_status == 0
    assert "tokenizer_name_or_path" in items(translation, LOAD[0])[0].why


def test_they_are_refused_where_that_folder_has_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert "model.safetensors" in refusals(translate(LOAD))[LOAD[0]]
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    assert refusals(translate(LOAD)) == {}


def test_a_megatron_checkpoint_cannot_be_gone_on_from():
    assert "finetune: true" in refusals(translate(LOAD, RESUME))[LOAD[0]]


def test_load_that_is_save_goes_on_from_the_newest():
    settings = translate(LOAD, RESUME, ("actor_config.save", "./megatron")).settings
    assert settings.get("trainer.resume_mode", "auto") == "auto"
    assert settings["trainer.default_local_dir"] == "./megatron"


def test_one_of_our_checkpoints_is_gone_on_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = tmp_path / "run" / "global_step_4"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text(json.dumps({}))
    one = translate(RESUME, ("actor_config.load", "run/global_step_4")).settings
    assert (one["trainer.resume_mode"], one["trainer.resume_from_path"]) == ("resume_path", "run/global_step_4")
    whole = translate(RESUME, ("actor_config.load", "run"))
    assert "global_step_N" in refusals(whole)["actor_config.load"]


def test_a_default_is_to_go_on():
    """finetune is off where it is missing; without `load` there is nothing to go on from."""
    settings = translate("actor_config.finetune").settings
    assert settings["trainer.resume_mode"] == "disable"


def test_contents_of_a_resumed_checkpoint():
    kept = ("actor_config.save", "./megatron")
    settings = translate(LOAD, RESUME, kept, ("actor_config.no_load_optim", True)).settings
    assert settings["actor_rollout_ref.actor.checkpoint.load_contents"] == ["model"]
    fresh = translate(LOAD, ("actor_config.no_load_optim", True))
    assert items(fresh, "actor_config.no_load_optim")[0].status == "inert"
    assert "seed and step" in items(translate(("actor_config.no_save_rng", True)), "actor_config.no_save_rng")[0].why
