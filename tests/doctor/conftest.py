"""Plans are for GPUs, so the small models, measured on a CPU, use torch's attention instead of the C kernel."""

import pytest

from burnish.models.cpu import attention


@pytest.fixture(autouse=True)
def torch_attention(monkeypatch):
    monkeypatch.setattr(attention, "is_supported", lambda query: False)
