"""Tool: what a model may call during a conversation, and what a call returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ToolTimeout(Exception):
    """A call took longer than its limit."""


@dataclass(frozen=True)
class ToolResult:
    """What a call returned. `failed`: the text is an error message to the model."""

    text: str
    reward: float = 0.0  # for the turn that called
    metrics: dict[str, float] = field(default_factory=dict)
    failed: bool = False
    images: tuple[Any, ...] = ()  # RGB pictures, shown to the model before the text
    videos: tuple[Any, ...] = ()  # burnish.media.Video
    pictures_optional: bool = False  # a model that takes text only is given the text alone
    # Set by the session that executes the call:
    timed_out: bool = False
    truncated: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class ToolLimits:
    """How a tool's calls are bounded, over all conversations of the run."""

    timeout: float = 60.0  # seconds per attempt
    retries: int = 0  # further attempts after an exception; not after a timeout
    max_concurrency: int | None = None  # calls at the same time
    rate_limit: float | None = None  # calls started per second
    repeatable: bool = True  # False: a call that was in flight when the run was killed is reported as failed
    isolate: bool = False  # run in a process per conversation, which can be killed


@dataclass(frozen=True)
class ConversationInfo:
    """What a tool may know about the conversation that uses it."""

    id: str  # unique in the run
    seed: int
    row: Mapping[str, Any]  # of the data: ground_truth, extra_info, ...
    messages: list[dict[str, Any]] = field(default_factory=list)  # so far; the agent appends to it


class Tool:
    """A tool lives as long as a conversation: open once, call any number of times, score, close always.

    Methods may run for many conversations at the same time; `state` is what `open` returned for this one. They run on
    the event loop that also feeds the engine, so whatever may block goes through `UserCode.run`.
    """

    enforces_timeout = False  # whether `call` itself ends after limits.timeout, for example by killing a process
    opens_at_start = False  # whether a conversation opens the tool before the first turn, not at the first call
    reads_rows = False  # whether conversation.row must hold the whole row of the data, as `dataset_row`

    def __init__(self, schema: dict[str, Any], limits: ToolLimits | None = None) -> None:
        self.schema = schema  # {"type": "function", "function": {"name", "description", "parameters"}}
        self.limits = limits or ToolLimits()  # tools with the same object share one limit

    @property
    def name(self) -> str:
        return self.schema["function"]["name"]

    @property
    def group(self) -> str:
        """Tools of a group share one state per conversation: it is opened, scored and closed once."""
        return self.name

    @property
    def starts_early(self) -> bool:
        """Whether a call may start before the turn that made it is complete.

        The turn may still be cut off by its length, and then the result is dropped. So the tool must not be one that
        cannot be called twice, nor one that scores the conversation by the calls that it has seen.
        """
        return self.limits.repeatable and type(self).score is Tool.score

    async def open(self, conversation: ConversationInfo, options: Mapping[str, Any]) -> Any:
        """The state of a conversation. `options` is the row's extra_info.tools_kwargs of this tool."""
        return None

    async def call(self, state: Any, arguments: dict[str, Any]) -> ToolResult:
        """Execute one call. An exception becomes an error message to the model."""
        raise NotImplementedError(f"{type(self).__name__}.call")

    async def score(self, state: Any) -> float:
        """The tool's reward for the whole conversation."""
        return 0.0

    async def close(self, state: Any) -> None:
        """The conversation is over."""

    def shut_down(self) -> None:
        """The run is over: stop processes and connections."""
