from __future__ import annotations

import math

from burnish.log.trouble import troubles


def test_a_good_step_has_no_trouble():
    good = {"rollout/zero_variance_groups": 0.97, "rollout/truncated": 0.5, "actor/skipped_updates": 0.0}
    assert troubles(good | {"reward/failed": 0.0, "actor/pg_loss": -1.0}) == []
    assert troubles({}) == []


def test_each_trouble_is_named():
    assert troubles({"rollout/zero_variance_groups": 1.0, "rollout/num_groups": 32.0}) == [
        "all 32 groups have equal scores: nothing to learn this step"
    ]
    assert "data.max_response_length" in troubles({"rollout/truncated": 1.0})[0]
    (text,) = troubles({"actor/skipped_updates": 2.0, "critic/skipped_updates": 1.0})
    assert text.endswith("actor 2, critic 1")
    assert troubles({"reward/failed": 1.0}) == ["the reward function failed on 1 response"]
    assert troubles({"reward/failed": 3.0}) == ["the reward function failed on 3 responses"]


def test_numbers_that_are_not_finite_are_listed_shortly():
    assert troubles({"actor/pg_loss": math.nan, "x": 1.0}) == ["not a finite number: actor/pg_loss"]
    (text,) = troubles({f"m{i}": math.inf for i in range(7)})
    assert text == "not a finite number: m0, m1, m2, m3, m4 and 2 more"
