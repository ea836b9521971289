"""Every example compiles, every command in it is understood, and what it defines does what it says."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys

import pytest
import torch
import yaml

import burnish
from burnish.algos.advantages import ADVANTAGES, Credit
from burnish.cli.main import main
from burnish.config import load
from burnish.data.custom import load_custom_rows
from burnish.user_code import load_user_attribute

from .source import ROOT, commands, python_trainings, resolve

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted([*EXAMPLES.glob("*.sh"), *(EXAMPLES / "agents").glob("*.sh")])
PYTHON = sorted(EXAMPLES.rglob("*.py"))
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))


def test_there_is_an_example_for_every_task():
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    wanted = {
        "grpo.sh",
        "grpo.yaml",
        "ppo.sh",
        "python_api.py",
        "reward_function.py",
        "my_estimator.py",
        "my_dataset.py",
    }
    assert wanted <= names


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.name)
def test_python_examples_compile_and_say_what_they_are(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert compile(tree, str(path), "exec")
    assert ast.get_docstring(tree)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_start_a_training_that_is_understood(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    trainings = [words for words in commands(text) if words[:2] == ["burnish", "train"]]
    assert len(trainings) == 1
    assert text.rstrip().endswith('"$@"'), "a script takes further overrides"
    assert resolve(trainings[0]).notices == []


def test_the_slurm_script_starts_a_training_that_is_understood():
    path = EXAMPLES / "cluster" / "slurm.sbatch"
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    text = path.read_text(encoding="utf-8")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", text, flags=re.M))
    by_slurm = {"SLURM_JOB_NUM_NODES": options["nodes"], "SLURM_GPUS_ON_NODE": options["gpus-per-node"]}
    filled = re.sub(r"\$(\w+)", lambda name: by_slurm.get(name[1], name[0]), text).replace('"$@" &', '"$@"')
    (training,) = [words for words in commands(filled) if words[:2] == ["burnish", "train"]]
    loaded = resolve(training)
    assert loaded.notices == []
    assert (loaded.cfg.trainer.nnodes, loaded.cfg.trainer.n_gpus_per_node) == (4, 8)
    assert options["signal"].startswith("B:TERM@") and "trap 'kill -TERM $TRAINING" in text


def test_the_ray_job_is_a_manifest_whose_training_is_understood():
    job = yaml.safe_load((EXAMPLES / "cluster" / "kuberay.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    loaded = resolve(job["spec"]["entrypoint"].split())
    cluster = job["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    machines = [cluster["headGroupSpec"]["template"], workers["template"]]
    gpus = [machine["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for machine in machines]
    assert loaded.notices == []
    assert loaded.cfg.trainer.nnodes == 1 + workers["replicas"]
    assert set(gpus) == {loaded.cfg.trainer.n_gpus_per_node}
    assert all(machine["spec"]["containers"][0]["image"].endswith(f":{burnish.__version__}") for machine in machines)
    for machine in machines:  # every mount has a volume
        mounts = {mount["name"] for mount in machine["spec"]["containers"][0]["volumeMounts"]}
        assert mounts == {volume["name"] for volume in machine["spec"]["volumes"]}


def test_the_verl_script_converts(capsys):
    path = EXAMPLES / "verl" / "run_grpo.sh"
    assert os.access(path, os.X_OK)
    assert main(["convert", "--json", str(path)]) == 0
    converted = json.loads(capsys.readouterr().out)
    assert converted["dialect"] == "verl"


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_saved_without_output_and_ask_for_what_there_is(path):
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    text = "\n".join("".join(cell["source"]) for cell in code)
    assert compile(text, path.name, "exec")
    for words in python_trainings(text):
        assert resolve(words, given=["data.train_files", "data.val_files"]).notices == []
    prose = "\n".join("".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "markdown")
    assert prose.startswith("# ")
    assert [link for link in re.findall(r"\]\(([^)\s]+)\)", prose) if not (path.parent / link).exists()] == []


def test_there_are_three_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["1_first_run", "2_own_reward", "3_verl_script"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_run(path):
    """Assertions in the cells say whether it worked; a cell that fails raises here."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def test_the_yaml_example_is_the_same_run_as_the_script():
    (training,) = [words for words in commands((EXAMPLES / "grpo.sh").read_text()) if words[:2] == ["burnish", "train"]]
    from_file = load(config_path=str(EXAMPLES), config_name="grpo")
    assert from_file.yaml() == resolve(training).yaml()


def test_the_python_example_asks_for_what_there_is():
    (words,) = python_trainings((EXAMPLES / "python_api.py").read_text(encoding="utf-8"))
    assert resolve(words, given=["data.train_files", "data.val_files"]).cfg.algorithm.adv_estimator == "grpo"


def test_the_estimator_subtracts_the_median():
    row = ADVANTAGES[f"{EXAMPLES / 'my_estimator.py'}:median_baseline"]
    credit = Credit(
        token_level_rewards=torch.tensor([0.0, 1.0, 5.0, 9.0, 2.0]),
        response_mask=torch.ones(5),
        lengths=torch.tensor([2, 1, 1, 1]),
        groups=torch.tensor([7, 7, 7, 3]),
    )
    advantages, returns = row.load()(credit)
    assert row.needs == {"groups"}
    assert advantages.tolist() == [-4.0, -4.0, 0.0, 4.0, 0.0]
    assert torch.equal(returns, advantages)


def test_the_dataset_reads_questions_and_answers(tmp_path):
    file = tmp_path / "questions.csv"
    file.write_text("question,answer\n1+1?,2\n2+2?,4\n", encoding="utf-8")
    own = [f"data.custom_cls.path={EXAMPLES / 'my_dataset.py'}", "data.custom_cls.name=CsvQuestions"]
    cfg = load([*own, f"data.train_files={file}", "actor_rollout_ref.model.path=m"]).cfg.data
    rows, _ = load_custom_rows(cfg, cfg.train_files, tokenizer=None, processor=None, max_samples=-1)
    assert len(rows) == 2
    assert rows.row(1)["prompt"] == [{"role": "user", "content": "2+2?"}]
    assert rows.row(1)["reward_model"]["ground_truth"] == "4"


def test_the_reward_function_scores():
    score = load_user_attribute(
        str(EXAMPLES / "reward_function.py"), "compute_score", key="custom_reward_function.path"
    )
    assert score("any", "the answer is 42", "42", explanation_bonus=0.5)["score"] == 1.0
    assert score("any", "six times seven makes about 42", "42", explanation_bonus=0.5)["score"] == 1.5
    assert score("any", "41", "42")["score"] == 0.0


@pytest.mark.long
def test_the_python_example_learns():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "python_api.py")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    scores = [float(line.partition(" score ")[2].split()[0]) for line in done.stdout.splitlines() if " score " in line]
    assert len(scores) == 20
    assert scores[-1] > scores[0] + 0.3
