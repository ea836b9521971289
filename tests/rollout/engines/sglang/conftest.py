"""SGLang, as far as one can see."""

import sys

import pytest

from ....sglang_server import STANDINS, python_path


@pytest.fixture
def standin(monkeypatch):
    """It seems to be installed."""
    monkeypatch.syspath_prepend(STANDINS)
    monkeypatch.setenv("PYTHONPATH", python_path())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]
