"""What a finished run leaves: a model, a record, a summary; and what a second start says."""

import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.errors import UserError
from burnish.log.folder import RunFolder
from burnish.loop.fit import fit
from burnish.models.load import ModelSource, load_causal_lm
from burnish.training.export import loadable_path

LORA = ("actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.model.lora_alpha=8")


def trained(run):
    return run.learner.policy.backend.model.state_dict()


def test_a_finished_run_leaves_a_model_and_a_result_loads_it(make_run, tmp_path):
    run = make_run("trainer.logger=[file]")
    result = fit(run)
    assert result.model_path == tmp_path / "run" / "model" and result.status == 0
    model, tokenizer = result.load()
    weights = trained(run)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert model.generation_config.eos_token_id is not None
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(result.model_path).get_vocab()
    assert not list(tmp_path.glob("run/.model*"))


def test_the_summary_names_model_validation_time_and_next_commands(launch, rows, tmp_path):
    launch("trainer.logger=[file]", "trainer.test_freq=1", "trainer.save_freq=1", val_dataset=rows(2))
    notes = (tmp_path / "run" / "notes.txt").read_text()
    assert "finished: 2 steps in " in notes and f"model: {tmp_path / 'run' / 'model'}" in notes
    assert "validation: last " in notes and "best " in notes
    for command in ("burnish generate model.path=", "burnish eval data.path=", "burnish export ", "burnish view "):
        assert command in notes


def test_no_model_where_none_is_asked_for(launch, tmp_path):
    result = launch("trainer.save_final=false")
    assert result.model_path is None and not (tmp_path / "run" / "model").exists()
    with pytest.raises(UserError, match="left no model"):
        result.load()


def test_an_interrupted_run_leaves_none(launch, ctrl_c_at, tmp_path):
    result = launch("trainer.total_training_steps=5", reward=ctrl_c_at(3))
    assert result.model_path is None and not (tmp_path / "run" / "model").exists()


def test_adapters_are_merged_into_the_model(make_run, tmp_path):
    run = make_run(*LORA)
    result = fit(run)
    merged = dict(run.learner.policy.backend.weights())
    model = AutoModelForCausalLM.from_pretrained(result.model_path)
    assert all(torch.equal(weight, merged[name]) for name, weight in model.named_parameters())


def test_weights_of_the_last_checkpoint_are_not_written_again(launch, tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.loop.finish.SMALL_FILE", 0)
    contents = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
    result = launch("trainer.save_freq=1", contents, f"trainer.export_dir={tmp_path / 'out'}")
    files = [
        result.folder / "global_step_2" / "actor" / "huggingface" / "model.safetensors",
        result.model_path / "model.safetensors",
        tmp_path / "out" / "model.safetensors",
    ]
    assert len({file.stat().st_ino for file in files}) == 1


def test_the_same_command_again_says_already_finished(launch, capfd, tmp_path):
    first = launch("trainer.save_freq=1")
    weights = (first.model_path / "model.safetensors").stat().st_mtime_ns
    capfd.readouterr()
    second = launch("trainer.save_freq=1")
    said = capfd.readouterr().out
    assert said.startswith("already finished: 2 steps in ") and "trainer.total_training_steps=" in said
    assert "/another/folder" in said
    assert second.status == 0 and second.step == 2 and second.model_path == first.model_path
    assert (first.model_path / "model.safetensors").stat().st_mtime_ns == weights
    assert launch("trainer.save_freq=1", "trainer.total_training_steps=3").step == 3, "more steps go on"


def test_a_finished_run_without_checkpoints_is_not_trained_over(launch, capfd):
    first = launch()
    weights = (first.model_path / "model.safetensors").read_bytes()
    assert launch().step == 2 and "already finished" in capfd.readouterr().out
    with pytest.raises(UserError, match=r"rollout\.n: 2 -> 4"):
        launch("actor_rollout_ref.rollout.n=4")
    with pytest.raises(UserError, match="without a checkpoint, so that it cannot be extended"):
        launch("trainer.total_training_steps=3")
    assert (first.model_path / "model.safetensors").read_bytes() == weights
    assert launch("actor_rollout_ref.rollout.n=4", "trainer.resume_mode=disable").step == 2


def test_a_run_that_died_before_its_model_was_written_writes_it(launch, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr("burnish.loop.fit.leave_model", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            launch("trainer.save_freq=1")
    assert not (tmp_path / "run" / "model").exists()
    assert launch("trainer.save_freq=1").model_path == tmp_path / "run" / "model"


def test_a_full_disk_is_called_so(make_run, monkeypatch):
    run = make_run()

    def refuse(folder, tokenizer):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.learner.policy, "export", refuse)
    with pytest.raises(UserError, match=r"disk full: cannot write the model to .*run/model"):
        fit(run)
    assert not run.recorder.folder.finished.exists()


# Model paths


@pytest.mark.parametrize("where", ["run", "run/global_step_2", "run/global_step_2/actor", "run/model"])
def test_run_and_checkpoint_folders_are_model_paths(launch, make_run, tmp_path, monkeypatch, where):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    result = launch("trainer.save_freq=1")
    weights = result.load().model.state_dict()
    path = loadable_path(str(tmp_path / where), "model.path")
    model = load_causal_lm(ModelSource(path), None, torch.float32)
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert path == loadable_path(str(tmp_path / where), "model.path")


def test_training_starts_from_another_run(launch, make_run, tmp_path):
    launch(out="first")
    run = make_run(f"actor_rollout_ref.model.path={tmp_path / 'first'}", out="second")
    weights = trained(run)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "first" / "model")
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


# The lock

HOLD = """
import sys, time
from burnish.log.folder import RunFolder
with RunFolder(sys.argv[1]).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that trains in tmp_path/run."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_two_processes_do_not_train_in_one_folder(launch, holder):
    with pytest.raises(UserError, match=rf"process {holder.pid} on host \S+, since ") as caught:
        launch()
    assert caught.value.key == "trainer.default_local_dir"
    assert f"kill {holder.pid}" in caught.value.hint and "/another/folder" in caught.value.hint
    holder.kill()  # kill -9: the system releases the lock at once
    holder.wait()
    assert launch().step == 2


def test_a_lock_is_held_within_a_process_too_and_given_back(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        with pytest.raises(UserError, match=f"process {os.getpid()} on host"), RunFolder(tmp_path / "run").locked():
            raise AssertionError("locked twice")
        check = [sys.executable, "-c", HOLD, str(folder.path)]
        refused = subprocess.run(check, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert "another run is using this run folder" in refused.stderr, "the second attempt does not release the lock"
    with folder.locked():
        assert (folder.path / ".lock.json").exists()
    assert not (folder.path / ".lock.json").exists()
