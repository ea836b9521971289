"""Code rewards in a scorer: parallelism, errors, and closing."""

import json
import threading
import time

import pytest

from burnish.errors import UserError
from burnish.reward.sandbox import local
from burnish.reward.sandbox.settings import SandboxSettings
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings

from ..isolation.programs import forced
from .sandbox.service import run_payload, serving, slowly

SUMS = json.dumps({"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]})
RIGHT = "```python\nprint(sum(map(int, input().split())))\n```"


@pytest.fixture
def scorer():
    """scorer(**settings of the sandbox), closed after the test. Weak isolation is enough to test the pool."""
    scorers = []

    def make(on_error="fallback", **settings):
        sandbox = SandboxSettings(**{"allow_weak": True, "timeout": 5.0} | settings)
        scorers.append(Scorer(RewardSettings(num_workers=0, on_error=on_error, fallback_score=-1.0, sandbox=sandbox)))
        return scorers[-1]

    yield make
    for one in scorers:
        one.close()


@pytest.mark.parametrize("source", ["codecontests", "apps", "codeforces", "taco"])
def test_every_code_source_is_scored(source, scorer, sample):
    scores = scorer().score([sample(RIGHT, SUMS, source=source), sample("no code", SUMS, source=source)])
    assert [score.value for score in scores] == [1.0, 0.0]
    assert scores[0].extras == {"acc": True, "cases": "PP"}


def test_a_malformed_ground_truth_is_a_problem_of_its_sample(scorer, sample):
    one = scorer()
    scores = one.score([sample(RIGHT, "nonsense", source="taco"), sample(RIGHT, SUMS, source="taco")])
    assert [score.value for score in scores] == [-1.0, 1.0]
    assert "not JSON" in scores[0].problem and one.problems == {"invalid result": 1}
    with pytest.raises(UserError, match="not JSON"):
        scorer(on_error="stop").score([sample(RIGHT, "nonsense", source="taco")])


def test_a_weak_sandbox_is_refused_at_start_up(scorer, monkeypatch):
    monkeypatch.setattr(local, "isolation", lambda: forced("weak"))
    with pytest.raises(UserError, match=r"sandbox\.allow_weak=true"):
        scorer(allow_weak=False).check_sources(["openai/gsm8k", "taco"])
    one = scorer()
    one.check_sources(["openai/gsm8k"])
    assert one.notices == []
    one.check_sources(["taco"])
    assert "WEAK SANDBOX" in one.notices[0]


def test_max_cases(scorer, sample):
    truth = json.dumps({"inputs": ["1 2"] * 5, "outputs": ["3", "3", "4", "4", "4"]})
    score = scorer(max_cases=3).score([sample(RIGHT, truth, source="apps")])[0]
    assert score.value == 2 / 3 and score.extras["cases"] == "PPW"


@pytest.mark.parametrize("limit", [1, 3])
def test_max_parallel(limit, scorer, sample, monkeypatch):
    lock, running, peak = threading.Lock(), [0], [0]
    real = local.LocalRunner._run

    def counted(*arguments, **more):
        with lock:
            running[0] += 1
            peak[0] = max(peak[0], running[0])
        try:
            return real(*arguments, **more)
        finally:
            with lock:
                running[0] -= 1

    monkeypatch.setattr(local.LocalRunner, "_run", counted)
    slow = "```python\nimport time; time.sleep(0.2)\n```"
    truth = json.dumps({"inputs": [""] * 2, "outputs": [""] * 2})
    scores = scorer(max_parallel=limit).score([sample(slow, truth, source="taco")] * 3)
    assert [score.value for score in scores] == [1.0] * 3
    assert peak[0] == limit


def test_closing_stops_running_programs(sample):
    sandbox = SandboxSettings(allow_weak=True, timeout=60, max_parallel=1)
    with Scorer(RewardSettings(num_workers=0, sandbox=sandbox)) as one:
        endless = sample("```python\nwhile True: pass\n```", SUMS, source="taco")
        futures = [one.submit(endless) for _ in range(3)]
        time.sleep(0.3)
        started = time.monotonic()
    assert time.monotonic() - started < 5
    assert all(future.cancelled() or isinstance(future.exception(), RuntimeError) for future in futures)
    with pytest.raises(RuntimeError, match="closed"):
        one.submit(endless)


def test_a_sandbox_that_breaks_is_a_problem(scorer, sample, monkeypatch):
    def broken(*arguments, **more):
        raise OSError("no more processes")

    one = scorer()
    one.check_sources(["taco"])
    monkeypatch.setattr(local, "spawn_isolated", broken)
    score = one.score([sample(RIGHT, SUMS, source="taco")])[0]
    assert score.value == -1.0 and "no more processes" in score.problem


# a service


def test_a_service_scores(scorer, sample):
    with serving() as server:
        one = scorer(url=server.url)
        scores = one.score(
            [sample(RIGHT, SUMS, source="taco"), sample("```python\nprint(3)\n```", SUMS, source="taco")]
        )
        assert [score.value for score in scores] == [1.0, 0.5]
        assert server.url in one.notices[0]


def test_max_concurrent(scorer, sample):
    with serving(slowly) as server:
        one = scorer(url=server.url, max_concurrent=2)
        assert {score.value for score in one.score([sample(RIGHT, SUMS, source="taco")] * 4)} == {1.0}
        assert server.max_running == 2


def test_a_case_that_was_not_run_fails_and_no_case_run_is_a_problem(scorer, sample):
    with serving(
        lambda payload, count: (500, b"", {}) if payload["stdin"] == "3 4" else run_payload(payload)
    ) as server:
        assert scorer(url=server.url).score([sample(RIGHT, SUMS, source="taco")])[0].extras["cases"] == "PS"
    with serving(lambda payload, count: (500, b"", {}) if count > 1 else run_payload(payload)) as server:
        score = scorer(url=server.url).score([sample(RIGHT, SUMS, source="taco")])[0]
        assert score.value == -1.0 and "HTTP status 500" in score.problem


def test_a_broken_service_is_refused_at_start_up(scorer):
    with (
        serving(lambda payload, count: (404, b"", {})) as server,
        pytest.raises(UserError, match=r"sandbox_fusion\.url"),
    ):
        scorer(url=server.url).check_sources(["taco"])
