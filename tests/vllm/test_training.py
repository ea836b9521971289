"""Whole runs with vLLM in the loop: a tiny model learns what it is rewarded for, and engine and trainer agree."""

from __future__ import annotations

import json
from statistics import mean

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import burnish
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.errors import UserError
from burnish.jobs.generate import generate
from burnish.log.file import read_metrics

from .conftest import HIDDEN

STEPS = 12


def share_of_sevens(text):
    return text.count("7") / max(1, len(text))


@pytest.fixture
def model(tmp_path):
    make_model(tmp_path / "model", make_tokenizer("0123456789"), hidden=HIDDEN, layers=2, seed=0)
    return tmp_path / "model"


@pytest.fixture
def learn(tmp_path, model, monkeypatch):
    """learn(*overrides): the mean share of sevens in the responses of every step, and the metrics of each."""
    monkeypatch.setattr("burnish.loop.fit.draw_curves", lambda metrics, picture: None)

    def run(*overrides, steps=STEPS):
        dataset = [{"prompt": [{"role": "user", "content": str(n)}], "data_source": "digits"} for n in range(32)]
        settings = [
            f"actor_rollout_ref.model.path={model}",
            "algorithm.adv_estimator=grpo",
            "data.train_batch_size=8",
            "data.max_prompt_length=16",
            "data.max_response_length=6",
            "actor_rollout_ref.model.enable_gradient_checkpointing=false",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.optim.lr=2e-3",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.n=8",
            "actor_rollout_ref.rollout.max_num_seqs=64",
            "actor_rollout_ref.rollout.disable_log_stats=false",
            "reward.num_workers=0",
            "trainer.device=cpu",
            "trainer.logger=[console,file]",
            f"trainer.total_training_steps={steps}",
            f"trainer.default_local_dir={tmp_path / 'run'}",
        ]
        reward = lambda solution_str: share_of_sevens(solution_str)  # noqa: E731 - a reward is asked by argument names
        burnish.train([*settings, *overrides], reward=reward, dataset=dataset)
        rollouts = tmp_path / "run" / "rollouts"
        shares = [mean_share(rollouts / f"{step}.jsonl") for step in range(1, steps + 1)]
        return shares, read_metrics(tmp_path / "run" / "metrics.jsonl")

    return run


def mean_share(path):
    return mean(share_of_sevens(json.loads(line)["output"]) for line in path.read_text().splitlines())


def differences(metrics):
    """The largest gap of a step between the probabilities of engine and trainer, for every step."""
    return [found["training/rollout_probs_diff_max"] for found in metrics.values()]


def test_a_policy_learns_with_vllm(learn):
    shares, metrics = learn()
    assert shares[0] < 0.2
    assert mean(shares[-3:]) > 0.6
    assert max(differences(metrics)) < 1e-4
    assert all(found["engine/tokens"] == sum_of_tokens(found) for found in metrics.values())


def sum_of_tokens(found):
    """8 prompts, 8 responses each."""
    return round(64 * found["response_length/mean"])


def test_adapters_arrive_merged(learn):
    """Engine and trainer agree at every step, though the trainer's own weights never change."""
    lora = ("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.target_modules=all-linear")
    shares, metrics = learn(*lora, "actor_rollout_ref.actor.optim.lr=2e-2", steps=4)
    assert max(differences(metrics)) < 1e-4
    assert shares[-1] > shares[0] + 0.05


def test_what_vllm_cannot_do_is_refused_before_anything_is_loaded(learn, monkeypatch):
    monkeypatch.setattr("burnish.loop.roles.build_policy", lambda *args, **more: pytest.fail("a model was loaded"))
    with pytest.raises(UserError, match=r"use_fire_sampling.*not supported by the vllm engine"):
        learn("actor_rollout_ref.rollout.use_fire_sampling=true")
    with pytest.raises(UserError, match=r"engine_kwargs\.vllm\.max_num_sekvs.*Did you mean 'max_num_seqs'"):
        learn("+actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_sekvs=3")


def test_generate_with_vllm(tmp_path, model):
    rows = [{"prompt": [{"role": "user", "content": str(number)}]} for number in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "prompts.parquet")
    settings = [
        f"model.path={model}",
        f"data.path={tmp_path / 'prompts.parquet'}",
        f"data.output_path={tmp_path / 'out.parquet'}",
        "data.n_samples=2",
        "rollout.name=vllm",
        "rollout.prompt_length=16",
        "rollout.response_length=5",
        "rollout.max_num_seqs=8",
        "rollout.ignore_eos=true",
        "trainer.device=cpu",
    ]
    answered = pq.read_table(generate(settings)).to_pylist()
    assert [len(row["responses"]) for row in answered] == [2, 2, 2]
    assert all(isinstance(text, str) for row in answered for text in row["responses"])
