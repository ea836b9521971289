"""Registry: names, lazy entries, users' files, and the errors for names that are not there."""

from __future__ import annotations

import json
import sys

import pytest

from burnish.errors import UserError
from burnish.registry import Entry, Registry


@pytest.fixture
def registry():
    return Registry("advantage estimator", key="algorithm.adv_estimator")


def test_register(registry):
    @registry.register("gae", "gae2", needs={"values"}, critic=True)
    def gae():
        return "gae"

    assert gae() == "gae", "the decorator returns the function"
    for name in ("gae", "gae2"):
        entry = registry[name]
        assert entry == Entry(name, gae, frozenset({"values"}), {"critic": True})
        assert entry.load() is gae
    assert registry.names() == ["gae", "gae2"] and "gae" in registry and "grpo" not in registry


def test_needs_and_metadata_are_empty_by_default(registry):
    registry.register("grpo")(len)
    assert registry["grpo"].needs == frozenset() and registry["grpo"].metadata == {}


def test_lazy_entries_are_imported_on_load(registry, tmp_path, monkeypatch):
    (tmp_path / "burnish_test_lazy.py").write_text("def compute():\n    return 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.register_lazy("lazy", "burnish_test_lazy:compute", needs=["values"], group=True)
    entry = registry["lazy"]
    assert (entry.needs, entry.metadata) == (frozenset({"values"}), {"group": True})
    assert "burnish_test_lazy" not in sys.modules
    assert entry.load()() == 7
    registry.register_lazy("json", "json:loads")
    assert registry["json"].load() is json.loads


def test_a_name_is_registered_once(registry):
    registry.register("gae")(len)
    with pytest.raises(ValueError, match="advantage estimator 'gae' is already registered"):
        registry.register_lazy("gae", "json:loads")


def test_an_unknown_name_suggests_the_nearest(registry):
    registry.register("grpo", "gae")(len)
    with pytest.raises(UserError) as raised:
        registry["gpro"]
    error = raised.value
    assert (error.key, error.value) == ("algorithm.adv_estimator", "gpro")
    assert error.allowed == ["grpo", "gae", "path/to/file.py:name"]
    assert error.hint == "algorithm.adv_estimator=grpo" and "Did you mean 'grpo'?" in str(error)
    with pytest.raises(UserError) as raised:
        registry["something else"]
    assert raised.value.hint is None and "Did you mean" not in str(raised.value)


def test_a_path_loads_the_users_function(registry, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from pathlib import Path\n"  # what a file imports is not suggested
        "def double(x):\n    return 2 * x\n\ndouble.needs = {'values'}\n\ndef plain(x):\n    return x\n"
    )
    entry = registry[f"{file}:double"]
    assert entry.load()(4) == 8 and entry.needs == frozenset({"values"})
    assert registry[f"{file}:plain"].needs == frozenset()
    assert registry.names() == [], "users' functions are not registered"
    with pytest.raises(UserError, match=r"mine\.py has no 'triple'.*double.*Type: .*mine\.py:double") as raised:
        registry[f"{file}:triple"]
    assert raised.value.key == "algorithm.adv_estimator" and raised.value.allowed == ["double", "plain"]
    with pytest.raises(UserError, match="no such file"):
        registry[f"{tmp_path}/absent.py:double"]


def test_a_package_path_loads_the_users_function(registry, tmp_path, monkeypatch):
    (tmp_path / "burnish_test_package.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registry["pkg://burnish_test_package:double"].load()(4) == 8
    with pytest.raises(UserError, match="cannot import burnish_test_absent"):
        registry["pkg://burnish_test_absent:double"]


def test_a_file_that_fails_is_quoted(registry, tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("raise RuntimeError('no luck')\n")
    with pytest.raises(UserError, match=r"broken\.py raised RuntimeError on import \(line 1\): no luck"):
        registry[f"{file}:anything"]
    file.write_text("def anything():\n    return 1\n")
    assert registry[f"{file}:anything"].load()() == 1, "a failed import is not kept"


def test_a_users_function_with_other_arguments_is_refused(tmp_path):
    registry = Registry("advantage estimator", key="algorithm.adv_estimator", arguments=["credit"])
    file = tmp_path / "mine.py"
    file.write_text("LIMIT = 3\ndef fits(credit, eps=0.1): ...\ndef verl(rewards, response_mask, **kwargs): ...\n")
    assert registry[f"{file}:fits"].load().__name__ == "fits"
    expected = (
        r"verl\(rewards, response_mask, \*\*kwargs\) cannot be called .*'response_mask'.*a function of \(credit\)"
    )
    with pytest.raises(UserError, match=expected):
        registry[f"{file}:verl"]
    with pytest.raises(UserError, match="not a function but of type int"):
        registry[f"{file}:LIMIT"]
