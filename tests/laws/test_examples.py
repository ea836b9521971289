"""Every example compiles, every command in it is understood, and what it defines does what it says."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
import torch

from burnish.algos.advantages import ADVANTAGES, Credit
from burnish.config import load
from burnish.data.custom import load_custom_rows
from burnish.user_code import load_user_attribute

from .source import ROOT, commands, python_trainings, resolve

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.sh"))
PYTHON = sorted(EXAMPLES.rglob("*.py"))


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
