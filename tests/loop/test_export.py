import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.errors import UserError
from burnish.loop.export import check_export_dir
from burnish.loop.fit import fit


def test_the_trained_policy_is_a_folder_that_hugging_face_reads(make_run, tmp_path):
    run = make_run(f"trainer.export_dir={tmp_path / 'out' / 'trained'}", "trainer.logger=[file]")
    fit(run)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "trained")
    trained = run.learner.policy.backend.model.state_dict()
    assert all(torch.equal(weight, trained[name]) for name, weight in model.state_dict().items())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "trained")
    assert tokenizer.get_vocab() == run.recorder.tokenizer.get_vocab()
    assert f"exported the model to {tmp_path / 'out' / 'trained'}" in (tmp_path / "run" / "notes.txt").read_text()


def test_an_interrupted_run_exports_nothing(launch, ctrl_c_at, tmp_path):
    result = launch(f"trainer.export_dir={tmp_path / 'trained'}", "trainer.total_training_steps=5", reward=ctrl_c_at(3))
    assert result.interrupted and list((tmp_path / "trained").iterdir()) == []


def test_what_else_is_in_the_folder_stays(launch, tmp_path):
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "mine.txt").write_text("kept")
    launch(f"trainer.export_dir={tmp_path / 'trained'}")
    assert (tmp_path / "trained" / "mine.txt").read_text() == "kept"
    assert (tmp_path / "trained" / "model.safetensors").exists()


def test_a_folder_that_cannot_be_made_stops_the_run_before_it_begins(make_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the policy there") as caught:
        make_run(f"trainer.export_dir={tmp_path / 'file' / 'trained'}")
    assert caught.value.key == "trainer.export_dir"
    assert check_export_dir(None) is None
