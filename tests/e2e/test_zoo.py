"""Every algorithm of bench/zoo.py learns its task, the control does not. Three run always, all in `make test-all`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "zoo.py"
ALWAYS = {"dapo", "reinforce++", "noise"}


def load_zoo():
    """The script's folder must not stay on the path: its agents.py would hide a library of that name."""
    spec = importlib.util.spec_from_file_location("bench_zoo", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_zoo"] = module
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


zoo = load_zoo()
ALGORITHMS = [
    pytest.param(algorithm, marks=() if algorithm.name in ALWAYS else pytest.mark.long, id=algorithm.name)
    for algorithm in zoo.ZOO
]


@pytest.mark.long
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_learns(algorithm):
    curve = zoo.train(algorithm)
    assert zoo.passes(algorithm, curve), zoo.row_of(algorithm, curve)


def test_the_names_are_known():
    assert {algorithm.name for algorithm in zoo.ZOO} >= ALWAYS
    assert len({algorithm.name for algorithm in zoo.ZOO}) == len(zoo.ZOO)
