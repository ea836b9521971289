"""The program behind a launch command."""

import json

import pytest

from burnish.dialects.invocation import read_command
from burnish.errors import UserError

MODULE = "verl.trainer.main_ppo"
ARGV = ("data.train_batch_size=8", "+a.b='x y'", "--config-name=ppo_trainer")


@pytest.mark.parametrize(
    "before",
    [
        ["python3", "-m"],
        ["python", "-u", "-m"],
        ["/opt/env/bin/python3.11", "-X", "faulthandler", "-W", "ignore", "-m"],
        ["nohup", "python3", "-m"],
        ["env", "-u", "PYTHONPATH", "python3", "-m"],
        ["sudo", "-E", "-u", "me", "python3", "-m"],
        ["stdbuf", "-oL", "python3", "-m"],
        ["timeout", "-k", "5", "10h", "python3", "-m"],
        ["srun", "-N", "2", "--ntasks-per-node=1", "python3", "-m"],
        ["uv", "run", "python3", "-m"],
        ["conda", "run", "--no-capture-output", "-n", "rl", "python3", "-m"],
        ["ray", "job", "submit", "--address=http://1.2.3.4:8265", "--no-wait", "--", "python3", "-m"],
        ["ray", "job", "submit", "--address", "http://1.2.3.4:8265", "python3", "-m"],
        ["torchrun", "--standalone", "--nproc_per_node", "8", "-m"],
        ["python3", "-m", "torch.distributed.run", "--nproc_per_node=8", "-m"],
        ["deepspeed", "--module"],
        ["deepspeed", "--include", "localhost:0,1", "--module"],
        ["accelerate", "launch", "--multi_gpu", "--num_processes", "8", "-m"],
    ],
    ids=" ".join,
)
def test_the_program_and_its_arguments_are_found(before):
    found = read_command([*before, MODULE, *ARGV])
    assert (found.entry, found.argv) == (MODULE, ARGV)


@pytest.mark.parametrize("before", [["python3", "-u"], ["torchrun", "--nproc_per_node", "2"], ["deepspeed"], []])
def test_a_file_is_a_program(before):
    found = read_command([*before, "/x/verl/trainer/main_ppo.py", "a=1"])
    assert (found.entry, found.argv) == ("/x/verl/trainer/main_ppo.py", ("a=1",))


def test_burnish_is_a_program():
    assert read_command(["/usr/bin/burnish", "train", "a=1"]).entry == "burnish"
    assert read_command(["python3", "-m", "burnish", "train", "a=1"]).argv == ("train", "a=1")


def test_variables_come_along():
    found = read_command(["A=1", "env", "B=x=y", "nohup", "C=", "python3", "-m", MODULE, "D=2"])
    assert found.env == {"A": "1", "B": "x=y", "C": ""}
    assert found.argv == ("D=2",)


def test_variables_of_rays_runtime_environment_come_along():
    environment = json.dumps({"working_dir": ".", "env_vars": {"WANDB_API_KEY": "k", "N": 1}})
    words = ["ray", "job", "submit", "--runtime-env-json", environment, "--", "X=2", "python3", "-m", MODULE]
    assert read_command(words).env == {"WANDB_API_KEY": "k", "N": "1", "X": "2"}


def test_a_runtime_environment_that_is_no_json_is_named():
    with pytest.raises(UserError, match="--runtime-env-json"):
        read_command(["ray", "job", "submit", "--runtime-env-json={", "--", "python3", "-m", MODULE])


def test_what_a_launcher_says_about_ranks_is_kept():
    found = read_command(["torchrun", "--nnodes=2", "--nproc-per-node", "4", "--standalone", "-m", MODULE])
    assert found.processes == {"nnodes": "2", "nproc_per_node": "4"}


def test_a_line_of_a_shell_is_searched_for_the_program():
    line = f"cd /x && source env.sh; A=1 python3 -m {MODULE} a=1 '+b=x y' 2>&1 | tee log.txt"
    found = read_command(["B=2", "bash", "-c", line])
    assert (found.entry, found.argv) == (MODULE, ("a=1", "+b=x y"))
    assert found.env == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["ls", "-l"],
        ["ray", "stop"],
        ["ray", "start", "--head"],
        ["python3"],
        ["python3", "-c", "print()"],
        ["python3", "-m"],
        ["bash", "-c", "echo hello"],
        ["bash", "-c"],
        ["nvidia-smi"],
    ],
    ids=" ".join,
)
def test_what_starts_no_program_is_refused(words):
    with pytest.raises(UserError, match="no Python program"):
        read_command(words)


def test_words_are_shown_as_they_would_be_typed():
    assert read_command(["python3", "-m", MODULE, "a=x y"]).words == f"{MODULE} 'a=x y'"
