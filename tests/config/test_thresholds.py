import pytest

from burnish.config import load
from burnish.config.thresholds import Bounds, parse_bounds, rejection_bounds, weight_bounds
from burnish.errors import UserError

SECTION = "algorithm.rollout_correction"


def section(*overrides):
    return load([f"{SECTION}.{text}" for text in overrides], check=False).cfg.algorithm.rollout_correction


def of_weights(*overrides):
    found = section(*overrides)
    return weight_bounds(found.rollout_is_threshold, found.rollout_is_threshold_lower)


def of_rejection(*overrides):
    found = section(*overrides)
    return list(rejection_bounds(found.rollout_rs, found.rollout_rs_threshold, found.rollout_rs_threshold_lower))


@pytest.mark.parametrize(
    ("text", "bounds"),
    [("2", (None, 2.0)), ("1e-1", (None, 0.1)), ("0.5_2.0", (0.5, 2.0)), ("0.5_5", (0.5, 5.0)), ("1_1", (1.0, 1.0))],
)
def test_a_number_or_two(text, bounds):
    assert parse_bounds(text, "key") == Bounds(*bounds)


@pytest.mark.parametrize("text", ["", "two", "2_", "_2", "2_1", "1_2_3", "0", "-1", "0_2", "nan", "inf"])
def test_anything_else_is_refused(text):
    with pytest.raises(UserError, match="not a threshold") as caught:
        parse_bounds(text, "some.key")
    assert caught.value.key == "some.key" and caught.value.hint == "some.key=0.5_2.0"


def test_a_pair_is_read_as_it_was_typed():
    """Hydra's own numbers have underscores too: to it, 0.5_5 is 0.55."""
    assert of_weights("rollout_is_threshold=0.5_5") == (Bounds(0.5, 5.0), True)
    found = of_rejection("rollout_rs=token_k1,seq_mean_k1", "rollout_rs_threshold=0.5_5,1_2")
    assert found == [("token_k1", Bounds(0.5, 5.0)), ("seq_mean_k1", Bounds(1.0, 2.0))]


def test_weights_outside_are_held_or_dropped():
    assert of_weights() == (Bounds(None, 2.0), False)
    assert of_weights("rollout_is_threshold=3", "rollout_is_threshold_lower=0.5") == (Bounds(0.5, 3.0), False)
    with pytest.raises(UserError, match="already has a lower bound"):
        of_weights("rollout_is_threshold=0.5_3", "rollout_is_threshold_lower=0.5")
    with pytest.raises(UserError, match="above algorithm"):
        of_weights("rollout_is_threshold=3", "rollout_is_threshold_lower=4")


def test_one_threshold_serves_all_measures():
    found = of_rejection("rollout_rs=token_k2,token_k3,token_k2", "rollout_rs_threshold=0.1")
    assert found == [("token_k2", Bounds(None, 0.1)), ("token_k3", Bounds(None, 0.1))]


def test_the_older_lower_threshold_is_that_of_ratios():
    given = ("rollout_rs=sequence,token_k2", "rollout_rs_threshold=2", "rollout_rs_threshold_lower=0.25")
    assert of_rejection(*given) == [("sequence", Bounds(0.25, 2.0)), ("token_k2", Bounds(None, 2.0))]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("rollout_rs=token_k1",), "need one threshold each"),
        (("rollout_rs=token_k1", "rollout_rs_threshold=1,2"), "need one threshold each"),
        (("rollout_rs=token_k2", "rollout_rs_threshold=0.5_2.0"), "takes an upper threshold only"),
    ],
)
def test_thresholds_that_do_not_fit_are_refused(overrides, problem):
    with pytest.raises(UserError, match=problem) as caught:
        of_rejection(*overrides)
    assert caught.value.key == f"{SECTION}.rollout_rs_threshold"
