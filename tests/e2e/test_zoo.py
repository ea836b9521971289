"""Every algorithm of bench/zoo.py learns its task, the control does not. Three run always, all in `make test-all`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "zoo.py"
ALWAYS = {"dapo", "reinforce++", "noise"}


def load_zoo():
    spec = importlib.util.spec_from_file_location("bench_zoo", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_zoo"] = module
    spec.loader.exec_module(module)
    return module


zoo = load_zoo()
ANIMALS = [
    pytest.param(animal, marks=() if animal.name in ALWAYS else pytest.mark.long, id=animal.name) for animal in zoo.ZOO
]


@pytest.mark.parametrize("animal", ANIMALS)
def test_it_learns(animal):
    curve = zoo.raise_animal(animal)
    assert zoo.holds(animal, curve), zoo.line(animal, curve)


def test_the_names_are_known():
    assert {animal.name for animal in zoo.ZOO} >= ALWAYS
    assert len({animal.name for animal in zoo.ZOO}) == len(zoo.ZOO)
