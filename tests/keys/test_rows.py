"""Every acting key changes something that one can see."""

import pytest

from . import teaching
from .row import Row, same
from .table import ROWS

# The first row of each way to observe, to look twice.
FIRST = {row.observe.__qualname__: row for row in reversed(ROWS)}


@pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])
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


def test_what_is_expected_is_compared(kit):
    wrong = Row("trainer.seed", "5", lambda case: case.cfg.trainer.seed, expected=6)
    with pytest.raises(AssertionError, match="5 is not 6"):
        wrong.check(kit)
