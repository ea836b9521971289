"""A reward model in the loop: whose score counts, where it stands, and that a policy learns from it."""

import json
import math

import pytest
import torch

import burnish
from burnish.demo.tiny import make_tokenizer
from burnish.errors import UserError
from burnish.loop.validate import validate

from ..reward_models import make_reward_model
from ..stepping import one_step


@pytest.fixture(scope="session")
def scorer_folder(tmp_path_factory):
    return make_reward_model(tmp_path_factory.mktemp("scorer"), make_tokenizer("0123456789+"))


@pytest.fixture
def with_model(scorer_folder):
    """The overrides that let the model score."""
    return ("reward_model.enable=true", f"reward_model.model.path={scorer_folder}")


def never(solution_str):
    raise AssertionError("the function's score cannot matter")


def judged(run, prompts):
    return run.learner.reward_model.score(run.rollout.collect(prompts, step=1))


def expected_scores(run, batch):
    return run.learner.reward_model.model.compute_scores(batch)


def test_the_models_score_stands_on_the_last_token(make_run, next_prompts, with_model):
    run = make_run(*with_model, reward=never)
    batch = judged(run, next_prompts(run))
    scores = batch["token_level_scores"]
    assert scores.sums().tolist() == pytest.approx(expected_scores(run, batch), abs=1e-6)
    for row in scores.rows():
        assert torch.count_nonzero(row[:-1]) == 0
    assert len({round(score, 4) for score in scores.sums().tolist()}) > 2
    assert batch["reward_problem"] == [None] * 8


def test_a_function_is_not_called_where_its_score_cannot_matter(launch, with_model, capsys):
    result = launch(*with_model, reward=never)
    assert result.metrics["reward/failed"] == 0
    assert "timing_s/reward" in result.metrics
    said = capsys.readouterr().out
    assert "scores are the reward model's alone: test_model_scorer.py:never" in " ".join(said.split())


def test_a_data_source_without_a_rule_will_do(launch, with_model):
    assert launch(*with_model, reward=None).step == 2


def length(solution_str):
    return {"score": float(len(solution_str)), "length": len(solution_str)}


@pytest.mark.parametrize(
    ("weights", "by_model", "by_function"),
    [
        (("reward.function_weight=0.5",), 1.0, 0.5),
        (("reward.model_weight=2",), 2.0, 1.0),
        (("reward.model_weight=2", "reward.function_weight=-0.5"), 2.0, -0.5),
        (("reward.model_weight=0", "reward.function_weight=3"), 0.0, 3.0),
    ],
)
def test_weights_mix(make_run, next_prompts, with_model, weights, by_model, by_function):
    run = make_run(*with_model, *weights, reward=length)
    batch = judged(run, next_prompts(run))
    read = expected_scores(run, batch)
    lengths = [float(len(text)) for text in batch["response_text"]]
    mixed = [by_model * one + by_function * other for one, other in zip(read, lengths, strict=True)]
    assert batch["token_level_scores"].sums().tolist() == pytest.approx(mixed, abs=1e-5)
    assert [extras["function_score"] for extras in batch["reward_extras"]] == lengths
    assert [extras["model_score"] for extras in batch["reward_extras"]] == pytest.approx(read, abs=1e-6)
    assert [extras["length"] for extras in batch["reward_extras"]] == lengths


def test_a_function_of_no_weight_is_not_called(make_run, next_prompts, with_model):
    run = make_run(*with_model, "reward.function_weight=0", reward=never)
    batch = judged(run, next_prompts(run))
    assert batch["token_level_scores"].sums().tolist() == pytest.approx(expected_scores(run, batch), abs=1e-6)


def test_a_greedy_baseline_is_scored_too(make_run, next_prompts, with_model):
    run = make_run(*with_model, "algorithm.adv_estimator=remax", reward=never)
    batch = judged(run, next_prompts(run))
    first = batch.keep("prompt_ids", "raw_prompt", "uid").add(responses=batch["greedy_responses"])
    assert batch["greedy_scores"].tolist() == pytest.approx(expected_scores(run, first), abs=1e-6)
    assert batch["greedy_scores"].unique().numel() > 1


def test_groups_are_filtered_by_the_reward_model(make_run, with_model):
    filtered = ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=score")
    run = make_run(*with_model, *filtered, reward=never)
    batch = judged(run, run.rollout.next_prompts())
    assert batch["token_level_scores"].sums().tolist() == pytest.approx(expected_scores(run, batch), abs=1e-6)
    groups = {}
    for uid, score in zip(batch["uid"], batch["token_level_scores"].sums().tolist(), strict=True):
        groups.setdefault(uid, []).append(score)
    assert len(groups) == 4
    assert all(max(scores) > min(scores) for scores in groups.values())


def test_validation_is_scored_by_the_model(make_run, rows, with_model):
    run = make_run(*with_model, reward=never, val_dataset=rows(3, source="held out"))
    batch = run.learner.reward_model.score(
        run.rollout.collect_validation(run.rollout.val_data.batch(range(3), epoch=0))
    )
    mean = sum(expected_scores(run, batch)) / 3
    assert validate(run)["val-core/held out/reward/mean@1"] == pytest.approx(mean, abs=1e-6)
    assert run.rollout.engine.stats()["sleeps"] == 1


def test_the_engine_sleeps_while_the_model_reads(make_run, next_prompts, with_model):
    run = make_run(*with_model, reward=never)
    seen, read = [], run.learner.reward_model.model.compute_scores
    run.learner.reward_model.model.compute_scores = lambda batch: (
        seen.append(run.rollout.engine.stats()["sleeps"]) or read(batch)
    )
    one_step(run)
    assert seen == [1]


def test_scores_that_are_no_numbers_fall_back(make_run, next_prompts, with_model):
    run = make_run(*with_model, "reward.fallback_score=-2", reward=never)
    run.learner.reward_model.model.compute_scores = lambda batch: [math.nan, 1.0] * 4
    batch = judged(run, next_prompts(run))
    assert batch["token_level_scores"].sums().tolist() == [-2.0, 1.0] * 4
    assert batch["reward_problem"][:2] == ["the reward model returned nan", None]
    numbers = run.learner.reward_model.take_metrics()
    assert numbers["reward_model/failed"] == 4
    (said,) = run.learner.reward_model.new_warnings(numbers)
    assert "4 scores of the reward model are not finite" in said
    assert run.learner.reward_model.new_warnings(numbers) == [], "once is enough"


def test_scores_that_are_no_numbers_stop_the_run_if_asked(make_run, next_prompts, with_model):
    run = make_run(*with_model, "reward.on_error=stop", reward=never)
    run.learner.reward_model.model.compute_scores = lambda batch: [math.inf] * 8
    with pytest.raises(UserError, match="the reward model returned inf"):
        judged(run, next_prompts(run))


def test_inputs_over_the_limit_are_counted_and_reported_once(launch, with_model, metric_lines, capsys):
    launch(*with_model, "reward_model.max_length=8", "trainer.logger=[console,file]", reward=never)
    counted = [numbers["reward_model/overlong_inputs"] for _, numbers in metric_lines()]
    assert counted == [8.0, 8.0]
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("inputs exceed reward_model.max_length") == 1


def test_a_policy_learns_from_a_reward_model(launch, with_model, rollouts, tmp_path):
    launch(
        *with_model,
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.optim.lr=1e-2",
        "trainer.total_training_steps=24",
        "trainer.logger=[file]",
        reward=None,
    )
    texts = [
        "".join(json.loads(line)["output"] for line in text.splitlines())
        for _, text in sorted(rollouts(tmp_path / "run").items(), key=lambda item: int(item[0].partition(".")[0]))
    ]
    shares = [text.count("7") / len(text) for text in texts]
    assert len(shares) == 24
    assert sum(shares[-3:]) / 3 > sum(shares[:3]) / 3 + 0.3


def test_a_resumed_run_is_the_same_run(settings, rows, with_model, tmp_path, metric_lines):
    how = (*with_model, "reward.function_weight=0.1", "trainer.save_freq=1", "trainer.logger=[file]")
    burnish.train(settings(*how, "trainer.total_training_steps=3", out="whole"), reward=length, dataset=rows())
    for steps in (1, 3):
        burnish.train(
            settings(*how, f"trainer.total_training_steps={steps}", out="parts"), reward=length, dataset=rows()
        )
    assert metric_lines(tmp_path / "parts") == metric_lines(tmp_path / "whole")
