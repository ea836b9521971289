from __future__ import annotations

import math

from burnish.log.step_warnings import step_warnings


def test_a_good_step_has_no_warnings():
    good = {"rollout/zero_variance_groups": 0.97, "rollout/truncated": 0.5, "actor/skipped_updates": 0.0}
    assert step_warnings(good | {"reward/failed": 0.0, "actor/pg_loss": -1.0}) == {}
    assert step_warnings({}) == {}


def test_equal_scores_of_groups_do_not_matter_to_other_advantages():
    """Those of a critic, or relative to the batch, or with a KL penalty."""
    equal = {"rollout/zero_variance_groups": 1.0, "rollout/num_groups": 8.0}
    assert step_warnings(equal | {"critic/advantages/min": -0.2, "critic/advantages/max": 5.7}) == {}
    rounding = {"critic/advantages/min": -7e-3, "critic/advantages/max": 0.0}
    assert step_warnings(equal | rounding).keys() == {"equal scores"}


def test_each_warning():
    assert step_warnings({"rollout/zero_variance_groups": 1.0, "rollout/num_groups": 32.0}) == {
        "equal scores": "all 32 groups have equal scores: no learning signal in this step"
    }
    assert "data.max_response_length" in step_warnings({"rollout/truncated": 1.0})["truncated responses"]
    (text,) = step_warnings({"actor/skipped_updates": 2.0, "critic/skipped_updates": 1.0}).values()
    assert text.endswith("actor 2, critic 1")
    assert step_warnings({"reward/failed": 1.0}) == {"reward failures": "the reward function failed on 1 response"}
    assert step_warnings({"reward/failed": 3.0}) == {"reward failures": "the reward function failed on 3 responses"}


def test_non_finite_metrics_are_listed():
    assert step_warnings({"actor/pg_loss": math.nan, "x": 1.0}) == {
        "non-finite metrics": "non-finite metrics: actor/pg_loss"
    }
    (text,) = step_warnings({f"m{i}": math.inf for i in range(7)}).values()
    assert text == "non-finite metrics: m0, m1, m2, m3, m4 and 2 more"
