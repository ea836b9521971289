"""Plans are of a GPU's memory: the small models that are measured on a CPU attend as they would there."""

import pytest

from burnish.models.cpu import attention


@pytest.fixture(autouse=True)
def torchs_own_attention(monkeypatch):
    monkeypatch.setattr(attention, "fits", lambda query: False)
