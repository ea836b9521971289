"""vLLM passes the suite of every engine."""

from __future__ import annotations

import pytest

from ..contracts import test_engines as contract
from ..contracts.test_engines import *  # noqa: F403 - the suite's tests become this file's


@pytest.fixture
def engine(make_engine, tiny_folder):
    return make_engine(tiny_folder)


@pytest.fixture
def reader(make_engine, tiny_folder):
    letters = contract.LETTERS
    return make_engine(tiny_folder, decode=lambda ids: "".join(letters[token] for token in ids if token != 2))


def test_the_whole_suite_is_here():
    """Fixtures of this file stand in for the suite's; none of its tests is replaced."""
    assert all(globals()[name] is test for name, test in vars(contract).items() if name.startswith("test_"))


def test_what_vllm_promises(engine):
    promised = engine.capabilities
    assert (promised.addressed, promised.invariant, promised.score, promised.abort) == ("request", False, True, True)
    assert not promised.sleep  # on a CPU
