"""Finding the program that a launch command starts."""

import json

import pytest

from burnish.dialects.invocation import Invocation, parse_commands
from burnish.errors import UserError

MODULE = "verl.trainer.main_ppo"
ARGV = ("data.train_batch_size=8", "+a.b='x y'", "--config-name=ppo_trainer")


def parse_command(words: list[str]) -> Invocation:
    """The first program that a command starts."""
    return parse_commands(words)[0]


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
        ["srun", "--nodes", "1", "--overlap", "-w", "node0", "python3", "-m"],
        ["mpirun", "-np", "1", "--allow-run-as-root", "--mca", "btl", "^openib", "-x", "A=1", "python3", "-m"],
        ["uv", "run", "--isolated", "--extra", "vllm", "--", "python3", "-m"],
        ["uv", "run", "-m"],
        ["micromamba", "run", "-n", "rl", "python3", "-m"],
        ["nsys", "profile", "-o", "out", "--trace=cuda", "-f", "true", "python3", "-m"],
        ["py-spy", "record", "-o", "out.svg", "--", "python3", "-m"],
        ["taskset", "-c", "0-15", "python3", "-m"],
        ["python3", "-m", "debugpy", "--listen", "5678", "--wait-for-client", "-m"],
    ],
    ids=" ".join,
)
def test_program_and_arguments(before):
    invocation = parse_command([*before, MODULE, *ARGV])
    assert (invocation.entry, invocation.argv) == (MODULE, ARGV)


@pytest.mark.parametrize("before", [["python3", "-u"], ["torchrun", "--nproc_per_node", "2"], ["deepspeed"], []])
def test_python_file_as_program(before):
    invocation = parse_command([*before, "/x/verl/trainer/main_ppo.py", "a=1"])
    assert (invocation.entry, invocation.argv) == ("/x/verl/trainer/main_ppo.py", ("a=1",))


def test_burnish_as_program():
    assert parse_command(["/usr/bin/burnish", "train", "a=1"]).entry == "burnish"
    assert parse_command(["python3", "-m", "burnish", "train", "a=1"]).argv == ("train", "a=1")


def test_environment_variables():
    invocation = parse_command(["A=1", "env", "B=x=y", "nohup", "C=", "python3", "-m", MODULE, "D=2"])
    assert invocation.env == {"A": "1", "B": "x=y", "C": ""}
    assert invocation.argv == ("D=2",)


def test_variables_of_ray_runtime_environment():
    environment = json.dumps({"working_dir": ".", "env_vars": {"WANDB_API_KEY": "k", "N": 1}})
    words = ["ray", "job", "submit", "--runtime-env-json", environment, "--", "X=2", "python3", "-m", MODULE]
    assert parse_command(words).env == {"WANDB_API_KEY": "k", "N": "1", "X": "2"}


def test_invalid_runtime_environment_is_refused():
    with pytest.raises(UserError, match="--runtime-env-json"):
        parse_command(["ray", "job", "submit", "--runtime-env-json={", "--", "python3", "-m", MODULE])


def test_launcher_process_counts():
    invocation = parse_command(["torchrun", "--nnodes=2", "--nproc-per-node", "4", "--standalone", "-m", MODULE])
    assert invocation.processes == {"nnodes": "2", "nproc_per_node": "4"}


@pytest.mark.parametrize(
    ("before", "per_node", "nodes"),
    [
        (["accelerate", "launch", "--num_processes", "16", "--num_machines=2", "-m"], "8", "2"),
        (["deepspeed", "--include", "localhost:0,1,2", "--module"], "3", None),
        (["uv", "run", "--python", "3.11", "-m"], None, None),
    ],
    ids=str,
)
def test_process_counts_of_other_launchers(before, per_node, nodes):
    processes = parse_command([*before, MODULE]).processes
    assert (processes.get("nproc_per_node"), processes.get("nnodes")) == (per_node, nodes)


def test_program_in_a_shell_line():
    line = f"cd /x && source env.sh; A=1 python3 -m {MODULE} a=1 '+b=x y' 2>&1 | tee log.txt"
    invocation = parse_command(["B=2", "bash", "-c", line])
    assert (invocation.entry, invocation.argv) == (MODULE, ("a=1", "+b=x y"))
    assert invocation.env == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("before", "place"),
    [
        (["docker", "run", "--rm", "-it", "--gpus", "all", "-e", "A=1", "image:1", "python3", "-m"], "docker"),
        (["docker", "exec", "-w", "/x", "name", "env", "A=1", "python3", "-m"], "docker"),
        (
            ["srun", "-N1", "apptainer", "exec", "--nv", "--bind", "/a:/b", "--env", "A=1", "x.sif", "python3", "-m"],
            "apptainer",
        ),
        (["kubectl", "exec", "-it", "-n", "rl", "pod", "--", "env", "A=1", "python3", "-m"], "kubectl"),
        (["ssh", "-p", "22", "me@node", "export", "A=1", ";", "python3", "-m"], "ssh"),
    ],
    ids=str,
)
def test_programs_elsewhere(before, place):
    invocation = parse_command([*before, MODULE, "a=1"])
    assert (invocation.entry, invocation.argv, invocation.env) == (MODULE, ("a=1",), {"A": "1"})
    assert invocation.place.endswith(f"({place})")
    assert parse_command(["python3", "-m", MODULE]).place == ""


def test_programs_of_a_shell_line():
    lines = [
        "export A=1",
        "if true; then python3 a.py; fi",
        f"tmux new -d -s x 'B=2 python3 -m {MODULE} a=1 \\\n b=#2'",
    ]
    first, second = parse_commands(["docker", "exec", "name", "bash", "-lc", "\n".join(lines)])
    assert (first.entry, first.env) == ("a.py", {"A": "1"})
    assert (second.entry, second.argv, second.env) == (MODULE, ("a=1", "b=#2"), {"A": "1", "B": "2"})


def test_a_quote_that_is_not_closed_is_refused():
    with pytest.raises(UserError, match="not a shell line"):
        parse_command(["bash", "-c", f"python3 -m {MODULE} 'a"])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["docker", "ps"],
        ["ssh", "host"],
        ["bash", "-c", "bash -c 'echo x'"],
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
def test_command_without_program_is_refused(words):
    with pytest.raises(UserError, match="no Python program"):
        parse_command(words)


def test_words_are_shell_quoted():
    assert parse_command(["python3", "-m", MODULE, "a=x y"]).words == f"{MODULE} 'a=x y'"
