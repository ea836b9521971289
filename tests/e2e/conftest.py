"""A tiny model, parquet files and a reward file; the `burnish` command in this process and in its own."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from burnish.cli.main import main
from burnish.demo.tiny import make_model, make_tokenizer

STEPS = 6
REWARD = """
import time

def compute_score(data_source, solution_str, ground_truth, extra_info=None, digit="7"):
    time.sleep(0.01)
    return {"score": solution_str.count(digit) / max(1, len(solution_str)), "length": len(solution_str)}
"""


def sum_row(number, text=None):
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": f"{number}+{number}" if text is None else text}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * number)},
        "extra_info": {"split": "train", "index": number},
    }


@pytest.fixture
def parquet(tmp_path):
    """parquet(rows or number of rows): a file in verl's schema."""

    def write(rows, name="rows.parquet"):
        rows = [sum_row(number) for number in range(rows)] if isinstance(rows, int) else rows
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def row():
    """row(number, text): one row in verl's schema."""
    return sum_row


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """A folder with the model, train.parquet, val.parquet and reward.py."""
    folder = tmp_path_factory.mktemp("e2e")
    make_model(folder / "model", make_tokenizer("0123456789+"), hidden=16, layers=2, seed=0)
    for name, numbers in (("train", range(12)), ("val", range(12, 15))):
        pq.write_table(pa.Table.from_pylist([sum_row(number) for number in numbers]), folder / f"{name}.parquet")
    (folder / "reward.py").write_text(REWARD)
    return folder


@pytest.fixture(scope="session")
def verl_command(files):
    """verl_command(run folder, *more): arguments of `burnish` as a user of verl writes them."""

    def make(out, *more):
        return [
            "train",
            "algorithm.adv_estimator=grpo",
            f"data.train_files={files / 'train.parquet'}",
            f"data.val_files=['{files / 'val.parquet'}']",
            "data.train_batch_size=4",
            "data.max_prompt_length=16",
            "data.max_response_length=6",
            "data.filter_overlong_prompts=True",
            "data.truncation='error'",
            f"actor_rollout_ref.model.path={files / 'model'}",
            "actor_rollout_ref.model.use_remove_padding=True",
            "actor_rollout_ref.model.enable_gradient_checkpointing=True",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
            "actor_rollout_ref.actor.use_kl_loss=True",
            "actor_rollout_ref.actor.kl_loss_coef=0.001",
            "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
            "actor_rollout_ref.actor.entropy_coeff=0",
            "actor_rollout_ref.actor.fsdp_config.param_offload=False",
            "actor_rollout_ref.rollout.name=builtin",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
            "actor_rollout_ref.rollout.n=2",
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
            "actor_rollout_ref.ref.fsdp_config.param_offload=True",
            "algorithm.use_kl_in_reward=False",
            f"custom_reward_function.path={files / 'reward.py'}",
            "custom_reward_function.name=compute_score",
            "+custom_reward_function.reward_kwargs.digit='3'",
            "reward.num_workers=1",
            "trainer.critic_warmup=0",
            'trainer.logger=["console","file"]',
            "trainer.project_name=e2e",
            "trainer.experiment_name=tiny",
            f"trainer.default_local_dir={out}",
            "trainer.n_gpus_per_node=1",
            "trainer.nnodes=1",
            "trainer.save_freq=2",
            "trainer.test_freq=3",
            f"trainer.total_training_steps={STEPS}",
            *more,
        ]

    return make


@pytest.fixture(scope="session")
def spawn():
    """spawn(arguments): the command in a process and session of its own, with as many threads as this one has."""

    def run(arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "burnish.cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
            start_new_session=True,
        )

    return run


@pytest.fixture(scope="session")
def whole_run(verl_command, spawn, tmp_path_factory):
    """The verl-style command from start to end: exit status, what it printed, and its folder."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    process = spawn(verl_command(folder))
    printed, _ = process.communicate(timeout=120)
    return process.returncode, printed, folder


@pytest.fixture
def burnish(capfd, monkeypatch):
    """burnish(*arguments): the command in this process, less the curves; its exit status and what it printed."""
    monkeypatch.setattr("burnish.loop.fit.draw_curves", lambda metrics, picture: None)

    def run(*arguments):
        capfd.readouterr()
        status = main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        return status, printed.out + printed.err

    return run
