"""--as, and Hydra's --cfg, on the command line."""

import json

import pytest

from burnish.cli.main import main
from burnish.cli.scripts.run import ASSUME_VARIABLE
from burnish.cli.scripts.run import main as run_shim

COMMAND = (
    *("python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "data.train_files=x.parquet"),
    *("actor_rollout_ref.model.path=m", "trainer.n_gpus_per_node=1"),
)


def convert(capsys, *words):
    assert main(["convert", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_convert_reports_the_assumed_version(capsys):
    (note,) = convert(capsys, "--", *COMMAND, "actor_rollout_ref.actor.tau_pos=1.0")["notes"]
    assert note.startswith("verl 0.7 is assumed: 0.5 does not have actor_rollout_ref.actor.tau_pos.")


def test_as_overrides_the_version(capsys, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(" ".join(COMMAND))
    for words in (("--", *COMMAND), (str(script),)):
        rollout = convert(capsys, "--as", "verl==0.7", *words)["config"]["actor_rollout_ref"]["rollout"]
        assert rollout["enforce_eager"] is False
        assert convert(capsys, *words)["config"]["actor_rollout_ref"]["rollout"]["enforce_eager"] is True


@pytest.mark.parametrize("command", ["convert", "doctor", "rehearse", "run"])
def test_unknown_version_fails(command, capsys):
    assert main([command, "--as", "verl==7", "--", *COMMAND]) != 0
    assert "no such version of verl is known" in capsys.readouterr().err


def test_cfg_prints_the_config_and_exits(capsys, monkeypatch):
    assert main(["run", "--as", "verl==0.7", "--", *COMMAND, "--cfg", "job"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("data:\n  train_files:\n  - x.parquet\n")
    assert "enforce_eager: false" in output
    monkeypatch.setenv(ASSUME_VARIABLE, "verl==0.5")  # set for the commands of a script
    assert run_shim([*COMMAND, "--cfg", "job"]) == 0
    assert "enforce_eager: true" in capsys.readouterr().out
