import itertools
import math
import threading
from concurrent.futures import Future

import pytest
import torch

from burnish.config.algorithm import FilterGroupsConfig
from burnish.errors import UserError
from burnish.loop.fit import fit
from burnish.models.model_input import ModelInput
from burnish.reward.group_filter import FILTER_METRICS, GroupFilter
from burnish.reward.sample import Score
from burnish.reward.shaping import Overlong, Shaper
from burnish.reward.trajectories import ScoredTrajectory
from burnish.rollout.engine import Completion
from burnish.rollout.trajectory import Trajectory

FILTER = "algorithm.filter_groups"
ON = (f"{FILTER}.enable=true", "reward.num_workers=0")
PLAIN = Shaper()


def answer(value=0.0, length=3, reason="stop", problem=None, **extras):
    completion = Completion([5] * length, [-1.0] * length, [1] * length, reason)
    trajectory = Trajectory.single_turn(ModelInput((4,)), completion)
    return ScoredTrajectory(trajectory, "5" * length, Score(value, extras, problem))


def a_filter(metric=None, reward_range=None, wanted=4, in_flight=4, rounds=0, shaper=PLAIN):
    return GroupFilter(FilterGroupsConfig(True, metric, rounds, reward_range), wanted, in_flight, shaper)


def only_multiples_of(*divisors):
    """Groups of these prompts differ; the responses to other prompts all score 1."""

    def reward(solution_str, extra_info):
        chosen = any(extra_info["number"] % divisor == 0 for divisor in divisors)
        return float(sum(map(ord, solution_str))) if chosen else 1.0

    return reward


def numbers(batch):
    """Of the prompts, once each."""
    return [info["number"] for info in batch["extra_info"][::2]]


def stream(run, count):
    """The next prompts of the run, which stays where it is."""
    indices, epochs = run.rollout.sampler.draw(count)
    found = [info["number"] for info in run.rollout.train_data.batch(indices, epochs)["extra_info"]]
    run.rollout.sampler.give_back(count)
    return found


# which groups are kept


@pytest.mark.parametrize(
    ("metric", "group", "kept"),
    [
        (None, [answer(0.0), answer(1.0)], True),
        (None, [answer(1.0, acc=0), answer(1.0, acc=1)], False),
        ("score", [answer(1.0), answer(1.0)], False),
        ("acc", [answer(1.0, acc=False), answer(1.0, acc=True)], True),
        ("acc", [answer(0.5, acc=1), answer(1.0, acc=1)], False),
        ("acc", [answer(0.5), answer(1.0)], True),
        ("right", [answer(1.0, right=0.2), answer(1.0, right=0.3)], True),
        ("right", [answer(-1.0, problem="it raised"), answer(1.0, right=-1.0)], False),
        ("seq_reward", [answer(1.0, 3), answer(1.0, 9)], True),
        ("seq_final_reward", [answer(1.0, 3), answer(1.0, 4)], False),
    ],
)
def test_a_metric_must_differ(metric, group, kept):
    shaper = Shaper(Overlong(max_length=10, buffer=5, factor=1.0, log=False))
    assert a_filter(metric, shaper=shaper).keeps(group) is kept


def test_a_range_holds_the_mean_of_the_metric():
    easy, hard, fine = [answer(1.0), answer(1.0)], [answer(0.0), answer(0.0)], [answer(0.5), answer(0.5)]
    ranged = a_filter(reward_range=[0.0, 1.0])
    assert [ranged.keeps(group) for group in (easy, hard, fine)] == [False, False, True]
    assert a_filter("acc", [0.0, 1.0]).keeps([answer(9.0, acc=0), answer(9.0, acc=1)])


def test_an_unknown_metric_names_what_the_reward_returned():
    with pytest.raises(UserError, match="did not return it") as caught:
        a_filter("accuracy").keeps([answer(acc=1, pred="x", tries=2.0)])
    assert caught.value.key == f"{FILTER}.metric" and caught.value.value == "accuracy"
    assert caught.value.allowed == sorted([*FILTER_METRICS.names(), "tries"])
    with pytest.raises(UserError, match="'x', not a number"):
        a_filter("pred").keeps([answer(pred="x")])


# the step


def test_rejected_groups_are_replaced_one_by_one(make_run):
    run = make_run(*ON, reward=only_multiples_of(2))
    ahead = stream(run, 24)
    batch = run.rollout.collect(run.rollout.next_prompts(), step=1)
    chosen = [number for number in ahead if number % 2 == 0][:4]
    used = 1 + [place for place, number in enumerate(ahead) if number % 2 == 0][3]
    assert numbers(batch) == chosen and len(batch) == 8
    assert stream(run, 3) == ahead[used : used + 3], "the next step begins behind the last prompt that was needed"
    assert run.rollout.filter.take_metrics() == {
        "train/num_gen_batches": math.ceil(used / 4),
        "train/num_prompts": used,
        "train/num_filtered_groups": used - 4,
        "train/filtered_groups": (used - 4) / used,
    }
    assert run.rollout.filter.take_metrics() == {}


@pytest.mark.parametrize("in_flight", [1, 3, 9, 30])
def test_prompts_in_flight_change_nothing_but_the_speed(make_run, in_flight):
    run = make_run(*ON, reward=only_multiples_of(3))
    expected = run.rollout.collect(run.rollout.next_prompts(), step=1)
    position = run.rollout.sampler.state_dict()
    other = make_run(*ON, f"data.gen_batch_size={in_flight}", reward=only_multiples_of(3))
    batch = other.rollout.collect(other.rollout.next_prompts(), step=1)
    assert batch["uid"] == expected["uid"]
    assert batch["responses"].lists() == expected["responses"].lists()
    assert torch.equal(batch["rollout_log_probs"].flat, expected["rollout_log_probs"].flat)
    assert other.rollout.sampler.state_dict() == position
    other.rollout.engine.sleep(level=1)  # nothing is left on its way


def test_an_engine_that_is_not_invariant_goes_round_by_round(make_run):
    run = make_run(*ON, "actor_rollout_ref.rollout.invariant=false", reward=only_multiples_of(2))
    calls, generate = [], run.rollout.engine.generate
    run.rollout.engine.generate = lambda requests: calls.append(len(requests) // 2) or generate(requests)
    ahead = stream(run, 24)
    run.rollout.collect(run.rollout.next_prompts(), step=1)
    expected, place, kept = [], 0, 0
    while kept < 4:
        expected.append(4 - kept)
        found = ahead[place : place + expected[-1]]
        place, kept = place + len(found), kept + sum(number % 2 == 0 for number in found)
    assert calls == expected


def test_accepted_groups_are_carried_across_the_epoch(make_run):
    run = make_run(*ON, reward=only_multiples_of(4))  # three of twelve prompts, four are wanted
    batch = run.rollout.collect(run.rollout.next_prompts(), step=1)
    assert sorted({uid.rpartition("-")[2] for uid in batch["uid"]}) == ["0", "1"]
    assert len(set(batch["uid"])) == 4 and run.rollout.sampler.epoch == 1


class Held:
    """The run's own engine, which hands over the first completion and holds the others back until it was scored."""

    def __init__(self, engine, scored):
        self.engine, self.scored, self.capabilities = engine, scored, engine.capabilities

    def generate(self, requests):
        made = self.engine.generate(requests)
        futures = [Future() for _ in made]
        threading.Thread(target=self.hand_over, args=(list(zip(futures, made, strict=True)),), daemon=True).start()
        return futures

    def hand_over(self, pairs):
        pairs[0][0].set_result(pairs[0][1].result())
        in_time = self.scored.wait(timeout=10)
        for future, made in pairs[1:]:
            future.set_result(made.result()) if in_time else future.set_exception(TimeoutError("nothing was scored"))

    def step(self):
        return False

    def __getattr__(self, name):
        return getattr(self.engine, name)


def test_scores_are_made_while_others_still_generate(make_run):
    scored, calls = threading.Event(), itertools.count()

    def reward(solution_str):
        scored.set()
        return float(next(calls))

    run = make_run(*ON, reward=reward)
    engine, run.rollout.engine = run.rollout.engine, Held(run.rollout.engine, scored)
    assert len(run.rollout.collect(run.rollout.next_prompts(), step=1)) == 8
    run.rollout.engine = engine


def test_order_of_completion_decides_nothing(make_run):
    """Rewards come back in another order from several worker threads of the pool."""
    run = make_run(*ON, reward=only_multiples_of(3))
    expected = run.rollout.collect(run.rollout.next_prompts(), step=1)
    other = make_run(*ON, "reward.num_workers=2", "data.gen_batch_size=8", reward=only_multiples_of(3), out="other")
    batch = other.rollout.collect(other.rollout.next_prompts(), step=1)
    assert batch["uid"] == expected["uid"] and batch["responses"].lists() == expected["responses"].lists()
    assert other.rollout.sampler.state_dict() == run.rollout.sampler.state_dict()


# when it does not end


def test_so_many_rounds_and_no_more(make_run):
    run = make_run(*ON, f"{FILTER}.max_num_gen_batches=2", reward=only_multiples_of(12))
    with pytest.raises(UserError, match=r"2 rounds of 4 prompts gave [01] of the 4 groups") as caught:
        run.rollout.collect(run.rollout.next_prompts(), step=1)
    assert caught.value.key == f"{FILTER}.max_num_gen_batches"
    enough = make_run(*ON, f"{FILTER}.max_num_gen_batches=2", reward=only_multiples_of(1), out="enough")
    assert len(enough.rollout.collect(enough.rollout.next_prompts(), step=1)) == 8


def test_a_reward_that_never_differs_stops_the_run(make_run, monkeypatch):
    monkeypatch.setattr("burnish.loop.rollout.MIN_REJECTED", 3)
    run = make_run(*ON, reward=lambda solution_str: 1.0)
    with pytest.raises(UserError, match=r"the last 12 groups \(an epoch has 12\) were all rejected") as caught:
        run.rollout.collect(run.rollout.next_prompts(), step=1)
    assert caught.value.key == f"{FILTER}.enable"


# the run


def test_epochs_are_used_up_and_the_last_step_is_full(launch):
    result = launch(
        *ON, "trainer.total_training_steps=null", "trainer.total_epochs=2", reward=only_multiples_of(2), out="epochs"
    )
    assert result.step == 3, "24 prompts, half of them kept, four a step"
    assert result.metrics["rollout/num_groups"] == 4
    assert not result.interrupted


def test_steps_are_what_counts_where_they_are_given(launch, tmp_path):
    result = launch(*ON, "trainer.total_training_steps=5", "trainer.total_epochs=1", reward=only_multiples_of(2))
    assert result.step == 5 and result.metrics["training/epoch"] >= 2


def test_a_run_that_is_done_is_done_when_it_is_started_again(launch, tmp_path):
    steps = (*ON, "trainer.total_training_steps=null", "trainer.total_epochs=1", "trainer.save_freq=1")
    first = launch(*steps, reward=only_multiples_of(2))
    assert launch(*steps, reward=only_multiples_of(2)).step == first.step


def test_a_resumed_run_decides_the_same(make_run, ctrl_c_at, weights, equal, metric_lines, rollouts, tmp_path):
    """To the last bit: weights, numbers and responses, with more prompts in flight than a step takes."""
    steps = (*ON, "trainer.total_training_steps=4", "trainer.logger=[file]", "data.gen_batch_size=6")
    shaped = ("reward.normalize=running", "reward.scale=2", "algorithm.adv_estimator=reinforce_plus_plus")

    whole = make_run(*steps, *shaped, out="whole")
    fit(whole)
    first = make_run(*steps, *shaped, out="halves", reward=ctrl_c_at(9))
    assert fit(first).interrupted and first.step < 4
    first.close()
    torch.manual_seed(99)
    second = make_run(*steps, *shaped, out="halves")
    assert 0 < second.step < 4
    fit(second)
    assert equal(weights(second.learner.policy), weights(whole.learner.policy))
    assert second.rollout.sampler.state_dict() == whole.rollout.sampler.state_dict()
    assert second.learner.shaper.state_dict() == whole.learner.shaper.state_dict() != {}
    assert metric_lines(tmp_path / "halves") == metric_lines(tmp_path / "whole")
    assert rollouts(tmp_path / "halves") == rollouts(tmp_path / "whole")
    filtered = [line["train/num_filtered_groups"] for _, line in metric_lines(tmp_path / "whole")]
    assert len(filtered) == 4 and sum(filtered) > 0, "something was filtered in this run"
