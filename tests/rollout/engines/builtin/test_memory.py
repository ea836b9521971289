"""How much memory the cache may take."""

from __future__ import annotations

import torch

from burnish.rollout.engines.builtin import memory
from burnish.rollout.engines.builtin.memory import free_bytes


def test_free_bytes_is_a_sensible_number():
    assert 1 << 20 < free_bytes(torch.device("cpu")) < 1 << 50


def test_the_container_limits_the_machine(monkeypatch):
    monkeypatch.setattr(memory, "_container_free", lambda: 12345)
    assert free_bytes(torch.device("cpu")) == 12345
