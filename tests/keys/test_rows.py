"""Every acting key changes something that one can see."""

import pytest

from .row import Row, same
from .table import ROWS

# The first row of each observable, to observe it twice.
FIRST = {row.observe: row for row in reversed(ROWS)}


@pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])
def test_a_key_acts(row, kit):
    row.check(kit)


@pytest.mark.parametrize("row", FIRST.values(), ids=[row.key for row in FIRST.values()])
def test_nothing_changes_by_itself(row, kit):
    once = kit.seen(row.observe, row.before(kit))
    assert same(once, kit.seen(row.observe, row.before(kit), again=True))


def test_a_key_that_is_only_read_fails(kit):
    read = Row("trainer.seed", "5", lambda case: bool(case.cfg.trainer.seed))
    with pytest.raises(AssertionError, match="changes nothing"):
        read.check(kit)


def test_what_is_expected_is_compared(kit):
    wrong = Row("trainer.seed", "5", lambda case: case.cfg.trainer.seed, expected=6)
    with pytest.raises(AssertionError, match="5 is not 6"):
        wrong.check(kit)
