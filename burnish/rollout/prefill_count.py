"""PrefillCount: the prefill that conversations need if the engine keeps the KV of all of them."""

from __future__ import annotations

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Completion, Request


class PrefillCount:
    """Every prompt once, and of later turns what the conversation does not have in the cache: the last sampled token,
    whose keys and values are computed with the next one, and what was observed."""

    def __init__(self) -> None:
        self.minimum = 0  # tokens
        self._prompts: set[bytes] = set()
        self._sessions: dict[str, ModelInput] = {}

    def sent(self, request: Request) -> None:
        cached = None if request.session is None else self._sessions.get(request.session)
        if cached is not None:
            self.minimum += len(request.input) - min(cached.common_prefix(request.input), len(request.input) - 1)
        elif request.input.key not in self._prompts:
            self._prompts.add(request.input.key)
            self.minimum += len(request.input)

    def completed(self, request: Request, completion: Completion) -> None:
        if request.session is not None:
            self._sessions[request.session] = request.input.extend(tuple(completion.ids[:-1]))
