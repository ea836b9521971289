import pytest

from burnish.algos.filtering import differs, num_to_open, within


@pytest.mark.parametrize(
    ("values", "kept"), [([1.0, 1.0, 1.0], False), ([0.0, 0.0], False), ([0.0, 1.0], True), ([0.5], True)]
)
def test_a_group_of_equal_responses_has_no_gradient(values, kept):
    assert differs(values) is kept


def test_equal_is_equal_also_where_a_standard_deviation_would_be_rounding():
    assert not differs([0.1, 0.1, 0.1])


@pytest.mark.parametrize(
    ("values", "kept"),
    [([0.0, 0.0], False), ([1.0, 1.0], False), ([0.0, 1.0], True), ([0.5, 0.5], True), ([-1.0, 1.0], False)],
)
def test_a_range_is_strict_and_about_the_mean(values, kept):
    assert within(values, 0.0, 1.0) is kept


def test_as_many_are_opened_as_may_still_be_needed():
    assert num_to_open(wanted=4, kept=0, open_now=0, in_flight=4) == 4
    assert num_to_open(wanted=4, kept=1, open_now=2, in_flight=4) == 1, "one was rejected, one takes its place"
    assert num_to_open(wanted=4, kept=1, open_now=3, in_flight=4) == 0
    assert num_to_open(wanted=4, kept=1, open_now=7, in_flight=12) == 0, "enough are on their way"
    assert num_to_open(wanted=4, kept=0, open_now=1, in_flight=2) == 1, "no more at once than asked for"
