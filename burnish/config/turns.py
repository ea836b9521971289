"""actor_rollout_ref.rollout.multi_turn.* and .agent.*: conversations with tools and users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.data import CustomClassConfig
from burnish.config.fields import at_least, one_of, section, setting


@dataclass
class MultiTurnConfig:
    """Conversations of several turns."""

    enable: bool = False
    """Let a response go on over several turns, with tools or a simulated user."""

    max_assistant_turns: int | None = at_least(None, 1)
    """Most turns of the model; null is no limit."""

    max_user_turns: int | None = at_least(None, 1)
    """Most turns of the user or the tools; null is no limit."""

    max_parallel_calls: int = at_least(1, 1)
    """Tool calls of one turn that are run at once."""

    max_tool_response_length: int = at_least(256, 1)
    """Longest text of a tool, in characters; the rest is cut."""

    tool_response_truncate_side: str = one_of("middle", ("left", "middle", "right"))
    """Which part of an overlong tool text is cut."""

    tool_config_path: str | None = None
    """YAML with the tools."""

    interaction_config_path: str | None = None
    """YAML with the simulated users."""

    completion_callback: str | None = None
    """Dotted name of a class that is called after each turn and may append messages."""

    use_inference_chat_template: bool = False
    """Render the whole conversation anew for each turn, as a chat server would; else continue the exact tokens."""

    tokenization_sanity_check_mode: str = one_of("strict", ("disable", "strict", "ignore_strippable"))
    """Compare the tokens of the conversation with a fresh rendering at the end, and warn where they differ."""

    format: str = "hermes"
    """How the model writes tool calls."""

    num_repeat_rollouts: int | None = at_least(None, 1)
    """Conversations per prompt that share tools."""


@dataclass
class AgentConfig:
    """Agent loops: the user's own way through a conversation."""

    num_workers: int = at_least(8, 1)
    """Agent workers."""

    default_agent_loop: str = "single_turn_agent"
    """Agent loop of rows without an agent_name."""

    agent_loop_config_path: str | None = None
    """YAML with the user's agent loops."""

    agent_func_path: str | None = None
    """Python file with an AgentExecutor, as OpenRLHF has it: it talks with the engine and brings the reward."""

    custom_async_server: CustomClassConfig = section(CustomClassConfig)
    """An engine server class of your own."""


@dataclass
class TraceConfig:
    """Traces of conversations."""

    backend: str | None = one_of(None, ("weave", "mlflow", "arize"))
    """Where traces of conversations go; null records none."""

    token2text: bool = False
    """Add the text of the tokens to the traces."""


@dataclass
class PrometheusConfig:
    """Engine metrics for Prometheus."""

    enable: bool = False
    """Serve the engine's metrics to Prometheus."""

    port: int = at_least(9090, 1)
    """Port of Prometheus."""

    file: str = "prometheus.yml"
    """Prometheus configuration file to write."""

    served_model_name: str | None = None
    """Model name in the metrics; null means the model's path."""


@dataclass
class CheckpointEngineConfig:
    """How weights travel to the engine."""

    backend: str = one_of("naive", ("naive", "nccl", "gloo", "hccl", "nixl", "kimi_ckpt_engine", "mooncake"))
    """Transport of the weights to engines on devices of their own; naive is nccl between GPUs, and gloo elsewhere."""

    engine_kwargs: dict[str, Any] = setting({})
    """Further arguments of the transport."""
