"""The table has every acting key once, and no other; its values are other than the defaults."""

from collections import Counter
from operator import attrgetter

from burnish.config import load
from burnish.config.overrides import entry_of, read_overrides
from burnish.config.status import status_of
from burnish.config.tree import tree
from burnish.config.values import convert

from ..vllm import rows as vllm
from .table import ROWS

KEYS = [row.key for row in (*ROWS, *vllm.ROWS)]


def test_every_acting_key_has_a_row():
    acting = {key for key in tree().leaves if status_of(key).kind == "acts"}
    assert len(acting) > 150
    assert acting - set(KEYS) == set()


def test_only_acting_keys_have_a_row():
    assert {key: status_of(key).kind for key in KEYS if status_of(key).kind != "acts"} == {}
    assert set(KEYS) <= set(tree().leaves)


def test_no_key_has_two_rows():
    assert [key for key, count in Counter(KEYS).items() if count > 1] == []


def test_every_value_is_another_than_the_default():
    defaults = load(["actor_rollout_ref.model.path=model"], check=False).cfg
    wrong = {}
    for row in ROWS:
        leaf = tree().leaves[row.key]
        if isinstance(row.value, str):  # else it is a path in the kit, and every default is none or the kit's own
            value = written(leaf, row.value)
            if value == attrgetter(leaf.path)(defaults) or status_of(row.key, value).kind != "acts":
                wrong[row.key] = value
    assert wrong == {}


def written(leaf, value):
    """What the key holds once this is written on the command line."""
    (override,), errors = read_overrides([f"{leaf.key}={value}"])
    assert errors == []
    return convert(leaf, entry_of(override).value)
