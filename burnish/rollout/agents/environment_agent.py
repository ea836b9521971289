"""EnvironmentAgent: the model acts in an environment until that is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.failure import EpisodeFailed
from burnish.rollout.agents.limits import reached
from burnish.rollout.agents.tool_agent import first_messages
from burnish.rollout.chat.forms import joined
from burnish.rollout.chat.history import end_token, originals
from burnish.rollout.chat.pictures import pictures_of
from burnish.rollout.chat.template import Message
from burnish.rollout.conversation import TrajectoryBuilder
from burnish.rollout.engine import FinishReason
from burnish.rollout.environments.environment import EnvironmentFactory
from burnish.rollout.environments.session import EnvironmentSession
from burnish.rollout.episode import Prompt, Sampler
from burnish.rollout.stop import visible_text
from burnish.rollout.trajectory import Trajectory
from burnish.seeding import derive_seed

MAX_SEED = 2**31  # what every library takes


class EnvironmentAgent:
    """An episode in an environment. A turn's reward is what the environment gave for it."""

    uses_session = True
    scores = True

    def __init__(self, context: AgentContext, factory: EnvironmentFactory) -> None:
        self.context = context
        self.factory = factory

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory:
        options = row_options(prompt.row)
        seed = options.get("seed")
        seed = derive_seed(0, "environment", prompt.uid) % MAX_SEED if seed is None else int(seed)
        session = EnvironmentSession(self.factory, options.get("kwargs") or {}, seed, prompt.row, self.context.timeout)
        builder, finish_reason, problem = TrajectoryBuilder(prompt.input), "stop", None
        try:
            builder, sampler = self._start(prompt, sampler, *await session.reset(sampler))
            finish_reason = await self._act(builder, session, sampler, self.context.sampling_of(prompt))
        except EpisodeFailed as failure:
            problem = str(failure)
        finally:
            await session.close()
        total = sum(turn.reward or 0.0 for turn in builder.turns)
        return builder.build(
            finish_reason,
            {"environment": {"steps": builder.num_sampled_turns, **session.metrics}},
            score=None if self.context.has_reward else 0.0,
            extras={"num_turns": len(builder.turns) + 1, "environment_reward": total, **session.metrics},
            problem=problem,
        )

    def _start(
        self, prompt: Prompt, sampler: Sampler, observation: list[Message], replaces: bool
    ) -> tuple[TrajectoryBuilder, Sampler]:
        """The row's prompt where it holds the first observation already, else one with it."""
        messages = first_messages(prompt, self.context.decode)
        made = bool(row_options(prompt.row))
        started = observation if replaces else with_observation(messages, observation, made_from_environment=made)
        if started == messages:
            return TrajectoryBuilder(prompt.input), sampler
        template, observation = self.context.template, self.context.template.escape(observation)
        images, videos = pictures_of(observation)
        if not (replaces or made):
            of_row = originals(prompt.input)
            images, videos = [*of_row[0], *images], [*of_row[1], *videos]
        model_input = template.input_with(template.render(started), images, videos)
        forked = sampler.fork(0, model_input)
        if forked.budget(model_input) == 0:
            raise EpisodeFailed(f"the first observation has {len(model_input)} tokens and leaves none for an answer")
        return TrajectoryBuilder(model_input), forked

    async def _act(
        self, builder: TrajectoryBuilder, session: EnvironmentSession, sampler: Sampler, sampling: Mapping[str, Any]
    ) -> FinishReason:
        template, limits = self.context.template, self.context.limits
        while True:
            completion = await sampler.generate(builder.input, **sampling)
            builder.add_sampled(completion)
            if completion.finish_reason != "stop":
                return completion.finish_reason
            action = visible_text(completion.ids, completion.stop_reason, self.context.decode_visible)
            result = await session.step(action, sampler)
            builder.add_reward(result.reward)
            num_turns = builder.num_sampled_turns
            if (
                result.done
                or reached(limits.max_assistant_turns, num_turns)
                or reached(limits.max_user_turns, num_turns - 1)
            ):
                return "stop"
            ended, offset = end_token(completion, template.eos_ids), len(builder.input)
            added = template.continuation(template.escape(result.observation), ended=ended, offset=offset)
            if len(added) >= sampler.budget(builder.input):  # the model could not answer
                return "length"
            builder.add_observation(added.ids, "user", latency=sampler.waited(), media=added.media)


def row_options(row: Mapping[str, Any]) -> dict[str, Any]:
    """extra_info.environment: seed and kwargs of this row."""
    options = (row.get("extra_info") or {}).get("environment") or {}
    return {name: value for name, value in options.items() if value is not None}


def with_observation(
    messages: Sequence[Message], observation: Sequence[Message], *, made_from_environment: bool
) -> list[Message]:
    """A prompt's messages followed by the first observation.

    A row that was made from the environment holds one: the new one replaces it. Otherwise the prompt says what to do;
    adjacent messages of the user become one, because chat templates expect turns to alternate.
    """
    if not observation:
        return list(messages)
    if made_from_environment:
        system = [message for message in messages if message["role"] == "system" != observation[0]["role"]]
        return [*system, *observation]
    if messages and messages[-1]["role"] == observation[0]["role"]:
        content = joined(messages[-1]["content"], "\n\n", observation[0]["content"])
        return [*messages[:-1], {**messages[-1], "content": content}, *observation[1:]]
    return [*messages, *observation]
