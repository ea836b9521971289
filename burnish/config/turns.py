"""actor_rollout_ref.rollout.multi_turn.*, .agent.*, .trace.*, .prometheus.* and .checkpoint_engine.*"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.config.data import CustomClassConfig
from burnish.config.fields import above, at_least, between, one_of, section, setting
from burnish.config.names import HISTORIES, TOKENIZATION_CHECKS, TOOL_PARSERS


@dataclass
class MultiTurnConfig:
    """Multi-turn conversations with tools and simulated users."""

    enable: bool = False
    """Generate multi-turn responses, with tools or a simulated user."""

    max_assistant_turns: int | None = at_least(None, 1)
    """Maximum number of assistant turns; null is no limit."""

    max_user_turns: int | None = at_least(None, 1)
    """Maximum number of user turns: tool results and replies of a simulated user together; null is no limit."""

    max_turn_length: int | None = at_least(None, 1)
    """Maximum number of tokens of one assistant turn; null: only data.max_response_length, which limits all turns and
    tool results together. A turn that reaches it ends the conversation; agents of users (agent loops, OpenRLHF agents)
    get the truncated turn and decide themselves."""

    max_interaction_turns: int | None = at_least(None, 1)
    """Maximum number of replies of a simulated user alone, not counting tool results; null is no limit."""

    max_parallel_calls: int | None = at_least(1, 1)
    """Tool calls of one turn that are executed, at the same time; null is no limit. Further calls are answered with an
    error message and counted (tools/over_limit)."""

    max_tool_response_length: int | None = at_least(256, 1)
    """Maximum length of a tool response in characters; longer ones are truncated; null is no limit."""

    tool_response_truncate_side: str = one_of("middle", ("left", "middle", "right"))
    """Which part of an overlong tool response is removed: left is its beginning, as in verl since 0.8. Before, and in
    MindSpeed RL, left was the part that is kept; commands of those are converted."""

    tool_config_path: str | None = None
    """YAML file with the tools, as in verl: `tools: [{class_name, config, tool_schema}]`. Names of built-in tools and
    all settings are in docs/tools.md."""

    function_tool_path: str | None = None
    """Python file with functions decorated with @function_tool (verl.tools.function_tool). Type hints and docstrings
    are the schemas."""

    interaction_config_path: str | None = None
    """YAML file with simulated users (verl's interactions): `interaction: [{name, class_name, config}]`. A row selects
    one with extra_info.interaction_kwargs.name."""

    completion_callback: str | None = None
    """Class by dotted name, or path/to/file.py:Class, whose instance is called after each turn and may append messages
    and submit another request, as verl 0.4's CompletionCallback."""

    history: str = one_of("append", HISTORIES)
    """What a turn is sampled after: `append` adds tokens to what was sampled, thinking included; `faithful` renders the
    conversation anew, as a chat server would, and trains each turn in the context that it was sampled in."""

    use_inference_chat_template: bool = False
    """verl's name for history=faithful. Unlike verl, turns are also trained in the rendered context."""

    tokenization_sanity_check_mode: str = one_of("strict", TOKENIZATION_CHECKS)
    """At the end, compare the conversation's text with a fresh rendering of its messages: the metric
    rollout/tokenization_drift is the share that differs, and the first difference is reported."""

    format: str = one_of("hermes", TOOL_PARSERS, user_paths=True)
    """Format of tool calls. Names are those of vLLM, SGLang and verl."""

    num_repeat_rollouts: int | None = at_least(None, 1)
    """Simulated continuations of a conversation's first turn (CollabLLM): only that turn is trained on, and its score
    is their mean. null continues conversations and trains on all turns."""


@dataclass
class AgentConfig:
    """Agents: users' own conversations with the model, and environments."""

    num_workers: int = at_least(8, 1)
    """Number of agent worker processes."""

    default_agent_loop: str | None = None
    """Agent of rows without an agent_name: single_turn_agent, tool_agent, a name from agent_loop_config_path or
    @register, or path/to/file.py:Class. null is the agent that the other keys need, else single_turn_agent."""

    agent_loop_config_path: str | None = None
    """YAML file with user-defined agent loops: a list of {name, _target_, arguments}."""

    agent_func_path: str | None = None
    """Python file with an agent as in OpenRLHF: an AgentExecutor, or a function `step`. It calls the engine and returns
    the reward."""

    environment: str | None = None
    """Environment that every conversation runs in: gymnasium, textarena, reasoning_gym, skyrl_gym, verifiers,
    verifiers_v1, openenv, package.module:Class, or path/to/file.py:Class. Its rewards are those of the turns."""

    environment_kwargs: dict[str, Any] = setting({})
    """Arguments of the environment."""

    timeout: float | None = above(600.0, 0)
    """Seconds that an agent or environment may work between two turns of the model before its conversation fails; null
    is no limit."""

    agent_loop_manager_class: str | None = None
    """verl: dotted name of a class that replaces its agent loop manager. Refused: write an agent loop."""

    custom_async_server: CustomClassConfig = section(CustomClassConfig)
    """verl: a user-defined class of the engine's server. Refused: write an engine (rollout.name=FILE.py:CLASS)."""


@dataclass
class TraceConfig:
    """Conversation traces."""

    backend: str | None = one_of(None, ("weave", "mlflow", "trackio", "opentelemetry", "arize"))
    """Backend for traces of conversations: spans of turns, tool calls and rewards; null records none."""

    token2text: bool = False
    """Add the text of the tokens to the traces."""

    max_samples_per_step_per_worker: int | None = at_least(None, 1)
    """Samples that are traced of each step and each validation batch: the first ones; null traces all."""


@dataclass
class PrometheusConfig:
    """Engine metrics for Prometheus."""

    enable: bool = False
    """Serve the metrics of the run and of its engine to Prometheus (trainer.metrics_port; null is any free port)."""

    port: int = between(9090, 1, 65535)
    """Port of a Prometheus server on this machine, which is asked to reload its configuration."""

    file: str = "prometheus.yml"
    """Configuration file to write for it, with the address of the metrics; relative to the run folder."""

    served_model_name: str | None = None
    """Model name in the engine's metrics; null means the model's path."""


@dataclass
class CheckpointEngineConfig:
    """Transport of weight sync."""

    backend: str = one_of("naive", ("naive", "nccl", "gloo", "hccl", "nixl", "kimi_ckpt_engine", "mooncake"))
    """Transport of weight sync to engines on their own devices; naive is nccl between GPUs, otherwise gloo."""

    engine_kwargs: dict[str, Any] = setting({})
    """Further arguments of the transport."""
