"""A tiny model learns what it is rewarded for, and nothing from rewards that know nothing of its responses."""

import json
import random
from statistics import mean

import pytest

import burnish
from burnish.demo.tiny import make_model, make_tokenizer

STEPS = 12
ROLLOUT = "actor_rollout_ref.rollout"
GRPO = ("algorithm.adv_estimator=grpo",)
PPO = ("algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "algorithm.lam=0.95")
ONE_STEP_OFF = (*GRPO, "async_training.mode=one_step_off")
QUEUE = (
    *(*GRPO, "async_training.mode=queue", "async_training.queue_size=2"),
    *("async_training.staleness_threshold=2", "async_training.trigger_parameter_sync_step=1"),
    "trainer.total_training_steps=18",  # what it learns shows two steps later
)


def share_of_sevens(text):
    return text.count("7") / max(1, len(text))


@pytest.fixture
def learn(tmp_path):
    """learn(reward, *overrides): the mean share of sevens in the responses of every step."""
    make_model(tmp_path / "model", make_tokenizer("0123456789"), hidden=32, layers=2, seed=0)

    def run(reward, *overrides):
        dataset = [
            {"prompt": [{"role": "user", "content": str(number)}], "data_source": "digits"} for number in range(32)
        ]
        settings = [
            f"actor_rollout_ref.model.path={tmp_path / 'model'}",
            "data.train_batch_size=8",
            "data.max_prompt_length=16",
            "data.max_response_length=6",
            "actor_rollout_ref.model.enable_gradient_checkpointing=false",
            "critic.model.enable_gradient_checkpointing=false",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "actor_rollout_ref.actor.optim.lr=4e-3",
            "actor_rollout_ref.rollout.n=8",
            "reward.num_workers=0",
            "trainer.logger=[console]",
            f"trainer.total_training_steps={STEPS}",
            f"trainer.default_local_dir={tmp_path / 'run'}",
        ]
        burnish.train([*settings, *overrides], reward=reward, dataset=dataset)
        steps = len(list((tmp_path / "run" / "rollouts").iterdir()))
        assert steps >= STEPS
        return [mean_share(tmp_path / "run" / "rollouts" / f"{step}.jsonl") for step in range(1, steps + 1)]

    return run


def mean_share(path):
    return mean(share_of_sevens(json.loads(line)["output"]) for line in path.read_text().splitlines())


@pytest.mark.parametrize("algorithm", [GRPO, PPO, ONE_STEP_OFF, QUEUE], ids=["grpo", "ppo", "one step off", "queue"])
def test_a_policy_learns_what_it_is_rewarded_for(learn, algorithm):
    shares = learn(lambda solution_str: share_of_sevens(solution_str), *algorithm)
    assert mean(shares[:3]) < 0.2
    assert mean(shares[-3:]) > 0.5


def test_an_engine_of_8_bits_teaches_what_its_importance_weights_correct(learn, tmp_path):
    shares = learn(
        lambda solution_str: share_of_sevens(solution_str),
        *GRPO,
        f"{ROLLOUT}.quantization=fp8",
        "trainer.logger=[file]",
    )
    assert mean(shares[:3]) < 0.2 and mean(shares[-3:]) > 0.5
    lines = [json.loads(line)["data"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [data for data in lines if "rollout_corr/kl" in data]
    assert len(steps) >= STEPS and all(data["rollout_corr/k3_kl"] > 0 for data in steps)
    assert all(0 < data["training/rollout_probs_diff_max"] < 0.5 for data in steps)
    assert all("rollout_corr/rollout_is_mean" in data for data in steps)  # weights are on without being asked for


@pytest.mark.parametrize("algorithm", [GRPO, PPO], ids=["grpo", "ppo"])
def test_a_policy_learns_nothing_from_noise(learn, algorithm):
    noise = random.Random(0)
    shares = learn(lambda solution_str: noise.random(), *algorithm)
    assert abs(mean(shares[-3:]) - mean(shares[:3])) < 0.08
