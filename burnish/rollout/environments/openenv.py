"""openenv: environments behind a server, reached over websockets. A conversation is a session of the server.

environment=openenv environment_kwargs.base_url=http://127.0.0.1:8000 environment_kwargs.action_field=message
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from burnish.errors import UserError
from burnish.rollout.agents.user_files import load_class
from burnish.rollout.environments.environment import KEY, StepResult, import_library, required

INTERNAL = ("done", "reward", "metadata")  # fields of an observation that are not for the model


@import_library
def openenv() -> Any:
    from openenv.core.generic_client import GenericEnvClient

    return GenericEnvClient


class OpenEnvEnvironment:
    """A turn's text is `action_field` of the action; `observation_field` is what the model reads.

    `client` and `action` (package.module:Class) are the classes of an environment's own package; without them the
    server gets and returns plain JSON.
    """

    def __init__(
        self,
        base_url: str,
        action_field: str = "message",
        observation_field: str | None = None,
        action_kwargs: Mapping[str, Any] | None = None,
        client: str | None = None,
        action: str | None = None,
        instructions: str = "",
        **kwargs: Any,
    ) -> None:
        self.action_field = action_field
        self.observation_field = observation_field
        self.action_kwargs = dict(action_kwargs or {})
        self.instructions = instructions
        key = f"{KEY}_kwargs"
        self.action_class = dict if action is None else load_class(action, key=f"{key}.action", where="action")
        client_class = openenv() if client is None else load_class(client, key=f"{key}.client", where="client")
        self.client = client_class(base_url=base_url, **kwargs)

    @staticmethod
    def check(kwargs: Mapping[str, Any]) -> None:
        url = str(required(kwargs, "base_url", "http://127.0.0.1:8000"))
        if not url.startswith(("http://", "https://", "ws://", "wss://")):
            raise UserError("expected the address of a server", key=f"{KEY}_kwargs.base_url", value=url)
        OpenEnvEnvironment(**kwargs)

    async def reset(self, seed: int, row: Mapping[str, Any]) -> str:
        result = await self.client.reset(seed=seed)
        return f"{self.instructions}\n\n{self._text(result.observation)}".strip()

    async def step(self, action: str) -> StepResult:
        result = await self.client.step(self.action_class(**self.action_kwargs, **{self.action_field: action}))
        return StepResult(self._text(result.observation), float(result.reward or 0.0), bool(result.done))

    async def close(self) -> None:
        await self.client.close()

    def _text(self, observation: Any) -> str:
        fields = observation if isinstance(observation, Mapping) else _fields(observation)
        if self.observation_field is not None:
            return str(fields.get(self.observation_field, ""))
        shown = {name: value for name, value in fields.items() if name not in INTERNAL and value not in (None, "")}
        texts = [value for value in shown.values() if isinstance(value, str)]
        if len(shown) == len(texts) == 1:
            return texts[0]
        return json.dumps(shown, ensure_ascii=False, default=str) if shown else ""


def _fields(observation: Any) -> dict[str, Any]:
    dump = getattr(observation, "model_dump", None)
    return dump() if dump is not None else dict(vars(observation))
