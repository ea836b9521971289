import asyncio
import time

import pytest

from burnish.errors import UserError
from burnish.reward.managers import REWARD_MANAGERS
from burnish.reward.settings import RewardSettings


@pytest.fixture
def batch():
    """batch(function, **settings): a scorer that calls once per batch; closed after the test."""
    scorers = []

    def make(function, **settings):
        scorers.append(REWARD_MANAGERS["batch"].load()(RewardSettings(**({"num_workers": 1} | settings)), function))
        return scorers[-1]

    yield make
    for one in scorers:
        one.close()


def how_many(solution_strs, ground_truths, data_sources, extra_infos):
    calls = [[text, truth] for text, truth in zip(solution_strs, ground_truths, strict=True)]
    return [{"score": len(text), "batch": len(calls), "source": data_sources[0]} for text in solution_strs]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_one_call_for_all_announced_samples(batch, sample, num_workers):
    one = batch(how_many, num_workers=num_workers)
    one.expect(2)
    one.expect(1)
    futures = [one.submit(sample("a")), one.submit(sample("bb"))]
    time.sleep(0.2)
    assert not any(future.done() for future in futures)
    futures.append(one.submit(sample("ccc")))
    scores = [future.result(10) for future in futures]
    assert [score.value for score in scores] == [1.0, 2.0, 3.0]
    assert {score.extras["batch"] for score in scores} == {3}
    assert [score.extras["batch"] for score in one.score([sample(), sample()])] == [2, 2]
    assert one.submit(sample()).result(10).extras["batch"] == 1  # not announced


def test_begin_forgets_samples_that_were_not_submitted(batch, sample):
    one = batch(how_many)
    one.expect(5)
    lost = one.submit(sample())
    one.begin()
    assert [score.extras["batch"] for score in one.score([sample(), sample()])] == [2, 2]
    assert not lost.done()


def test_a_cancelled_sample_is_left_out(batch, sample):
    one = batch(how_many)
    one.expect(3)
    futures = [one.submit(sample("a")), one.submit(sample("bb"))]
    assert futures[0].cancel()
    futures.append(one.submit(sample("ccc")))
    assert [future.result(10).extras["batch"] for future in futures[1:]] == [2, 2]


def test_a_failing_call_fails_all_samples(batch, sample):
    def short(solution_strs):
        return [1.0] * (len(solution_strs) - 1)

    one = batch(short, fallback_score=-1.0)
    scores = one.score([sample(), sample(), sample()])
    assert [score.value for score in scores] == [-1.0] * 3
    assert {score.problem for score in scores} == {"returned 2 scores for 3 responses in test_batch.py:short"}
    assert one.problems == {"invalid result": 3}


def test_one_invalid_score_fails_its_sample_only(batch, sample):
    scores = batch(lambda solution_strs: [1.0, float("nan"), {"score": 2}]).score([sample(), sample(), sample()])
    assert [score.value for score in scores] == [1.0, 0.0, 2.0]
    assert [score.problem is None for score in scores] == [True, False, True]


def test_on_error_stop(batch, sample):
    one = batch(lambda solution_strs: None, on_error="stop")
    with pytest.raises(UserError, match="returned NoneType instead of a list of 2 scores"):
        one.score([sample(), sample()])


def test_the_time_limit_grows_with_the_batch(batch, sample):
    def slow(solution_strs):
        time.sleep(0.8)
        return [1.0 for _ in solution_strs]

    one = batch(slow, timeout=0.5)
    assert [score.value for score in one.score([sample(), sample(), sample()])] == [1.0] * 3
    assert one.score([sample()])[0].problem == "timed out after 0.5 s in test_batch.py:slow"


def test_async_functions_and_prints(batch, sample, caplog):
    caplog.set_level("DEBUG", logger="burnish.reward")

    async def judge(solution_strs):
        print("judging")
        await asyncio.sleep(0.01)
        return [0.25 for _ in solution_strs]

    assert [score.value for score in batch(judge).score([sample(), sample()])] == [0.25, 0.25]
    assert "printed: judging" in caplog.text


def test_a_sample_that_cannot_be_pickled_does_not_fail_the_others(batch, sample):
    one = batch(how_many)
    one.expect(2)
    bad = one.submit(sample(extra={"generator": (i for i in ())}))
    good = one.submit(sample("abc"))
    with pytest.raises(UserError, match="cannot be sent to a worker"):
        bad.result(10)
    assert good.result(10).extras["batch"] == 1


def test_closing_fails_pending_samples(batch, sample):
    one = batch(lambda solution_strs: time.sleep(60))
    one.expect(2)
    futures = [one.submit(sample()), one.submit(sample())]
    time.sleep(0.2)
    one.close()
    for future in futures:
        with pytest.raises(RuntimeError, match="closed before this sample was scored"):
            future.result(5)
    with pytest.raises(RuntimeError, match="closed"):
        one.submit(sample()).result(5)


def test_built_in_rules_are_called_per_response(batch, sample):
    assert [score.value for score in batch(None).score([sample("42"), sample("41")])] == [1.0, 0.0]
