from __future__ import annotations

import json

import pytest

from burnish.errors import UserError
from burnish.log.folder import RunFolder, dump_rollouts, environment, new_id, persistent_id
from burnish.log.jsonl import read


def test_describe_writes_config_command_and_environment_without_secrets(tmp_path):
    folder = RunFolder(tmp_path / "a" / "run")
    command = ["burnish", "train", "x.api_key=hunter2", "name=two words"]
    folder.describe("lr: 1.0\nreward:\n  api_key: hunter2\n", command, device="cpu")
    folder.describe("lr: 2.0\n", command, device="cpu")
    assert folder.config.read_text() == "lr: 2.0\n"
    lines = folder.command.read_text().splitlines()
    assert len(lines) == 2 and lines[0].endswith("burnish train 'x.api_key=<hidden>' 'name=two words'")
    facts = json.loads(folder.environment.read_text())
    assert facts["device"] == "cpu"
    assert {"python", "platform", "burnish", "torch", "transformers"} <= set(facts)
    assert not any("hunter2" in path.read_text() for path in folder.path.iterdir())


def test_secrets_are_removed_from_the_config(tmp_path):
    folder = RunFolder(tmp_path)
    folder.describe("lr: 1.0\nreward:\n  api_key: hunter2\n", [])
    assert folder.config.read_text() == "lr: 1.0\nreward:\n  api_key: <hidden>\n"


def test_an_existing_file_is_a_user_error(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"trainer\.default_local_dir="):
        RunFolder(tmp_path / "taken" / "run")
    with pytest.raises(UserError, match=r"trainer\.default_local_dir="):
        RunFolder(tmp_path / "taken")


def test_environment_without_a_device():
    assert "device" not in environment()


def test_rollouts_have_the_named_fields_first_and_extras_after(tmp_path):
    rows = [
        {"acc": True, "input": "2+2=", "output": "四", "gts": "4", "score": 1.0, "uid": ("d", 0, 0)},
        {"input": "", "output": "", "gts": None, "score": float("nan")},
    ]
    path = dump_rollouts(tmp_path / "rollouts", 7, rows)
    assert path == tmp_path / "rollouts" / "7.jsonl"
    first, second = read(path)
    assert list(first) == ["input", "output", "gts", "score", "step", "acc", "uid"]
    assert first["step"] == 7 and first["output"] == "四" and first["uid"] == ["d", 0, 0]
    assert second["score"] == "NaN"
    assert [entry.name for entry in path.parent.iterdir()] == ["7.jsonl"]


def test_a_row_without_a_score_is_refused(tmp_path):
    with pytest.raises(KeyError, match="score"):
        dump_rollouts(tmp_path, 1, [{"input": "", "output": "", "gts": ""}])
    assert list(tmp_path.iterdir()) == []


def test_persistent_id_is_reused_only_on_resume(tmp_path):
    first = persistent_id(tmp_path, "wandb", new_id, resume=False)
    assert persistent_id(tmp_path, "wandb", new_id, resume=True) == first
    assert persistent_id(tmp_path, "mlflow", new_id, resume=True) != first
    assert persistent_id(tmp_path, "wandb", new_id, resume=False) != first
