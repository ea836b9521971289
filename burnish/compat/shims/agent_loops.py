"""verl.experimental.agent_loop: base class and output of users' agent loops."""

from __future__ import annotations

import asyncio
import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from burnish.rollout.chat.tool_calls import TOOL_PARSERS

_agent_loop_registry: dict[str, dict[str, Any]] = {}


def register(agent_name: str) -> Callable[[type], type]:
    """Make a class available to rows with this agent_name."""

    def decorator(cls: type) -> type:
        _agent_loop_registry[agent_name] = {"_target_": cls}
        return cls

    return decorator


class AgentLoopMetrics:
    """Times of a conversation, in seconds."""

    def __init__(
        self, generate_sequences: float = 0.0, tool_calls: float = 0.0, compute_score: float = 0.0, **more: Any
    ) -> None:
        self.generate_sequences = generate_sequences
        self.tool_calls = tool_calls
        self.compute_score = compute_score
        self.num_preempted = more.get("num_preempted", -1)


class AgentLoopOutput:
    """The tokens of a conversation; the mask is 1 where the model wrote the token."""

    def __init__(
        self,
        *,
        prompt_ids: list[int],
        response_ids: list[int],
        response_mask: list[int],
        metrics: AgentLoopMetrics | Mapping[str, Any] | None = None,
        num_turns: int = 0,
        reward_score: float | None = None,
        response_logprobs: list[float] | None = None,
        extra_fields: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.prompt_ids = prompt_ids
        self.response_ids = response_ids
        self.response_mask = response_mask
        self.metrics = AgentLoopMetrics(**metrics) if isinstance(metrics, Mapping) else metrics or AgentLoopMetrics()
        self.num_turns = num_turns
        self.reward_score = reward_score
        self.response_logprobs = response_logprobs
        self.extra_fields = {} if extra_fields is None else extra_fields
        self.multi_modal_data = more.get("multi_modal_data") or {}
        self.routed_experts = more.get("routed_experts")
        self.mm_processor_kwargs = more.get("mm_processor_kwargs")


class AgentLoopBase(ABC):
    """One conversation: `run` samples with server_manager.generate and returns the tokens."""

    _class_initialized = False

    def __init__(
        self,
        trainer_config: Any,
        server_manager: Any,
        tokenizer: Any,
        processor: Any = None,
        dataset_cls: Any = None,
        data_config: Any = None,
        **kwargs: Any,
    ) -> None:
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.processor = processor
        self.dataset_cls = dataset_cls
        self.data_config = self.config.data if data_config is None else data_config.config
        self.apply_chat_template_kwargs = dict(self.data_config.get("apply_chat_template_kwargs") or {})
        self.loop = asyncio.get_running_loop()
        options = {key: value for key, value in kwargs.items() if key != "dataset_config"}
        _call(self.init_class, config=self.config, tokenizer=tokenizer, processor=processor, **options)

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any, processor: Any = None, **kwargs: Any) -> None:
        """Initialize what all conversations share; called for each, and to be left at once after the first."""
        cls._class_initialized = True

    @property
    def system_prompt(self) -> list[int]:
        """Tokens that the template puts before every conversation without a system message."""
        one = [{"role": "user", "content": ""}]
        single, double = (self._render(messages, reply=False) for messages in (one, one * 2))
        return single[: max(0, 2 * len(single) - len(double))]

    async def process_vision_info(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The images and videos in the parts of messages, under "images" and "videos"."""
        contents = [message["content"] for message in messages if isinstance(message.get("content"), list)]
        parts = [part for content in contents for part in content]
        images, videos = ([part[kind] for part in parts if part.get(kind) is not None] for kind in ("image", "video"))
        return {name: shown for name, shown in (("images", images), ("videos", videos)) if shown}

    async def process_multi_modal_info(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return await self.process_vision_info(messages)

    async def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        images: Any = None,
        videos: Any = None,
        remove_system_prompt: bool = False,
        **unused: Any,
    ) -> list[int]:
        """Prompt tokens of these messages."""
        ids = self._render(messages, tools=tools, images=images, videos=videos)
        return ids[len(self.system_prompt) :] if remove_system_prompt else ids

    def _render(
        self,
        messages: list[dict[str, Any]],
        *,
        reply: bool = True,
        tools: Any = None,
        images: Any = None,
        videos: Any = None,
    ) -> list[int]:
        kwargs = {"tools": tools} if tools else {}
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=reply, **kwargs, **self.apply_chat_template_kwargs
        )
        if self.processor is not None and (images or videos):
            return list(self.processor(text=[text], images=images, videos=videos)["input_ids"][0])
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @abstractmethod
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """One conversation, given the run's sampling parameters and the row of the data."""


@dataclass
class FunctionCall:
    """A call that a model wrote; the arguments are JSON text."""

    name: str
    arguments: str


class ToolParser:
    """Reads tool calls from sampled tokens, by the name of a format."""

    def __init__(self, tokenizer: Any, name: str = "hermes") -> None:
        self.tokenizer = tokenizer
        self.parser = TOOL_PARSERS[name].load()()

    @classmethod
    def get_tool_parser(cls, name: str, tokenizer: Any) -> ToolParser:
        return cls(tokenizer, name)

    async def extract_tool_calls(self, responses_ids: list[int], *unused: Any) -> tuple[str, list[FunctionCall]]:
        """The text without calls, and the calls that can be executed."""
        import json

        turn = self.parser.parse(self.tokenizer.decode(responses_ids))
        calls = [call for call in turn.calls if call.problem is None]
        return turn.content, [FunctionCall(call.name, json.dumps(call.arguments)) for call in calls]


class TokenOutput:
    """What server_manager.generate returns."""

    def __init__(self, token_ids: list[int], log_probs: list[float] | None = None, **more: Any) -> None:
        self.token_ids = token_ids
        self.log_probs = log_probs


@contextmanager
def simple_timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
    """Add the seconds of the block to timing_raw[name]."""
    started = time.monotonic()
    try:
        yield
    finally:
        timing_raw[name] = timing_raw.get(name, 0.0) + time.monotonic() - started


def _call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call with those of the arguments that the function takes: they changed between versions."""
    parameters = inspect.signature(function).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        names = {parameter.name for parameter in parameters}
        arguments = {name: value for name, value in arguments.items() if name in names}
    return function(**arguments)
