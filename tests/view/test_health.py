"""Alarms: each is raised by the metrics it is for, and a healthy run raises none."""

import math

import pytest

from burnish.view.alarm_texts import TEXTS
from burnish.view.health import check, checks
from burnish.view.runs import RunState

HEALTHY = {
    "rollout/zero_variance_groups": 0.2,
    "rollout/truncated": 0.02,
    "actor/ppo_kl": 0.001,
    "actor/grad_norm": 1.0,
    "rollout_corr/k3_kl": 1e-4,
    "training/rollout_actor_probs_pearson_corr": 0.9999,
    "actor/pg_clipfrac": 0.01,
    "actor/entropy": 0.8,
    "actor/skipped_updates": 0.0,
    "reward/failed": 0.0,
    "tools/calls": 20.0,
    "tools/failed": 0.0,
    "async/version_lag/mean": 0.5,
}


def run(num_steps=40, **last):
    """Healthy steps, and the last ten with other metrics ("_" stands for "/")."""
    steps = {step: dict(HEALTHY) for step in range(1, num_steps + 1)}
    for step in range(num_steps - 9, num_steps + 1):
        steps[step] |= last
    return steps


def state(name="running", silence=1.0, step=40):
    return RunState(name, step, 100, 0.0, 1000.0 - silence, 2.0, None, "gen" if name == "hung" else "")


def kinds(steps, *more):
    return [(alarm.kind, alarm.severity) for alarm in check(steps, *more) if alarm.is_active]


def test_a_healthy_run_raises_none():
    assert check(run(), state(), now=1000.0) == [] and check({}) == []


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"rollout/zero_variance_groups": 0.6}, ("zero_variance", "warning")),
        ({"rollout/zero_variance_groups": 0.95}, ("zero_variance", "critical")),
        ({"rollout/zero_variance_groups": 0.95, "critic/vf_loss": 0.1}, None),
        ({"rollout/truncated": 0.3}, ("truncation", "warning")),
        ({"actor/ppo_kl": 0.4}, ("kl_spike", "critical")),
        ({"actor/grad_norm": 30.0}, ("gradient_spike", "critical")),
        ({"rollout_corr/k3_kl": 0.2}, ("mismatch", "critical")),
        ({"training/rollout_actor_probs_pearson_corr": 0.97}, ("mismatch", "warning")),
        ({"actor/pg_clipfrac": 0.4}, ("clipping", "warning")),
        ({"actor/entropy": 0.01}, ("entropy", "warning")),
        ({"actor/skipped_updates": 1.0}, ("skipped_updates", "critical")),
        ({"reward/failed": 3.0}, ("reward_failures", "critical")),
        ({"tools/failed": 4.0, "tools/timed_out": 4.0}, ("tools", "warning")),
        ({"tools/failed": 1.5, "tools/timed_out": 1.5}, None),  # 7.5 %: those that timed out are among the failed
        ({"async/version_lag/mean": 3.0}, ("stale", "warning")),
        ({"rollout/tokenization_drift": 0.2}, ("drift", "warning")),
        ({"training/restarts": 1.0}, ("faults", "critical")),
        ({"actor/pg_loss": math.nan}, ("non_finite", "critical")),
    ],
)
def test_each_problem_has_an_alarm(metrics, expected):
    assert kinds(run(**metrics)) == ([] if expected is None else [expected])


def test_one_spike_is_a_warning_and_later_a_notice():
    steps = run()
    steps[38]["actor/grad_norm"] = 12.0
    (alarm,) = check(steps)
    assert (alarm.severity, alarm.steps, alarm.value, alarm.threshold) == ("warning", (38,), 12.0, 5.0)
    steps = run(60)
    steps[20]["actor/grad_norm"] = 12.0
    (alarm,) = check(steps)
    assert (alarm.severity, alarm.is_active) == ("notice", False)


def test_what_a_run_survived_stays_a_notice():
    steps = run(60)
    steps[5]["reward/failed"] = 2.0
    (alarm,) = check(steps)
    assert (alarm.kind, alarm.is_active, alarm.steps) == ("reward_failures", False, (5,))


def test_hangs_and_silence():
    assert kinds(run(), state("hung"), 1000.0) == [("hang", "critical")]
    assert kinds(run(), state(silence=500), 1000.0) == [("silent", "critical")]
    assert kinds(run(), state("stopped"), 1000.0) == [("stopped", "notice")]
    assert kinds(run(), state("crashed"), 1000.0) == [("crashed", "critical")]
    assert kinds(run(), state("finished"), 1000.0) == []


def test_critical_alarms_come_first():
    steps = run(**{"rollout/truncated": 0.3, "reward/failed": 1.0})
    assert [alarm.severity for alarm in check(steps)] == ["critical", "warning"]


def test_every_alarm_is_explained_in_both_languages():
    for texts in TEXTS.values():
        assert set(texts) == {f"{part}_{lang}" for part in ("title", "meaning", "remedy") for lang in ("en", "zh")}
        assert all(texts.values())
    (alarm,) = check(run(**{"rollout/truncated": 0.3}))
    assert (
        "max_response_length" in alarm.text("remedy") and alarm.text("title", "zh") == TEXTS["truncation"]["title_zh"]
    )


def test_what_cannot_be_checked_is_said():
    made = {one.kind: one for one in checks(run(**{"rollout/truncated": 0.1}))}
    assert (made["truncation"].metric, made["truncation"].value, made["truncation"].threshold) == (
        *("rollout/truncated", pytest.approx(0.1)),
        0.2,
    )
    assert made["drift"].metric is None and made["gradient_spike"].metric == "actor/grad_norm"
    assert {one.kind for one in checks({}) if one.metric is not None} == set()
    assert made.keys() == {one.kind for one in checks({})}
