"""burnish run with commands and scripts of other systems."""

import argparse
import json
import os
import subprocess
import sys

import pytest

from burnish.cli import run as command
from burnish.cli.run import format_item, run_command, summarize, with_source_names
from burnish.cli.scripts.run import main as run_shim
from burnish.config import load
from burnish.data.files import write_parquet
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.dialects.report import CONVERTED, INERT, KEPT, PENDING, REFUSED, Item, Translation
from burnish.errors import UserError


def burnish(*words):
    """Run `burnish run WORDS`."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return command.run(parser.parse_args(["run", *map(str, words)]))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    make_model(folder / "model", make_tokenizer("0123456789+"), hidden=16, layers=2, seed=0)
    rows = [
        {"data_source": "sums", "prompt": [{"role": "user", "content": f"{n}+{n}"}],
         "reward_model": {"style": "rule", "ground_truth": str(2 * n)}, "extra_info": {"index": n}}
        for n in range(8)
    ]  # fmt: skip
    write_parquet(rows, folder / "train.parquet")
    (folder / "reward.py").write_text(
        "from verl.utils.reward_score import gsm8k\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return gsm8k.compute_score(solution_str, ground_truth, method='flexible', format_score=0.1)\n"
    )
    return folder


@pytest.fixture
def verl(files, tmp_path):
    """A verl command that trains for one step on the CPU."""
    actor, rollout, ref = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
    return [
        "python3", "-m", "verl.trainer.main_ppo",
        "algorithm.adv_estimator=grpo",
        f"data.train_files={files / 'train.parquet'}",
        f"data.val_files={files / 'train.parquet'}",
        "data.train_batch_size=4", "data.max_prompt_length=16", "data.max_response_length=4",
        f"actor_rollout_ref.model.path={files / 'model'}",
        f"{actor}.ppo_mini_batch_size=4", f"{actor}.ppo_micro_batch_size_per_gpu=8", f"{actor}.use_torch_compile=False",
        f"{rollout}.n=2", f"{rollout}.name=hf", f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=8", f"{rollout}.dtype=float32",
        f"{ref}.log_prob_micro_batch_size_per_gpu=8",
        f"{actor}.fsdp_config.mixed_precision.param_dtype=fp32",
        f"custom_reward_function.path={files / 'reward.py'}",
        "trainer.device=cpu", "trainer.n_gpus_per_node=1", "trainer.nnodes=1", "trainer.logger=[console,file]",
        f"trainer.default_local_dir={tmp_path / 'out'}", "trainer.total_training_steps=1", "trainer.test_freq=-1",
        "trainer.val_before_train=False", "trainer.save_freq=-1",
    ]  # fmt: skip


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_verl_command_trains(verl, tmp_path, capsys):
    assert burnish("--", *verl) == 0
    assert steps(tmp_path / "out") == [1]
    printed = " ".join(capsys.readouterr().out.split())
    assert "verl command, translated to `burnish train`" in printed
    assert "defaults of verl differ from Burnish's and are set explicitly" in printed


@pytest.mark.long
def test_script_trains(verl, tmp_path):
    (tmp_path / "train.sh").write_text(
        "set -e\n"
        "ray stop --force\n"
        "for dir in first second; do\n"
        "  if [ $dir = second ]; then break; fi\n"
        f"  ray job submit --address=http://head:8265 -- {' '.join(verl)}"
        f" trainer.default_local_dir={tmp_path}/$dir $@\n"
        "done\n"
        "exit 7\n"
    )
    done = run_in_process(tmp_path / "train.sh", "trainer.project_name=mine")
    assert done.returncode == 7, done.stderr
    assert steps(tmp_path / "first") == [1]
    printed = " ".join(done.stdout.split())
    assert f"Running {tmp_path / 'train.sh'}. Burnish takes over" in printed
    assert "`ray stop`: skipped, Burnish does not need a Ray cluster here." in printed
    assert "verl.trainer.main_ppo, started by `ray`: running with Burnish." in printed


def run_in_process(path, *args, **variables):
    """Run a script in a separate process to capture its output."""
    code = "import sys; from burnish.cli.scripts.run import run_script; sys.exit(run_script(sys.argv[1], sys.argv[2:]))"
    words = [sys.executable, "-c", code, str(path), *args]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ | variables, timeout=120)


def test_other_programs_run_normally(tmp_path):
    (tmp_path / "other.py").write_text("import sys; print('real', sys.argv[1:], __name__)\n")
    (tmp_path / "s.sh").write_text(
        "python3 -c 'import sys; print(6 * 7, len(sys.argv))' 'a b'\n"
        'cd "$(dirname "$0")"\n'
        "python3 other.py verl 'x y'\n"
        "PATH=/usr/bin:$PATH\n"
        "python3 -c 'print(1)'\n"
        "echo $1 | cat\n"
        "torchrun --nproc_per_node 2 other.py || echo status $?\n"
        "false || exit 5\n"
    )
    fake = tmp_path / "programs"
    fake.mkdir()
    (fake / "torchrun").write_text('#!/bin/sh\necho "torchrun $#"\nexit 9\n')
    (fake / "torchrun").chmod(0o755)
    done = run_in_process(tmp_path / "s.sh", "given", PATH=f"{fake}:{os.environ['PATH']}")
    assert done.returncode == 5
    lines = done.stdout.splitlines()[-6:]
    assert lines == ["42 2", "real ['verl', 'x y'] __main__", "1", "given", "torchrun 3", "status 9"], done.stderr


def test_missing_program(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_shim(["deepspeed", "--module", "mine.train"]) == 127
    assert "deepspeed is not installed" in " ".join(capsys.readouterr().err.split())


def test_launchers_in_scripts_reach_burnish(tmp_path):
    """Burnish recognizes the program behind each launcher, and reports errors with its key names."""
    wrong = "algorithm.adv_estimatr=grpo"
    (tmp_path / "s.sh").write_text(
        f"python -m verl.trainer.main_ppo {wrong} || echo first $?\n"
        "ray stop --force\n"
        f"ray job submit --address=http://head:8265 -- python3 -m verl.trainer.main_ppo {wrong} || echo second $?\n"
    )
    done = run_in_process(tmp_path / "s.sh")
    assert [line for line in done.stdout.splitlines() if line.startswith(("first", "second"))] == [
        "first 3",
        "second 3",
    ]
    assert "algorithm.adv_estimatr=grpo" in done.stderr and "algorithm.adv_estimator" in done.stderr


def test_refused_and_pending_settings_prevent_the_run(monkeypatch, capsys):
    def translate(status):
        translation = Translation("openrlhf", "train")
        translation.items += [
            Item("--train_batch_size", 8, KEPT, "data.train_batch_size", 8),
            Item("--zero_stage", 3, status, why="for this or that reason"),
            Item("--colocate", None, status, why="another one", explicit=False),
        ]
        return lambda words, assume: translation

    monkeypatch.setattr(command, "translate_command", translate(REFUSED))
    assert run_command(["python", "x.py"]) == 3
    printed = capsys.readouterr().err
    assert (
        "  --zero_stage 3: for this or that reason\n  --colocate (a default of the source system): another one"
        in printed
    )
    monkeypatch.setattr(command, "translate_command", translate(PENDING))
    assert run_command(["python", "x.py"]) == 4
    assert "2 settings are not supported yet" in capsys.readouterr().err


def test_yaml_file(monkeypatch, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("data: {train_files: x.parquet}\nalgorithm: {adv_estimatr: grpo}\n")
    assert burnish(tmp_path / "mine.yaml") == 3
    assert "algorithm.adv_estimatr=grpo" in capsys.readouterr().err


def test_summary():
    items = [
        Item("--a", 1, KEPT),
        Item("--b", 2, CONVERTED),
        Item("--c", 3, CONVERTED),
        Item("--d", 4, INERT),
        Item("--e", 5, KEPT, explicit=False),
    ]
    assert summarize(Translation("openrlhf", "sft", items)).startswith(
        "OpenRLHF command, translated to `burnish sft`: 1 settings kept, 2 converted, 1 without effect."
        " 1 defaults of OpenRLHF differ from Burnish's and are set explicitly."
    )
    assert format_item(Item("trainer.x", True, PENDING, why="soon")) == "  trainer.x=True: soon"


def test_errors_use_source_names():
    items = [
        Item("--advantage_estimator", "gpro", CONVERTED, "algorithm.adv_estimator", "gpro"),
        Item("--rollout_batch_size", 0, KEPT, "data.train_batch_size", 0),
        Item("--n_samples_per_prompt", 1, KEPT, "actor_rollout_ref.rollout.n", 1, explicit=False),
    ]
    with pytest.raises(UserError) as caught:
        load(["algorithm.adv_estimator=gpro", "data.train_batch_size=0", "data.train_files=x"])
    text = with_source_names(caught.value, items).text()
    assert "--advantage_estimator='gpro': " in text and "Type: --advantage_estimator grpo" in text
    assert "--rollout_batch_size=0: " in text
    assert "algorithm.adv_estimator" not in text and "data.train_batch_size" not in text


def test_nothing_to_run():
    with pytest.raises(UserError, match="nothing to run"):
        burnish()
    with pytest.raises(UserError, match=r"no such file: absent\.sh"):
        burnish("absent.sh")
    with pytest.raises(UserError, match="starts no Python program"):
        burnish("--", "make", "coffee")
