import json

import pytest
import torch

from burnish.algos.shaping import BatchMoments, RunningMoments
from burnish.batch import Batch, Ragged
from burnish.loop.fit import fit
from burnish.loop.validate import validate
from burnish.reward.shaping import Overlong, Shaper, on_last_token

from ..stepping import one_step

LENGTHS = [2, 4, 8, 10]
REASONS = ["stop", "stop", "stop", "length"]


def batch_of(scores, lengths=LENGTHS, reasons=REASONS):
    responses = Ragged.of([[5] * n for n in lengths], torch.int64)
    flat = torch.zeros(sum(lengths))
    flat[responses.lengths.cumsum(0) - 1] = torch.tensor(scores)
    return Batch(responses=responses, token_level_scores=Ragged.like(flat, responses), finish_reason=list(reasons))


def shaped(shaper, scores=(1.0, 2.0, 3.0, 4.0)):
    return [sum(row) for row in shaper.shape(batch_of(scores))[0]["shaped_scores"].lists()]


BUFFER = Overlong(max_length=10, buffer=4, factor=1.0, log=False)  # takes off 0, 0, 0.5, 1


@pytest.mark.parametrize(
    ("shaper", "expected"),
    [
        (Shaper(BUFFER), [1.0, 2.0, 2.5, 3.0]),
        (Shaper(stop_coefficient=0.5), [1.0, 2.0, 3.0, 2.0]),
        (Shaper(stop_coefficient=-1.0), [1.0, 2.0, 3.0, -1.0]),
        (Shaper(scale=-2.0), [-2.0, -4.0, -6.0, -8.0]),
        (Shaper(clip=(1.5, 2.5)), [1.5, 2.0, 2.5, 2.5]),
        (Shaper(BUFFER, 0.5), [1.0, 2.0, 2.5, 1.5]),  # first the points off, then the share
        (Shaper(BUFFER, -1.0, 10.0), [10.0, 20.0, 25.0, -10.0]),  # then the scale
        (Shaper(BUFFER, -1.0, 10.0, clip=(-5.0, 15.0)), [10.0, 15.0, 15.0, -5.0]),  # bounds last
    ],
)
def test_each_part_in_its_order(shaper, expected):
    assert shaped(shaper) == pytest.approx(expected)


def test_bounds_come_after_normalising():
    scores = torch.tensor([1.0, 2.0, 3.0, 4.0])
    expected = ((scores - scores.mean()) / scores.std()).clamp(-1, 1)
    assert shaped(Shaper(normalizer=BatchMoments(), clip=(-1.0, 1.0))) == pytest.approx(expected.tolist())


def test_running_normalization_continues_from_its_state():
    whole, first, second = (Shaper(normalizer=RunningMoments()) for _ in range(3))
    shaped(whole)
    expected = shaped(whole, (5.0, 5.0, 9.0, 1.0))
    shaped(first)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert shaped(second, (5.0, 5.0, 9.0, 1.0)) == expected
    Shaper().load_state_dict(first.state_dict())
    second.load_state_dict({})
    assert second.state_dict() == whole.state_dict(), "a checkpoint without a state changes nothing"


def test_nothing_to_do_adds_nothing():
    batch = batch_of([1.0, 2.0, 3.0, 4.0])
    assert Shaper().shape(batch) == (batch, {})


def test_scores_stay_what_the_reward_gave():
    batch = batch_of([1.0, 2.0, 3.0, 4.0])
    before = batch["token_level_scores"].flat.clone()
    after, _ = Shaper(scale=3.0).shape(batch)
    assert torch.equal(after["token_level_scores"].flat, before)


def test_what_is_added_stands_on_the_last_token():
    raw = Ragged.of([[0.5, 1.0], [], [2.0]], torch.float32)
    assert on_last_token(Batch(responses=raw), raw, torch.tensor([4.0, 9.0, -1.0])).lists() == [[0.5, 3.5], [], [-1.0]]


def test_the_penalty_is_logged_if_requested():
    batch, metrics = Shaper(Overlong(10, 4, 1.0, log=True)).shape(batch_of([1.0, 2.0, 3.0, 4.0]))
    assert batch["overlong_reward"].tolist() == [0.0, 0.0, -0.5, -1.0]
    assert metrics == {"reward/overlong_reward": -0.375, "reward/overlong": 0.5}


# in a run

BUFFERED = (
    "reward_model.overlong_buffer.enable=true",
    "reward_model.overlong_buffer.len=4",
    "reward_model.overlong_buffer.penalty_factor=8",
    "reward_model.overlong_buffer.log=true",
)


def test_scores_are_logged_raw_and_rewards_shaped(make_run, tmp_path):
    run = make_run(*BUFFERED, reward=lambda solution_str: 1.0)
    metrics = fit(run).metrics
    assert metrics["critic/score/mean"] == metrics["critic/score/min"] == 1.0
    assert metrics["critic/rewards/min"] == 1.0 - 8.0, "a response of five tokens is at the limit"
    assert metrics["reward/overlong"] > 0 > metrics["reward/overlong_reward"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "rollouts" / "1.jsonl").read_text().splitlines()]
    assert all(line["score"] == 1.0 and line["overlong"] == (line["overlong_reward"] < 0) for line in lines)
    assert min(line["overlong_reward"] for line in lines) == -8.0


def test_advantages_are_those_of_shaped_scores(make_run, next_prompts):
    centred = "algorithm.norm_adv_by_std_in_grpo=false"
    run, plain = (
        make_run(centred, f"reward.scale={n}", reward=lambda solution_str: len(solution_str), out=str(n))
        for n in (-1, 1)
    )
    batch, _ = one_step(run)
    expected, _ = one_step(plain)
    assert batch["advantages"].flat.abs().sum() > 0
    torch.testing.assert_close(batch["advantages"].flat, -expected["advantages"].flat)


def test_a_greedy_baseline_is_shaped_alike(make_run, next_prompts):
    run = make_run("reward.scale=10", *BUFFERED)
    run.rollout.greedy_baseline = True
    batch = run.rollout.collect(next_prompts(run), step=1)
    batch, _ = run.learner.shaper.shape(batch)
    penalty = run.learner.shaper.overlong.penalty(batch["greedy_lengths"])
    torch.testing.assert_close(batch["shaped_greedy_scores"], (batch["greedy_scores"] + penalty) * 10)
    assert penalty.min() < 0


def test_validation_is_not_shaped(make_run, rows):
    plain, shaping = (make_run(*more, val_dataset=rows(3), out=str(len(more))) for more in ((), ("reward.scale=9",)))
    assert validate(shaping) == validate(plain) != {}
