"""Agents: episodes by name, and the choice of one per row of the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from burnish.errors import UserError, nearest
from burnish.registry import Registry
from burnish.rollout.agents.interactions import Interactions
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.chat.drift import DriftCheck
from burnish.rollout.chat.history import AppendHistory, end_token
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.chat.tool_calls import ParsedTurn, ToolCall, ToolParser
from burnish.rollout.engine import Completion
from burnish.rollout.episode import Episode, Prompt, Sampler, SingleTurn
from burnish.rollout.stop import Decode, visible_text
from burnish.rollout.tools.toolbox import Toolbox
from burnish.rollout.tools.truncation import ResponseLimit
from burnish.rollout.trajectory import Trajectory

# An entry is a function of an AgentContext that returns an Episode. `needs`: "template", "tools".
AGENTS = Registry("agent loop", key="actor_rollout_ref.rollout.agent.default_agent_loop")
AGENTS.register_lazy("single_turn_agent", "burnish.rollout.agents.agent:single_turn")
AGENTS.register_lazy("tool_agent", "burnish.rollout.agents.futures:tool_agent", needs={"template"})


@dataclass(frozen=True)
class AgentContext:
    """What agents are built from."""

    tokenizer: Any
    template: ChatTemplate
    parser: ToolParser
    toolbox: Toolbox
    decode: Decode  # keeps special tokens: some formats of calls are made of them
    limits: TurnLimits = TurnLimits()  # noqa: RUF009
    response_limit: ResponseLimit = ResponseLimit()  # noqa: RUF009
    history: type[AppendHistory] = AppendHistory
    drift: DriftCheck | None = None
    stop_token_ids: tuple[int, ...] = ()  # that the format of tool calls adds to EOS
    interactions: Interactions | None = None
    config: Mapping[str, Any] = field(default_factory=dict)  # of the run, for users' agents that read it
    timeout: float | None = None  # seconds that an agent may work between two turns
    has_reward: bool = False  # whether the run has a reward function of its own
    num_futures: int | None = None  # simulated continuations of a conversation's first turn; None: it goes on itself

    def decode_visible(self, ids: Sequence[int]) -> str:
        """Text without special tokens, as people and rewards read it."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def sampling_of(self, prompt: Prompt) -> dict[str, Any]:
        """Sampling settings of a turn that differ from the prompt's."""
        sampling = prompt.sampling
        added = [token for token in self.stop_token_ids if token not in sampling.stop_token_ids]
        fields: dict[str, Any] = {"stop_token_ids": (*sampling.stop_token_ids, *added)} if added else {}
        return fields | self.limits.of_turn(sampling)

    def read_turn(self, completion: Completion, num_calls: int) -> tuple[str, ParsedTurn]:
        """A turn's text without the token that ended it, and its calls. `num_calls`: of earlier turns."""
        ended = end_token(completion, self.template.eos_ids)
        if ended is not None:
            text = self.decode(completion.ids[:-1])
        else:
            text = visible_text(completion.ids, completion.stop_reason, self.decode)
        if completion.finish_reason != "stop":  # a call may lack its end
            return text, ParsedTurn(text)
        return text, self._parse(text, num_calls)

    def _parse(self, text: str, num_calls: int) -> ParsedTurn:
        parsed = self.parser.parse(text)
        # Nine letters and digits, as Mistral's templates want them.
        calls = [
            call if call.id else replace(call, id=f"call{number:05d}")
            for number, call in enumerate(parsed.calls, start=num_calls)
        ]
        return replace(parsed, calls=calls)

    def read_partial(self, ids: Sequence[int], num_calls: int) -> list[ToolCall]:
        """The complete calls of a turn that is still being sampled."""
        return self._parse(self.decode(ids), num_calls).calls

    @cached_property
    def closing_ids(self) -> frozenset[int]:
        """Tokens that may complete the closing tag of a call; none if the format has no such tag."""
        tag = getattr(self.parser, "closing_tag", "")
        last = tag[-1:]
        return frozenset(id for id in range(len(self.tokenizer)) if last in self.decode([id])) if tag else frozenset()

    def drift_of(self, history: AppendHistory) -> dict[str, float]:
        """Whether the tokens of a finished conversation say what its messages do, for the trajectory's info."""
        drifted = None if self.drift is None else self.drift.drifted(history)
        return {} if drifted is None else {"tokenization_drift": float(drifted)}


def single_turn(context: AgentContext) -> Episode:
    return SingleTurn()


class AgentByRow:
    """Runs the agent that a row names in `agent_name`, else the default one."""

    def __init__(self, agents: Mapping[str, Episode], default: str) -> None:
        self.agents = agents
        self.default = default
        self.uses_session = any(agent.uses_session for agent in agents.values())
        self.scores = any(agent.scores for agent in agents.values())

    async def run(self, prompt: Prompt, sampler: Sampler) -> Trajectory | list[Trajectory]:
        name = prompt.row.get("agent_name") or self.default
        if name not in self.agents:
            raise unknown_agent(name, self.agents)
        return await self.agents[name].run(prompt, sampler)


def unknown_agent(name: str, agents: Collection[str], key: str = "agent_name") -> UserError:
    """`agent_name` is a column of the data."""
    closest = nearest(name, agents)
    return UserError(
        "no such agent." + (f" Did you mean {closest!r}?" if closest else ""),
        key=key,
        value=name,
        allowed=[*agents, "path/to/file.py:Class"],
        hint="actor_rollout_ref.rollout.agent.agent_loop_config_path=agents.yaml, which names it",
    )
