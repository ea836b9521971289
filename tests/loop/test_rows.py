"""Episodes of several rows and with rewards of turns: everything that reads scores counts an episode once."""

from dataclasses import replace

import pytest
import torch

from burnish.demo.tiny import make_tokenizer
from burnish.loop.validate import validate
from burnish.reward.trajectories import last_rows
from burnish.rollout.trajectory import Trajectory

from ..reward_models import make_reward_model


class TwoRows:
    """Two responses to one prompt, in rows of their own. The first earns one per token, the second nothing."""

    uses_session = False

    async def run(self, prompt, sampler):
        rows = []
        for _ in range(2):
            completion = await sampler.generate(prompt.input, max_tokens=4)
            rows.append(Trajectory.single_turn(prompt.input, completion))
        first, last = rows
        return [replace(first, turns=[replace(first.turns[0], reward=float(len(first.ids)))]), last]


@pytest.fixture
def two_rows(make_run):
    def make(*overrides, **options):
        run = make_run(*overrides, **options)
        run.rollout.episode = TwoRows()
        return run

    return make


def one(solution_str):
    return {"score": 1.0, "acc": 0.5}


def earned(batch):
    """Of each episode, by its rows."""
    sums, lengths = batch["token_level_scores"].sums().tolist(), batch["responses"].lengths.tolist()
    return [(sums[row], sums[row + 1], lengths[row]) for row in range(0, len(sums), 2)]


def test_rewards_of_turns_add_to_the_score_once(two_rows, next_prompts):
    run = two_rows(reward=one)
    batch = run.rollout.collect(next_prompts(run), step=1)
    assert last_rows(batch) == list(range(1, len(batch), 2))
    assert all((first, last) == (float(length), 1.0) for first, last, length in earned(batch))


def test_the_greedy_baseline_has_the_rewards_of_turns(two_rows, next_prompts):
    run = two_rows(reward=one)
    run.rollout.greedy_baseline = True
    batch = run.rollout.collect(next_prompts(run), step=1)
    assert len(batch["greedy_scores"]) == len(batch)
    assert ((batch["greedy_scores"] >= 2.0) & (batch["greedy_scores"] <= 5.0)).all()
    by_prompt = {
        uid: set(batch["greedy_scores"][[row == uid for row in batch["uid"]]].tolist()) for uid in batch["uid"]
    }
    assert all(len(scores) == 1 for scores in by_prompt.values())


def test_a_group_filter_sees_the_rewards_of_turns(two_rows, next_prompts):
    seen = []
    run = two_rows("algorithm.filter_groups.enable=true", "reward.num_workers=0", reward=one)
    keeps = run.rollout.filter.keeps
    run.rollout.filter.keeps = lambda group: seen.append([sample.total for sample in group]) or keeps(group) or True
    batch = run.rollout.collect(next_prompts(run), step=1)
    assert [first + last for first, last, _ in earned(batch)] == [total for group in seen for total in group]


def test_a_reward_model_scores_the_last_row_only(two_rows, next_prompts, tmp_path):
    folder = make_reward_model(tmp_path / "scorer", make_tokenizer("0123456789+"))
    run = two_rows("reward_model.enable=true", f"reward_model.model.path={folder}", reward=one)
    batch = run.learner.reward_model.score(run.rollout.collect(next_prompts(run), step=1))
    expected = run.learner.reward_model.model.compute_scores(batch.select(last_rows(batch)))
    assert [last for _, last, _ in earned(batch)] == pytest.approx(expected, abs=1e-6)
    assert all(first == float(length) for first, _, length in earned(batch))


def test_validation_counts_an_episode_once(two_rows, rows):
    run = two_rows(reward=one, val_dataset=rows())
    batch = torch.cat(
        [
            run.rollout.collect_validation(run.rollout.val_data.batch(i, epoch=0))["token_level_scores"].sums()
            for i in run.rollout.val_batches
        ]
    )
    metrics = validate(run)
    (mean,) = (value for name, value in metrics.items() if "/reward/mean@" in name)
    assert mean == pytest.approx(float(batch.sum()) / (len(batch) / 2))
