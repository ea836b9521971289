"""Values that JSON reads back as they were."""

import json
import math

import pytest

from burnish.json_values import from_json, to_json

VALUES = [
    None,
    [1, 2.5, "x", True, []],
    (1, ("a", None)),
    {"a": {"b": [1]}, "c": ()},
    {1: "a", (2, 3): {"x": b"\0\xff"}},
    {"$tuple": [1]},
    {1, 2, 3},
    [math.inf, -math.inf, 0.1 + 0.2, 2**200],
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back(value):
    read = from_json(json.loads(json.dumps(to_json(value), allow_nan=False)))
    assert read == value and type(read) is type(value)


def test_nan_comes_back():
    assert math.isnan(from_json(to_json(math.nan)))


def test_other_objects_need_a_function():
    with pytest.raises(TypeError, match="a object cannot be saved"):
        to_json([object()])
    with pytest.raises(ValueError, match="unknown kind of value"):
        from_json({"$mine": 1})
    assert from_json(to_json([1j], lambda value: {"$mine": [value.real, value.imag]}), lambda mark, c: complex(*c)) == [
        1j
    ]
