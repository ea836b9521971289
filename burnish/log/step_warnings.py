"""Warnings about a step, derived from its metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

Metrics = Mapping[str, float]

ROUNDING = 0.01  # of advantages that are zero, where they are divided by a standard deviation of zero and its epsilon


def step_warnings(metrics: Metrics) -> dict[str, str]:
    """One sentence per problem of this step, by the kind of problem."""
    return {kind: text for kind, check in CHECKS.items() if (text := check(metrics)) is not None}


def _equal_scores(metrics: Metrics) -> str | None:
    if metrics.get("rollout/zero_variance_groups", 0.0) < 1.0:
        return None
    advantages = (metrics.get(f"critic/advantages/{end}", 0.0) for end in ("min", "max"))
    if any(abs(advantage) > ROUNDING for advantage in advantages):  # not relative to the group, or a KL penalty in them
        return None
    count = metrics.get("rollout/num_groups")
    groups = "all groups" if count is None else "the only group" if count == 1 else f"all {count:.0f} groups"
    return f"{groups} {'has' if count == 1 else 'have'} equal scores: no learning signal in this step"


def _all_truncated(metrics: Metrics) -> str | None:
    if metrics.get("rollout/truncated", 0.0) < 1.0:
        return None
    return "all responses were truncated: data.max_response_length may be too small"


def _skipped_updates(metrics: Metrics) -> str | None:
    skipped = {name.partition("/")[0]: n for name, n in metrics.items() if name.endswith("/skipped_updates") and n > 0}
    if not skipped:
        return None
    counts = ", ".join(f"{role} {count:.0f}" for role, count in skipped.items())
    return f"updates skipped because of non-finite gradients: {counts}"


def _reward_failures(metrics: Metrics) -> str | None:
    failed = metrics.get("reward/failed", 0.0)
    if not failed > 0:
        return None
    return f"the reward function failed on {failed:.0f} response{'s' if failed != 1 else ''}"


def _non_finite(metrics: Metrics) -> str | None:
    names = [name for name, value in metrics.items() if not math.isfinite(value)]
    if not names:
        return None
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"non-finite metrics: {', '.join(names[:5])}{more}"


CHECKS: dict[str, Callable[[Metrics], str | None]] = {
    "equal scores": _equal_scores,
    "truncated responses": _all_truncated,
    "skipped updates": _skipped_updates,
    "reward failures": _reward_failures,
    "non-finite metrics": _non_finite,
}
