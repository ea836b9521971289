"""Rows of data from an environment: its first observations as prompts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from burnish.errors import UserError
from burnish.rollout.agents.failure import EpisodeFailed
from burnish.rollout.agents.user_files import accepted
from burnish.rollout.environments.environment import EnvironmentFactory, as_messages


def environment_rows(
    factory: EnvironmentFactory, size: int, seed: int, system: str = "", split: str = "train"
) -> Iterator[dict[str, Any]]:
    """One row per seed, from `seed` on. A run resets the environment with the row's seed and gets the same prompt."""
    own = getattr(factory.make, "rows", None)
    if own is not None:
        yield from own(factory.kwargs, size, seed)
        return
    for number in range(size):
        yield asyncio.run(_row(factory, number, seed + number, system, split))


async def _row(factory: EnvironmentFactory, number: int, seed: int, system: str, split: str) -> dict[str, Any]:
    environment = factory({})
    try:
        reset = environment.reset
        observation = reset(**accepted(reset, {"seed": seed, "row": {}}))
        messages = as_messages(await observation if inspect.isawaitable(observation) else observation)
        if not messages:
            raise EpisodeFailed("the first observation is empty")
        answer = environment.answer() if hasattr(environment, "answer") else ""
    except Exception as error:  # an environment is somebody's program and may raise anything
        problem = f"{factory.name} cannot be reset with seed {seed}: {type(error).__name__}: {error}"
        raise UserError(problem, key="NAME", value=factory.name) from error
    finally:
        closed = environment.close() if hasattr(environment, "close") else None
        if inspect.isawaitable(closed):
            await closed
    return new_row(factory.name, [*_system(system), *messages], answer, number, {"seed": seed}, split)


def new_row(
    name: str, messages: list[dict[str, Any]], answer: str, number: int, options: Mapping[str, Any], split: str
) -> dict[str, Any]:
    """A row as `burnish train` reads it; `options` are extra_info.environment."""
    return {
        "data_source": f"environment/{name}",
        "prompt": [{"role": str(message["role"]), "content": str(message["content"])} for message in messages],
        "ability": "environment",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": split, "index": number, "environment": dict(options)},
    }


def _system(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": text}] if text else []
