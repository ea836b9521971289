"""RecordedCalls: what the engine sampled for an agent that builds its token sequences itself.

Such an agent returns tokens and says which of them the model wrote. They are trained on only where the engine sampled
them after exactly the tokens before them; then their log-probs and weight versions are known.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from burnish.errors import UserError
from burnish.media import InvalidMedia
from burnish.models.model_input import ModelInput
from burnish.models.vision.encoder import VisionEncoder
from burnish.rollout.agents.failure import EpisodeFailed
from burnish.rollout.engine import Completion, FinishReason
from burnish.rollout.episode import Sampler
from burnish.rollout.trajectory import NOT_SAMPLED, Trajectory, Turn, experts_of

Pictures = tuple[Sequence[Any], Sequence[Any]]  # images and videos
NO_PICTURES: Pictures = ((), ())
MAX_EMPTY = 16  # requests beyond the token budget until an agent that never ends is stopped
TICK = 0.5  # seconds between two looks at whether an agent still works


class RecordedCalls:
    """The requests of one conversation of a user's agent. A request id is one dialogue with its own KV and budget."""

    def __init__(
        self,
        sampler: Sampler,
        max_length: int | None = None,
        turn: Mapping[str, Any] = MappingProxyType({}),
        vision: VisionEncoder | None = None,
    ) -> None:
        self.sampler = sampler
        self.vision = vision  # None: the model takes text only
        self.turn = turn  # limits of a turn's sampling (TurnLimits.of_turn)
        self.max_length = max_length  # of prompt and response together; None: the run's limit of the response
        self.calls: list[tuple[ModelInput, Completion]] = []
        self._dialogues: list[str] = []  # of each call
        self._samplers: dict[str, Sampler] = {}
        self._num_empty = 0
        self._num_waiting = 0
        self._last_active = time.monotonic()

    def input(self, ids: Sequence[int], pictures: Pictures = NO_PICTURES) -> ModelInput:
        """Tokens of an agent with the images and videos that they show; EpisodeFailed where these do not belong
        together."""
        tokens = [int(token) for token in ids]
        if not any(pictures):
            return ModelInput(tuple(tokens))
        if self.vision is None:
            raise UserError("an agent shows images, and this model takes text only", key="actor_rollout_ref.model.path")
        try:
            return self.vision.attach(tokens, *pictures)
        except InvalidMedia as error:
            raise EpisodeFailed(error.problem) from error

    async def generate(
        self, request_id: str, ids: Sequence[int], fields: Mapping[str, Any], pictures: Pictures = NO_PICTURES
    ) -> Completion:
        """The next turn of a dialogue, with these fields of Sampling replaced."""
        model_input = self.input(ids, pictures)
        if request_id not in self._samplers:
            budget = None if self.max_length is None else max(0, self.max_length - len(model_input))
            self._samplers[request_id] = self.sampler.fork(len(self._samplers), model_input, budget)
        self._num_waiting += 1
        try:
            completion = await self._samplers[request_id].generate(model_input, **self._limited(fields))
        finally:
            self._num_waiting -= 1
            self._last_active = time.monotonic()
        if not completion.ids:
            self._num_empty += 1
            if self._num_empty > MAX_EMPTY:
                raise EpisodeFailed("the agent goes on sampling after its token budget is used up")
            await asyncio.sleep(0)
        self.calls.append((model_input, completion))
        self._dialogues.append(request_id)
        return completion

    def _limited(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The agent's sampling within the limits of a turn."""
        if not self.turn:
            return dict(fields)
        limit, least = self.turn["max_tokens"], self.turn["min_tokens"]
        limit = min(limit, fields.get("max_tokens", limit))
        return {**fields, "max_tokens": limit, "min_tokens": min(fields.get("min_tokens", least), limit)}

    def dialogue(self, ids: Sequence[int]) -> str:
        """The dialogue that these tokens continue, for agents that do not name it; a new one if there is none."""
        tokens = tuple(ids)
        for (given, completion), name in reversed(list(zip(self.calls, self._dialogues, strict=True))):
            before = (*given.ids, *completion.ids)
            if tokens[: len(before)] == before:
                return name
        return f"dialogue {len(self._samplers)}"

    async def run(self, agent: Coroutine[Any, Any, Any], timeout: float | None, what: str) -> Any:
        """Run the agent; EpisodeFailed if it neither samples nor returns for `timeout` seconds."""
        task = asyncio.ensure_future(agent)
        self._last_active = time.monotonic()
        try:
            while not task.done():
                await asyncio.wait([task], timeout=None if timeout is None else min(TICK, timeout))
                idle = time.monotonic() - self._last_active
                if timeout is not None and not task.done() and not self._num_waiting and idle > timeout:
                    raise EpisodeFailed(f"{what} did nothing for {timeout:g} s")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=timeout)

    def trajectory(
        self, prompt: Sequence[int], response: Sequence[int], mask: Sequence[Any], what: str, **fields: Any
    ) -> Trajectory:
        """Tokens that an agent returned, with `mask` saying which ones the model wrote.

        It ends with a sampled token: what was observed after the last one was never acted on.
        """
        if len(mask) != len(response):
            raise EpisodeFailed(f"{what} returned {len(response)} response tokens and a mask of {len(mask)}")
        tokens = tuple(int(token) for token in (*prompt, *response))
        owner = self._owners(tokens)[len(prompt) :]
        claimed = sum(map(bool, mask))
        owner = [call if model else None for call, model in zip(owner, mask, strict=True)]
        sampled = sum(call is not None for call in owner)
        if claimed and not sampled:
            raise EpisodeFailed(
                f"{what} returned none of the tokens that the engine sampled after the tokens before them: return the"
                " ids that the engine gave, not text that was tokenized again"
            )
        length = max((number + 1 for number, call in enumerate(owner) if call is not None), default=0)
        info = {"unsampled_tokens": claimed - sampled} if claimed > sampled else {}
        return self._build(tokens, len(prompt), owner[:length], {**info, **fields.pop("info", {})}, fields)

    def _owners(self, tokens: tuple[int, ...]) -> list[int | None]:
        """The request that sampled each token after exactly the tokens before it."""
        owners: list[int | None] = [None] * len(tokens)
        for number, (given, completion) in enumerate(self.calls):
            ids = given.ids
            if tokens[: len(ids)] != ids:
                continue
            for position, token in enumerate(completion.ids, len(ids)):
                if position >= len(tokens) or tokens[position] != token:
                    break
                owners[position] = number
        return owners

    def _experts(self, tokens: tuple[int, ...]) -> Tensor | None:
        """Which experts the engine sent each token to; what is known of a token stays."""
        known: Tensor | None = None
        for given, completion in self.calls:
            if completion.routed_experts is not None:
                pairs = zip((*given.ids, *completion.ids), tokens, strict=False)
                num_equal = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
                found = completion.routed_experts[:num_equal]
                known = found if known is None else torch.cat([known, found[len(known) :]])
        return experts_of(known, len(tokens))

    def _build(
        self,
        tokens: tuple[int, ...],
        num_prompt: int,
        owner: Sequence[int | None],
        info: dict[str, Any],
        fields: dict[str, Any],
    ) -> Trajectory:
        log_probs, versions, turns, start = [0.0] * len(owner), [NOT_SAMPLED] * len(owner), [], 0
        for position, call in enumerate(owner):
            if call is not None:
                given, completion = self.calls[call]
                offset = num_prompt + position - len(given)
                log_probs[position], versions[position] = completion.log_probs[offset], completion.versions[offset]
            if position + 1 == len(owner) or owner[position + 1] != call:
                finish = None if call is None else self.calls[call][1].finish_reason
                role = "user" if call is None else "assistant"
                turns.append(Turn(start, position + 1, role, finish_reason=finish))
                start = position + 1
        last = None if not owner or owner[-1] is None else self.calls[owner[-1]]
        complete = last is not None and num_prompt + len(owner) == len(last[0]) + len(last[1].ids)
        finish_reason: FinishReason = last[1].finish_reason if last is not None and complete else "length"
        shown = () if last is None else last[0].media  # what the last turn saw has everything before it
        media = [tuple(m for m in shown if (m.offset < num_prompt) == in_prompt) for in_prompt in (True, False)]
        return Trajectory(
            ModelInput(tokens[:num_prompt], media[0]),
            list(tokens[num_prompt : num_prompt + len(owner)]),
            [call is not None for call in owner],
            log_probs,
            versions,
            turns,
            finish_reason,
            last[1].stop_reason if last is not None and complete else None,
            media=media[1],
            routed_experts=self._experts(tokens[: num_prompt + len(owner)]),
            info=info,
            **fields,
        )


def failed_trajectory(prompt: ModelInput, problem: str) -> Trajectory:
    """A conversation that came to nothing."""
    return Trajectory(prompt, [], [], [], [], [Turn(0, 0, finish_reason="stop")], "stop", problem=problem)
