"""C is compiled in a folder of the tests' own."""

import pytest

from burnish.models.cpu import attention
from burnish.models.cpu.library import compiled


@pytest.fixture(autouse=True)
def compiled_here(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))
    compiled.cache_clear()
    attention.library.cache_clear()
    yield
    compiled.cache_clear()
    attention.library.cache_clear()
