"""burnish export --push: the real client of the hub, against a stand-in of its HTTP API (tests/standins/hub.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from huggingface_hub import HfApi, constants

from burnish.cli.main import main
from burnish.errors import UserError
from burnish.jobs.push import check_repo, push
from tests.standins.hub import TOKEN, HubStandIn


@pytest.fixture
def hub(monkeypatch):
    """The stand-in, as the hub of this process."""
    server = HubStandIn()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.close()


@pytest.fixture
def run_folder(tmp_path):
    """A finished run with a model of one weight, and settings that must not be published."""
    run = tmp_path / "home" / "alice" / "secret-project" / "run"
    (run / "model").mkdir(parents=True)
    safetensors.torch.save_file({"weight": torch.ones(2)}, run / "model" / "model.safetensors", {"format": "pt"})
    (run / "model" / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"]}')
    settings = {
        "algorithm": {"adv_estimator": "grpo"},
        "actor_rollout_ref": {"model": {"path": "Qwen/Qwen2.5-0.5B"}, "rollout": {"n": 8}},
        "data": {"train_files": ["/scratch/alice/data/gsm8k.parquet"], "max_response_length": 77},
        "trainer": {"default_local_dir": str(run), "export_dir": "/srv/alice/out", "total_training_steps": 2},
    }
    (run / "config.yaml").write_text(json.dumps(settings))
    command = f"/scratch/alice/bin/burnish train data.train_files=/scratch/alice/data/gsm8k.parquet +x.api_key={TOKEN}"
    (run / "command.txt").write_text(f"2026-01-01T00:00:00+00:00 {command}\n")
    (run / "environment.json").write_text('{"burnish": "0.2.0", "torch": "2.11.0", "platform": "Linux-of-alice"}')
    (run / "finished.json").write_text('{"step": 2, "total_steps": 2}')
    rows = [{"val-core/gsm8k`|x/acc/mean@1": 0.5, "critic/score/mean": 0.1}, {"val-core/gsm8k`|x/acc/mean@1": 0.25}]
    lines = [json.dumps({"step": step, "data": row}) for step, row in enumerate(rows, 1)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return run


def test_export_pushes_model_card_and_curves(hub, run_folder, capsys):
    assert main(["export", str(run_folder), "--push", "ada/sorter"]) == 0
    assert f"-> {hub.url}/ada/sorter" in capsys.readouterr().out.replace("\n", "")
    repository = hub.repositories["ada/sorter"]
    assert repository.private
    assert set(repository.files) == {"README.md", "config.json", "curves.png", "model.safetensors"}
    assert repository.files["model.safetensors"] == (run_folder / "model" / "model.safetensors").read_bytes()
    assert repository.files["curves.png"].startswith(b"\x89PNG")
    card = repository.files["README.md"].decode()
    assert card.startswith("---\nbase_model: Qwen/Qwen2.5-0.5B\n") and "- grpo\n" in card
    for part in (
        "| training | `gsm8k.parquet` |",
        "# ada/sorter",
        "pipeline('text-generation', model='ada/sorter')",
        "| `data.max_response_length` | `77` |",
        "last 0.25 (step 2), best 0.5 (step 1)",
        "| `val-core/gsm8k'\\|x/acc/mean@1` | 0.5 | 0.25 |",
        "data.train_files=gsm8k.parquet",
        "burnish train",
        "| torch | `2.11.0` |",
        "![Metrics by step](curves.png)",
    ):
        assert part in card.replace(" \\\n   ", ""), part
    for private in ("alice", "/scratch", "/srv", str(run_folder.parent), TOKEN, "secret-project"):
        assert private not in card


def test_a_public_repository_is_made_or_used_only_on_request(hub, run_folder, tmp_path):
    assert main(["export", str(run_folder), str(tmp_path / "out"), "--push", "ada/open", "--no-private"]) == 0
    assert not hub.repositories["ada/open"].private
    before = dict(hub.repositories["ada/open"].files)
    with pytest.raises(UserError, match="exists and is public"):
        push(tmp_path / "out", "ada/open")
    assert hub.repositories["ada/open"].files == before and len(hub.repositories["ada/open"].messages) == 1


@pytest.mark.parametrize(("path", "status"), [("/api/repos/create", 403), ("/preupload/", 500), ("/lfs/objects", 507)])
def test_refusals_of_the_hub_are_user_errors(hub, run_folder, monkeypatch, path, status):
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.fail = (path, status)
    with pytest.raises(UserError, match=rf"{status}.*refused by the stand-in") as error:
        push(run_folder / "model", "ada/x")
    assert error.value.key == "--push" and TOKEN not in error.value.text()


def test_an_unreachable_hub_is_a_user_error(hub, run_folder, monkeypatch):
    hub.close()
    with pytest.raises(UserError, match=f"cannot upload to {hub.url}: ConnectError") as error:
        push(run_folder / "model", "ada/x", retry="again")
    assert error.value.hint == "again"


def test_names_tokens_and_offline_mode_are_checked_before_the_export(hub, run_folder, tmp_path, monkeypatch, capsys):
    assert main(["export", str(run_folder), str(tmp_path / "out"), "--push", "a/b/c"]) == 1
    assert "not a name of a repository" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        check_repo("ada/x")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UserError, match="no token"):
        check_repo("ada/x")
    assert not (tmp_path / "out").exists() and hub.requests == []
    assert main(["export", str(run_folder)]) == 1
    assert "no output folder" in capsys.readouterr().err


@pytest.mark.long
def test_the_command_pushes_to_the_hub_of_the_environment(run_folder):
    hub = HubStandIn()
    variables = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-m", "burnish", "export", str(run_folder), "--push", "mine"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    hub.close()
    assert done.returncode == 0, done.stderr
    assert "README.md" in hub.repositories["ada/mine"].files
    assert TOKEN not in done.stdout + done.stderr


def test_the_stand_in_refuses_other_tokens(hub):
    from huggingface_hub.errors import HfHubHTTPError

    with pytest.raises(HfHubHTTPError):
        HfApi(endpoint=hub.url, token="hf_other").create_repo("ada/x")
