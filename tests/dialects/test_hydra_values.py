"""Formatted Hydra overrides parse back to the same value."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from burnish.dialects.hydra_values import format_hydra_value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        1e-9,
        0.123456789,
        float("inf"),
        "plain",
        "./ckpt/a.b-c",
        "hub/name@folder",
        "~/data",
        "007",
        "0.5_5.0",
        "null",
        "True",
        "",
        "two words",
        "a,b",
        "Q: {}\nA: ",
        "it's",
        "back\\slash",
        "end\\",
        "quote\\'d",
        "$HOME/x",
        [0.9, 0.95],
        ["a b", "c"],
        {"image": 1},
    ],
)
def test_value_round_trips(value):
    assert OverridesParser.create().parse_override(f"key={format_hydra_value(value)}").value() == value
