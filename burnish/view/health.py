"""Health of a run: alarms computed from its metrics, each with what it means and what to try.

`check` is a pure function of the metrics; the web viewer and the terminal show its result. A threshold is a starting
point for a look at the run, not a verdict.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from burnish.view.alarm_texts import TEXTS
from burnish.view.listing import MIN_SILENCE, SILENCE
from burnish.view.liveness import CRASHED, HUNG, RUNNING, STOPPED
from burnish.view.runs import RunState

WINDOW = 10  # newest steps that decide whether an alarm is active
MIN_HISTORY, SPIKE_HISTORY = 5, 20  # steps before a spike that it is compared with
CRITICAL, WARNING, NOTICE = "critical", "warning", "notice"
SEVERITIES = (CRITICAL, WARNING, NOTICE)

VALUE_LOSS = "critic/vf_loss"  # of a critic, which gives advantages to groups with equal scores too

Steps = Mapping[int, Mapping[str, float]]
Curve = list[tuple[int, float]]


@dataclass(frozen=True)
class Alarm:
    """A problem that the metrics show. `is_active` means within the newest steps."""

    kind: str
    severity: str
    metric: str
    value: float | None  # the number that raised it
    threshold: float | None
    steps: tuple[int, ...] = ()  # where it was seen
    is_active: bool = True
    detail: str = ""

    def text(self, part: str, lang: str = "en") -> str:
        """The title, meaning or remedy, in English or Chinese."""
        texts = TEXTS[self.kind]
        return texts.get(f"{part}_{lang}", texts[f"{part}_en"])


@dataclass(frozen=True)
class Limit:
    """Alarm where the mean of the newest steps reaches `warning`, or `critical`."""

    kind: str
    metrics: tuple[str, ...]  # the first that the run has
    warning: float
    critical: float
    is_low: bool = False  # small values are the problem
    unless: str | None = None  # no problem in runs that have this metric


LIMITS = (
    Limit("zero_variance", ("rollout/zero_variance_groups",), 0.5, 0.9, unless=VALUE_LOSS),
    Limit("truncation", ("rollout/truncated", "response_length/clip_ratio"), 0.2, 0.5),
    Limit("mismatch", ("rollout_corr/k3_kl",), 0.01, 0.1),
    Limit("mismatch", ("training/rollout_actor_probs_pearson_corr",), 0.99, 0.95, is_low=True),
    Limit("clipping", ("actor/pg_clipfrac",), 0.3, 0.6),
    Limit("stale", ("async/version_lag/mean",), 2.0, 5.0),
    Limit("drift", ("rollout/tokenization_drift",), 0.05, 0.5),
)
KL = ("actor/ppo_kl", "actor/kl_loss", "actor/reward_kl_penalty")
SPIKES = {  # metric -> (kind, factor over the median of the steps before, smallest value that counts)
    **{name: ("kl_spike", 5.0, 0.05) for name in KL},
    "actor/grad_norm": ("gradient_spike", 5.0, 1e-3),
    "critic/grad_norm": ("gradient_spike", 5.0, 1e-3),
}
REWARD_FAILURES = ("reward/failed", "reward_model/failed")
SKIPPED = "/skipped_updates"  # of every role
ENTROPY = "actor/entropy"
ENTROPY_SHARE, ENTROPY_LOW = 0.1, 0.05  # of the first steps; nats per token
TOOL_FAILURES = (0.1, 0.5)


def check(steps: Steps, state: RunState | None = None, now: float | None = None) -> list[Alarm]:
    """All alarms, active and severe ones first."""
    alarms = [] if state is None else list(_liveness(state, time.time() if now is None else now))
    alarms += [alarm for rule in RULES for alarm in rule(steps)]
    return sorted(alarms, key=lambda alarm: (not alarm.is_active, SEVERITIES.index(alarm.severity)))


@dataclass(frozen=True)
class Check:
    """What an alarm looks at. `metric` is None where the run has none of its metrics: it cannot be raised."""

    kind: str
    metric: str | None
    value: float | None = None  # mean of the newest steps
    threshold: float | None = None
    is_low: bool = False

    def title(self, lang: str = "en") -> str:
        texts = TEXTS[self.kind]
        return texts.get(f"title_{lang}", texts["title_en"])


def checks(steps: Steps) -> list[Check]:
    """Every check of the metrics, with where the run stands."""
    names = {name for values in steps.values() for name in values}
    limits = [limit for limit in LIMITS if limit.unless not in names]
    rows = [(limit.kind, limit.metrics, limit.warning, limit.is_low) for limit in limits]
    rows += [(kind, (name,), _spike_limit(_finite(steps, name), name), False) for name, (kind, _, _) in SPIKES.items()]
    skipped = tuple(sorted(name for name in names if name.endswith(SKIPPED)))
    rows += [("reward_failures", REWARD_FAILURES, 0.0, False), ("skipped_updates", skipped, 0.0, False)]
    rows += [("entropy", (ENTROPY,), _entropy_limit(_finite(steps, ENTROPY)), True)]
    found = []
    for kind, metrics, threshold, is_low in rows:
        metric = next((name for name in metrics if name in names), None)
        points = [] if metric is None else _finite(steps, metric)
        found.append(Check(kind, metric, _recent(points), threshold, is_low))
    shares = _tool_failures(steps)
    found.append(Check("tools", "tools/failed / tools/calls" if shares else None, _recent(shares), TOOL_FAILURES[0]))
    seen = {check.kind for check in found if check.metric is not None}
    # Of several metrics of a kind those that are missing say nothing, if another one is there.
    unique = {check.kind: check for check in found if check.kind not in seen}
    return [check for check in found if check.metric is not None] + list(unique.values())


def _finite(steps: Steps, name: str) -> Curve:
    return [(step, value) for step, value in curve(steps, name) if math.isfinite(value)]


def _recent(points: Curve) -> float | None:
    """The mean of the newest steps."""
    values = [value for _, value in points[-WINDOW:]]
    return sum(values) / len(values) if values else None


def _spike_limit(before: Curve, name: str) -> float | None:
    """What a step may not exceed after these; None for too few."""
    _, factor, floor = SPIKES[name]
    if len(before) < MIN_HISTORY:
        return None
    return max(factor * median(abs(value) for _, value in before[-SPIKE_HISTORY:]), floor)


def _entropy_limit(points: Curve) -> float | None:
    """Of a run that is long enough: a share of the entropy at its start."""
    if len(points) < 2 * WINDOW:
        return None
    return min(ENTROPY_SHARE * sum(value for _, value in points[:5]) / 5, ENTROPY_LOW)


def _tool_failures(steps: Steps) -> Curve:
    """The share of calls that failed; those that timed out are among them."""
    calls = [(step, values) for step, values in sorted(steps.items()) if values.get("tools/calls", 0.0) > 0]
    return [(step, values.get("tools/failed", 0.0) / values["tools/calls"]) for step, values in calls]


def curve(steps: Steps, name: str) -> Curve:
    return [(step, values[name]) for step, values in sorted(steps.items()) if name in values]


def _limits(steps: Steps) -> Iterator[Alarm]:
    names = {name for values in steps.values() for name in values}
    for limit in LIMITS:
        name = next((name for name in limit.metrics if name in names and limit.unless not in names), None)
        points = [] if name is None else _finite(steps, name)
        recent = _recent(points)
        if name is None or recent is None:
            continue
        sign = -1 if limit.is_low else 1
        beyond = tuple(step for step, value in points if sign * value >= sign * limit.warning)
        if sign * recent >= sign * limit.warning:
            severity = CRITICAL if sign * recent >= sign * limit.critical else WARNING
            yield Alarm(limit.kind, severity, name, recent, limit.warning, beyond)
        elif len(beyond) >= WINDOW:
            worst = max((value for _, value in points), key=lambda value: sign * value)
            yield Alarm(limit.kind, NOTICE, name, worst, limit.warning, beyond, is_active=False)


def _spikes(steps: Steps) -> Iterator[Alarm]:
    for name, (kind, _, _) in SPIKES.items():
        points, found = _finite(steps, name), []
        for place, (step, value) in enumerate(points):
            limit = _spike_limit(points[max(0, place - SPIKE_HISTORY) : place], name)
            if limit is not None and abs(value) > limit:
                found.append((step, abs(value), limit))
        if found:
            is_active = found[-1][0] in {step for step, _ in points[-WINDOW:]}
            _, value, limit = max(found, key=lambda spike: spike[1] / spike[2])
            numbers = tuple(step for step, _, _ in found)
            severity = (CRITICAL if len(found) >= 3 else WARNING) if is_active else NOTICE
            yield Alarm(kind, severity, name, value, limit, numbers, is_active)


def _counted(kind: str, names: Callable[[str], bool]) -> Callable[[Steps], Iterator[Alarm]]:
    """An alarm for metrics that should be 0."""

    def rule(steps: Steps) -> Iterator[Alarm]:
        present = sorted({name for values in steps.values() for name in values if names(name)})
        for name in present:
            points = curve(steps, name)
            seen = [(step, value) for step, value in points if value > 0 or not math.isfinite(value)]
            if not seen:
                continue
            recent = {step for step, _ in points[-WINDOW:]}
            num_recent = sum(step in recent for step, _ in seen)
            severity = CRITICAL if num_recent * 2 > WINDOW else WARNING if num_recent else NOTICE
            total = sum(value for _, value in seen if math.isfinite(value))
            yield Alarm(kind, severity, name, total, 0.0, tuple(step for step, _ in seen), num_recent > 0)

    return rule


def _tools(steps: Steps) -> Iterator[Alarm]:
    shares, (warning, critical) = _tool_failures(steps), TOOL_FAILURES
    recent = _recent(shares)
    if recent is not None and recent >= warning:
        seen = tuple(step for step, value in shares if value >= warning)
        yield Alarm("tools", CRITICAL if recent >= critical else WARNING, "tools/failed", recent, warning, seen)


def _entropy(steps: Steps) -> Iterator[Alarm]:
    points = _finite(steps, ENTROPY)
    limit, recent = _entropy_limit(points), _recent(points)
    if limit is not None and recent is not None and recent < limit:
        below = tuple(step for step, value in points if value < limit)
        yield Alarm("entropy", WARNING, ENTROPY, recent, limit, below)


def _non_finite(steps: Steps) -> Iterator[Alarm]:
    seen: dict[str, list[int]] = {}
    for step, values in sorted(steps.items()):
        for name, value in values.items():
            if not math.isfinite(value):
                seen.setdefault(name, []).append(step)
    recent = set(sorted(steps)[-WINDOW:])
    for name, numbers in seen.items():
        is_active = bool(recent & set(numbers))
        yield Alarm("non_finite", CRITICAL if is_active else NOTICE, name, math.nan, None, tuple(numbers), is_active)


def _liveness(state: RunState, now: float) -> Iterator[Alarm]:
    silence = None if state.updated is None else now - state.updated
    if state.state == HUNG:
        yield Alarm("hang", CRITICAL, "", silence, None, (state.step,), detail=state.problem)
    elif state.state == CRASHED:
        yield Alarm("crashed", CRITICAL, "", silence, None, (state.step,), detail=state.problem)
    elif state.state == STOPPED and (state.total_steps is None or state.step < state.total_steps):
        yield Alarm("stopped", NOTICE, "", silence, None, (state.step,))
    elif state.state == RUNNING and silence is not None and state.seconds_per_step is not None:
        limit = max(MIN_SILENCE, SILENCE * state.seconds_per_step)
        if silence > limit:
            yield Alarm("silent", CRITICAL, "", silence, limit, (state.step,))


RULES: Sequence[Callable[[Steps], Iterator[Alarm]]] = (
    _limits,
    _spikes,
    _counted("reward_failures", lambda name: name in REWARD_FAILURES),
    _counted("skipped_updates", lambda name: name.endswith(SKIPPED)),
    _counted("faults", lambda name: name in ("training/restarts", "training/failed_saves")),
    _tools,
    _entropy,
    _non_finite,
)
