"""Fixtures to run programs in an isolation mode."""

import pytest

from burnish.isolation import probe
from burnish.reward.sandbox import local

from ...isolation.fixtures import run_code, user_programs  # noqa: F401
from ...isolation.programs import forced


@pytest.fixture
def use_mode(monkeypatch):
    """use_mode(mode) forces an isolation mode."""

    def use(mode):
        current = forced(mode)
        monkeypatch.setattr(probe, "isolation", lambda: current)
        monkeypatch.setattr(local, "isolation", lambda: current)

    return use
