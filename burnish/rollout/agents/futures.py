"""Futures: a first turn is scored by what conversations that continue it come to (CollabLLM, arXiv 2502.00640)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.tool_agent import Conversation, SampledTurn, ToolAgent
from burnish.rollout.episode import Episode, Prompt, Sampler
from burnish.rollout.tools.toolbox import ToolCounts
from burnish.rollout.trajectory import Trajectory
from burnish.seeding import derive_seed


def tool_agent(context: AgentContext) -> Episode:
    """Conversations that go on themselves, or first turns with simulated futures."""
    agent = ToolAgent(context)
    return agent if context.num_futures is None else FuturesAgent(agent, context.num_futures)


class FuturesAgent:
    """Samples the first turn, which alone is trained on, and simulates `num_futures` conversations after it.

    Each future has its own seeds, tools and simulated user, and the token budget that the first turn has left. The
    score is the mean over the futures; so is the reward of their turns.
    """

    uses_session = True
    scores = False

    def __init__(self, agent: ToolAgent, num_futures: int) -> None:
        self.agent = agent
        self.num_futures = num_futures

    async def run(self, prompt: Prompt, sampler: Sampler) -> list[Trajectory]:
        conversation = self.agent.open(prompt)  # its tools and user are never started: those of the futures are
        sampled = await self.agent.sample(conversation, sampler, early=False)
        finish_reason = sampled[0].finish_reason
        if finish_reason != "stop":  # there is nothing to continue
            return conversation.history.trajectories(finish_reason, extras=conversation.extras())
        futures = await asyncio.gather(
            *(self._future(number, prompt, conversation, sampled, sampler) for number in range(self.num_futures))
        )
        rewards = [turn.reward for rows in futures for row in rows for turn in row.turns if turn.reward is not None]
        if rewards:
            conversation.history.add_reward(sum(rewards) / self.num_futures)
        last = tuple(rows[-1] for rows in futures)
        info = {"num_futures": self.num_futures, "tools": sum_counts([future.info["tools"] for future in last])}
        return conversation.history.trajectories(finish_reason, info, futures=last)

    async def _future(
        self, number: int, prompt: Prompt, first: Conversation, sampled: SampledTurn, sampler: Sampler
    ) -> list[Trajectory]:
        conversation = self.agent.open(replace(prompt, seed=derive_seed(prompt.seed, "future", number)))
        conversation.history = first.history.copy()
        conversation.messages = list(first.messages)
        conversation.num_calls = first.num_calls
        budget = sampler.budget(first.history.input)
        forked = sampler.fork(number, first.history.input, budget)
        return await self.agent.finish(conversation, forked, sampled)


def sum_counts(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the tools of several conversations did together."""
    numbers = [field.name for field in fields(ToolCounts) if field.name not in ("metrics", "scores")]
    return {name: sum(count[name] for count in counts) for name in numbers}
