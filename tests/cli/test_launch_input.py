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


def test_every_command_of_a_script_is_translated_or_named(capsys, tmp_path):
    script = tmp_path / "run.sh"
    known = " ".join(COMMAND)
    lines = [
        "python3 -m openrlhf.cli.serve_rm --port 5000 &",
        f"my_launcher {known}",
        "pkill -f verl.trainer.main_ppo",
        f"docker exec name bash -c 'cd /x; {known}'",
    ]
    script.write_text("\n".join(lines))
    assert main(["convert", "--json", str(script)]) == 4
    inside, wrapped, server = json.loads(capsys.readouterr().out)["notes"][-3:]
    assert inside == "The command runs in a container (docker): paths are those there."
    assert wrapped == "not translated: `my_launcher ...`, which may start verl.trainer.main_ppo"
    assert server.startswith("not translated: openrlhf.cli.serve_rm: start the reward server with OpenRLHF")


def notes_of(capsys, path):
    main(["convert", "--json", str(path)])
    return json.loads(capsys.readouterr().out)["notes"]


@pytest.mark.parametrize("between", ["    # the policy\n", "\n"])
def test_settings_that_a_comment_cuts_off_are_named(between, capsys, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"{' '.join(COMMAND)} \\\n{between}    +data.seed=3 \\\n    trainer.nnodes=1\n")
    note = notes_of(capsys, script)[-1]
    assert note.startswith("`+data.seed=3` is a command of its own: a comment or an empty line ends the command above")


def test_a_space_after_a_backslash_and_windows_line_endings_are_named(capsys, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"{' '.join(COMMAND)} \\ \n    trainer.nnodes=1\n")
    assert notes_of(capsys, script)[-1].startswith("a command has a word of spaces: a `\\` followed by a space")
    script.write_bytes(f"{' '.join(COMMAND)} \\\r\n    trainer.nnodes=1\r\n".encode())
    assert notes_of(capsys, script)[-1].endswith(f"Type: sed -i 's/\\r$//' {script}")


HEAD = """MASTER_ADDR="{name}"  # the main node
CURRENT_IP=$(ifconfig eth0 | grep -Eo 'inet ([0-9]+[.]){{3}}[0-9]+' | awk '{{print $NF}}')
if [ "$MASTER_ADDR" = "$CURRENT_IP" ]; then
  {command}
fi
"""


@pytest.mark.parametrize("name", ["localhost", "IP OF THE MAIN NODE", "192.168.7.1"])
def test_a_script_runs_on_its_head_node_whatever_it_calls_it(name, capsys, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(HEAD.format(name=name, command=" ".join(COMMAND)))
    note = f"MASTER_ADDR={name}: taken as the address of the machine that starts the script"
    assert (note in notes_of(capsys, script)) is (not name[0].isdigit())


def test_a_script_that_starts_nothing_says_how_it_ended(capsys, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f'if [ "$#" -lt 1 ]; then echo "usage: run.sh MODEL" >&2; exit 3; fi\n{" ".join(COMMAND)}\n')
    assert main(["convert", str(script)]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "the script ended with status 3: usage: run.sh MODEL" in error
    assert "NAME=value burnish convert SCRIPT.sh ARGUMENTS" in error
    assert main(["convert", str(script), "m"]) == 0


def test_commands_of_other_places_are_not_run_here(capsys):
    assert main(["run", "--", "docker", "run", "image", *COMMAND]) == 1
    assert "runs in a container (docker)" in capsys.readouterr().err
