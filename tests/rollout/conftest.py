"""Prompts by length, and waiting for an engine without waiting for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from burnish.address import address
from burnish.rollout.engine import Completion, Engine, Request, Sampling

PATIENCE = 60.0  # seconds


@pytest.fixture
def prompt() -> Callable[..., tuple[int, ...]]:
    """prompt(length, salt): ids that every tiny model has, without EOS."""

    def make(length: int, salt: int = 0) -> tuple[int, ...]:
        generator = torch.Generator().manual_seed(1000 * length + salt)
        return tuple(torch.randint(3, 21, (length,), generator=generator).tolist())

    return make


@pytest.fixture
def ask() -> Callable[..., list[Completion]]:
    """ask(engine, prompts, sampling): sample number i of each distinct prompt has an address of its own."""

    def run(engine: Engine, prompts: Sequence[tuple[int, ...]], sampling: Sampling, salt: int = 0) -> list[Completion]:
        requests = [Request(ids, sampling, address(salt, number)) for number, ids in enumerate(prompts)]
        return [future.result(PATIENCE) for future in engine.generate(requests)]

    return run


@pytest.fixture
def wait_for_tokens() -> Callable[[Engine, int], None]:
    """Return once the engine has made so many more tokens."""

    def wait(engine: Engine, count: int) -> None:
        made = 0
        while made < count:
            made += engine.stats().get("tokens", 0)

    return wait
