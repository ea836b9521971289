"""Whole runs of a tiny model in this process: burnish.train, or a Run to look into."""

import functools
import itertools
import json
import os
import signal

import pytest
import torch

import burnish
from burnish.batch import Batch
from burnish.config import load
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.log.logger import RunInfo
from burnish.loop.build import build
from burnish.loop.state import resume

ROWS = 12
TIMES = (
    *("timing_s/", "timing_per_token_ms/", "perf/", "engine/seconds"),
    *("rollout/draft_", "rollout/decode_", "engine/draft_", "engine/decode_", "engine/loaded_"),  # see draft_policy.py
)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, make_tokenizer("0123456789+"), hidden=16, layers=2, seed=0)
    return folder


@pytest.fixture(autouse=True)
def no_curves(monkeypatch):
    """Drawing takes longer than these runs; tests/e2e draws."""
    monkeypatch.setattr("burnish.loop.fit.draw_curves", lambda metrics, picture: None)


@pytest.fixture
def rows():
    """rows(n): prompts of verl's schema."""

    def make(count=ROWS, source="digits"):
        return [
            {
                "prompt": [{"role": "user", "content": f"{number}+{number}"}],
                "data_source": source,
                "reward_model": {"ground_truth": str(2 * number)},
                "extra_info": {"number": number},
            }
            for number in range(count)
        ]

    return make


def sevens(solution_str):
    """A reward that a few steps can move: the share of sevens."""
    return solution_str.count("7") / max(1, len(solution_str))


@pytest.fixture
def settings(model_folder, tmp_path):
    """settings(*more, out="run"): the overrides of a tiny GRPO run; its folder is tmp_path/out."""

    def make(*more, out="run"):
        return [
            f"actor_rollout_ref.model.path={model_folder}",
            "algorithm.adv_estimator=grpo",
            "data.train_batch_size=4",
            "data.max_prompt_length=16",
            "data.max_response_length=5",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "actor_rollout_ref.rollout.n=2",
            "reward.num_workers=0",
            "trainer.logger=[console]",
            "trainer.total_training_steps=2",
            f"trainer.default_local_dir={tmp_path / out}",
            *more,
        ]

    return make


@pytest.fixture
def launch(settings, rows):
    """launch(*overrides): burnish.train on twelve prompts, the reward a share of sevens."""

    def run(*overrides, out="run", reward=sevens, dataset=None, **arguments):
        given = {"dataset": rows() if dataset is None else dataset, **arguments}
        return burnish.train(settings(*overrides, out=out), reward=reward, **given)

    return run


@pytest.fixture
def saved_before_each_step(monkeypatch):
    """saved_before_each_step(run): a disk as fast as the run, so that what is written beside it comes in one order."""

    def keep_pace(run):
        step = run.schedule.step

        def wait_then_step(number):
            run.recorder.saving.wait()
            return step(number)

        monkeypatch.setattr(run.schedule, "step", wait_then_step)

    return keep_pace


@pytest.fixture
def make_run(settings, rows):
    """make_run(*overrides): a Run as burnish.train has it before the first step; closed when the test ends."""
    made = []

    def make(*overrides, out="run", reward=sevens, dataset=None, val_dataset=None):
        loaded = load(settings(*overrides, out=out), given=["data.train_files", "data.val_files"])
        run = build(loaded.cfg, reward, rows() if dataset is None else dataset, val_dataset)
        made.append(run)
        resume(run)
        info = RunInfo("loop", "tests", run.recorder.folder.path, {}, run.total_steps)
        run.recorder.loggers.start(info, resume_step=run.step or None)
        run.sync_weights()
        return run

    yield make
    for run in made:
        run.close()


@pytest.fixture
def next_prompts():
    """next_prompts(run): the prompts of the run's next step."""

    def take(run) -> Batch:
        indices, epoch = run.rollout.sampler.next()
        return run.rollout.train_data.batch(indices, epoch)

    return take


@pytest.fixture
def weights():
    """weights(role): a copy of every weight."""
    return lambda role: {name: p.detach().clone() for name, p in role.backend.model.named_parameters()}


@pytest.fixture
def equal():
    """equal(one, other): the same names with bit-identical tensors."""
    return lambda one, other: one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.fixture
def metric_lines(tmp_path):
    """metric_lines(folder): metrics.jsonl as (step, numbers that are no times)."""

    def read(folder=tmp_path / "run"):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [(line["step"], {k: v for k, v in line["data"].items() if not k.startswith(TIMES)}) for line in lines]

    return read


@pytest.fixture
def rollouts():
    """rollouts(folder): the text of every rollout file by name."""
    return lambda folder: {path.name: path.read_text() for path in sorted((folder / "rollouts").iterdir())}


@pytest.fixture
def ctrl_c_at():
    """ctrl_c_at(call): the reward of sevens, which presses Ctrl-C when it is asked for the so-many-th time."""

    def make(number):
        calls = itertools.count(1)

        @functools.wraps(sevens)  # to a run that resumes, the same reward
        def reward(solution_str):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGINT)
            return sevens(solution_str)

        return reward

    return make
