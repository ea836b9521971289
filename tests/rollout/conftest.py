"""Prompts by length, and waiting for an engine without waiting for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Completion, Engine, Request, Sampling
from burnish.seeding import derive_seed

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
        requests = [Request(ModelInput(ids), sampling, derive_seed(salt, number)) for number, ids in enumerate(prompts)]
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


@pytest.fixture
def decoding_as_on_a_gpu(monkeypatch):
    """The operation that a GPU's decoding has, one for writing and attending, with plain torch inside."""
    from burnish.models.kernels import decode, paged  # here: the environment of another engine has other libraries
    from burnish.models.paged import attend_tables, write
    from burnish.rollout.engines.builtin import decode_step, verify_step
    from burnish.rollout.engines.builtin.paged_attention import DeviceDecode

    def in_plain_torch(keys, values, query, key, value, slots, tables, lengths, shape, *prefixes):
        write(keys, values, key, value, slots)
        return attend_tables(query.transpose(0, 1), keys, values, tables, lengths, shape)

    monkeypatch.setattr(decode, "write_and_attend", in_plain_torch)
    monkeypatch.setattr(paged, "write_kv", write)
    for module in (decode_step, verify_step):
        monkeypatch.setattr(
            module,
            "DeviceDecode",
            lambda slots, tables, lengths, _, *rest, **more: DeviceDecode(slots, tables, lengths, True, *rest, **more),
        )
