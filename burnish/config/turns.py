"""actor_rollout_ref.rollout.multi_turn.*, .agent.*, .trace.*, .prometheus.* and .checkpoint_engine.*"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.data import CustomClassConfig
from burnish.config.fields import at_least, one_of, section, setting


@dataclass
class MultiTurnConfig:
    """Multi-turn conversations with tools and simulated users."""

    enable: bool = False
    """Generate multi-turn responses, with tools or a simulated user."""

    max_assistant_turns: int | None = at_least(None, 1)
    """Maximum number of assistant turns; null is no limit."""

    max_user_turns: int | None = at_least(None, 1)
    """Maximum number of user or tool turns; null is no limit."""

    max_parallel_calls: int = at_least(1, 1)
    """Maximum concurrent tool calls per turn."""

    max_tool_response_length: int = at_least(256, 1)
    """Maximum length of a tool response in characters; longer ones are truncated."""

    tool_response_truncate_side: str = one_of("middle", ("left", "middle", "right"))
    """Which part of an overlong tool response is removed."""

    tool_config_path: str | None = None
    """YAML file with the tools."""

    interaction_config_path: str | None = None
    """YAML file with the simulated users."""

    completion_callback: str | None = None
    """Dotted name of a class that is called after each turn and may append messages."""

    use_inference_chat_template: bool = False
    """Re-render the whole conversation each turn, as a chat server would; otherwise append to the exact tokens."""

    tokenization_sanity_check_mode: str = one_of("strict", ("disable", "strict", "ignore_strippable"))
    """At the end, compare the conversation's tokens with a fresh rendering, and warn if they differ."""

    format: str = "hermes"
    """Format of tool calls."""

    num_repeat_rollouts: int | None = at_least(None, 1)
    """Conversations per prompt that share tools."""


@dataclass
class AgentConfig:
    """User-defined agent loops."""

    num_workers: int = at_least(8, 1)
    """Number of agent worker processes."""

    default_agent_loop: str = "single_turn_agent"
    """Agent loop of rows without an agent_name."""

    agent_loop_config_path: str | None = None
    """YAML file with user-defined agent loops."""

    agent_func_path: str | None = None
    """Python file with an AgentExecutor as in OpenRLHF: it calls the engine and returns the reward."""

    custom_async_server: CustomClassConfig = section(CustomClassConfig)
    """A user-defined engine server class."""


@dataclass
class TraceConfig:
    """Conversation traces."""

    backend: str | None = one_of(None, ("weave", "mlflow", "arize"))
    """Backend for conversation traces; null records none."""

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
    """Transport of weight sync."""

    backend: str = one_of("naive", ("naive", "nccl", "gloo", "hccl", "nixl", "kimi_ckpt_engine", "mooncake"))
    """Transport of weight sync to engines on their own devices; naive is nccl between GPUs, otherwise gloo."""

    engine_kwargs: dict[str, Any] = setting({})
    """Further arguments of the transport."""
