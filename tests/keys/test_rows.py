"""Every acting key changes its observable."""

import pytest

from . import observe, teaching
from .row import Row, same
from .table import ROWS

# The first row of each observable, to observe it twice.
FIRST = {row.observe.__qualname__: row for row in reversed(ROWS)}


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.key, marks=[pytest.mark.long] if row.long else []) for row in ROWS]
)
def test_a_key_acts(row, kit):
    row.check(kit)


@pytest.mark.long
@pytest.mark.parametrize("row", FIRST.values(), ids=[row.key for row in FIRST.values()])
def test_nothing_changes_by_itself(row, kit):
    once = kit.seen(row.observe, row.before(kit))
    assert same(once, kit.seen(row.observe, row.before(kit), again=True))


def test_an_inert_key_does_not_act(kit):
    """The critic's mini-batches go by rollout.n, as the notice about critic.rollout_n says."""
    quiet = Row("critic.rollout_n", "1", teaching.num_updates("critic"), ("algorithm.adv_estimator=gae",))
    assert "rollout.n applies to all roles" in " ".join(kit.load(quiet.after(kit)).notices)
    with pytest.raises(AssertionError, match="changes nothing"):
        quiet.check(kit)


def test_a_key_that_is_only_read_fails(kit):
    read = Row("trainer.seed", "5", lambda case: bool(case.cfg.trainer.seed))
    with pytest.raises(AssertionError, match="changes nothing"):
        read.check(kit)


def test_a_refusal_is_not_acting(kit):
    key, responses = "actor_rollout_ref.rollout.temperature", observe.responses
    with pytest.raises(AssertionError, match="temperature=0: Refusal"):
        Row(key, "0", responses).check(kit)
    with pytest.raises(AssertionError, match=r"^without .*temperature=1: Refusal"):
        Row(key, "1", responses, (f"{key}=0",)).check(kit)


def test_a_declared_refusal_must_happen_and_say_why(kit):
    key = "actor_rollout_ref.rollout.temperature"
    Row(key, "0", observe.responses, expected="training samples need", refused=True).check(kit)
    with pytest.raises(AssertionError, match="training samples need"):
        Row(key, "0", observe.responses, expected="something else", refused=True).check(kit)
    with pytest.raises(AssertionError, match=f"with {key}=3"):
        Row(key, "3", observe.responses, expected="training samples need", refused=True).check(kit)


def test_what_is_expected_is_compared(kit):
    wrong = Row("trainer.seed", "5", lambda case: case.cfg.trainer.seed, expected=6)
    with pytest.raises(AssertionError, match="5 is not 6"):
        wrong.check(kit)
