"""Tools and agents of a run, from the config: what an episode is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from burnish.config.tree import to_plain
from burnish.data.dataset import PromptDataset
from burnish.errors import UserError
from burnish.models.vision.encoder import VisionEncoder
from burnish.rollout.agents.agent import AGENTS, AgentByRow, AgentContext, unknown_agent
from burnish.rollout.agents.agent_loops import agent_of, load_agent_loops, registered_agent_loops
from burnish.rollout.agents.completion_callback import CallbackAgent
from burnish.rollout.agents.environment_agent import EnvironmentAgent
from burnish.rollout.agents.interactions import interaction_kwargs, load_interactions
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.agents.openrlhf_agent import OpenRLHFAgent
from burnish.rollout.chat.drift import TOKENIZATION_CHECKS
from burnish.rollout.chat.history import HISTORIES
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.chat.template_check import NOT_APPEND_ONLY, check_template
from burnish.rollout.chat.tool_calls import TOOL_PARSERS, ToolParser
from burnish.rollout.environments.environment import load_environment, python_environment
from burnish.rollout.episode import Episode, SingleTurn
from burnish.rollout.tools.functions import python_tools
from burnish.rollout.tools.isolated import IsolatedTool, LoadTemplate, Template
from burnish.rollout.tools.load import load_function_tools, load_tool_config, load_tool_schemas
from burnish.rollout.tools.tool import Tool
from burnish.rollout.tools.toolbox import Toolbox
from burnish.rollout.tools.truncation import ResponseLimit
from burnish.user_code import is_user_path

if TYPE_CHECKING:
    from burnish.config import TrainConfig

AGENT = "actor_rollout_ref.rollout.agent"
REQUESTED = (
    "agent_func",
    "environment",
    "completion_callback",
)  # agents that exist if a key asks for them; then they are the default
MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"


def build_toolbox(
    cfg: TrainConfig, functions: Sequence[Callable[..., Any] | Tool] = (), load_template: LoadTemplate = Template
) -> Toolbox:
    """Every tool of the run: the YAML file's, the file of functions', and those given in Python.

    `load_template` decides where isolated tools run.
    """
    turns = cfg.actor_rollout_ref.rollout.multi_turn
    tools: list[Tool] = []
    notices: list[str] = []
    try:
        if turns.tool_config_path:
            key = f"{MULTI_TURN}.tool_config_path"
            options = {"allow_weak": cfg.sandbox.allow_weak, "load_template": load_template}
            tools, notices = load_tool_config(turns.tool_config_path, key, **options)
        if turns.function_tool_path:
            tools += load_function_tools(turns.function_tool_path, f"{MULTI_TURN}.function_tool_path")
        tools += python_tools(functions, load_template)
        if cfg.ray_init.tool_nodes and not any(isinstance(tool, IsolatedTool) for tool in tools):
            raise no_isolated_tool(cfg.ray_init.tool_nodes)
        return Toolbox(tools, notices)
    except BaseException:
        for tool in tools:
            tool.shut_down()
        raise


def no_isolated_tool(nodes: int) -> UserError:
    return UserError(
        "no tool of the run has limits.isolate, and only such tools run on other nodes",
        key="ray_init.tool_nodes",
        value=nodes,
        hint="limits: {isolate: true} in the tool's entry, or ray_init.tool_nodes=0",
    )


def prompt_schemas(cfg: TrainConfig, toolbox: Toolbox) -> list[dict[str, Any]]:
    """Schemas that prompts show the model: those of the run's tools, or of another file in data.tool_config_path.

    A run that does not execute tools can show them too: rewards then judge the calls.
    """
    path = cfg.data.tool_config_path
    if not path or path == cfg.actor_rollout_ref.rollout.multi_turn.tool_config_path:
        return toolbox.schemas()
    schemas = load_tool_schemas(path, "data.tool_config_path")
    shown = {schema["function"]["name"] for schema in schemas}
    differing = sorted(shown ^ toolbox.tools.keys())
    if toolbox and differing:
        toolbox.notices.append(
            f"data.tool_config_path={path}: prompts do not show exactly the tools that are executed; only one of both"
            f" has {', '.join(differing)}"
        )
    return schemas


def build_episode(
    cfg: TrainConfig,
    toolbox: Toolbox,
    tokenizer: Any,
    eos_ids: Sequence[int],
    *,
    environment: Any = None,
    has_reward: bool = False,
    vision: VisionEncoder | None = None,
) -> tuple[Episode, list[str]]:
    """What runs for each sample, one response or a conversation; and what to tell about it at the start.

    `environment` was given in Python. `has_reward`: the user has a reward function. `vision` shows the model what
    tools and environments return.
    """
    rollout = cfg.actor_rollout_ref.rollout
    turns, agent = rollout.multi_turn, rollout.agent
    interactions = None
    if turns.interaction_config_path:
        interactions = load_interactions(turns.interaction_config_path, f"{MULTI_TURN}.interaction_config_path")
    parser = TOOL_PARSERS[turns.format].load()(toolbox.schemas())
    stop_ids = added_stop_ids(parser, tokenizer, eos_ids)
    template_kwargs = cfg.data.apply_chat_template_kwargs or {}
    template = ChatTemplate(tokenizer, (*eos_ids, *stop_ids), toolbox.schemas(), template_kwargs, vision)
    context = AgentContext(
        tokenizer=tokenizer,
        template=template,
        parser=parser,
        toolbox=toolbox,
        decode=partial(tokenizer.decode, skip_special_tokens=False),
        limits=TurnLimits(
            turns.max_assistant_turns,
            turns.max_user_turns,
            turns.max_parallel_calls,
            turns.max_interaction_turns,
            turns.max_turn_length,
        ),
        response_limit=ResponseLimit(turns.max_tool_response_length, turns.tool_response_truncate_side),
        history=HISTORIES[turns.history].load(),
        drift=TOKENIZATION_CHECKS[turns.tokenization_sanity_check_mode].load()(),
        stop_token_ids=stop_ids,
        interactions=interactions,
        config=to_plain(cfg),
        timeout=agent.timeout,
        num_futures=turns.num_repeat_rollouts,
        has_reward=has_reward,
    )
    notices: list[str] = []
    talks = bool(toolbox) or interactions is not None
    agents = build_agents(cfg, context, environment)
    default = agent.default_agent_loop or next((name for name in REQUESTED if name in agents), None)
    default = default or ("tool_agent" if talks else "single_turn_agent")
    if default not in agents:
        raise unknown_agent(default, agents, f"{AGENT}.default_agent_loop")
    if talks or agents.keys() & {"environment", "completion_callback"}:
        notices = check_template(template, "actor_rollout_ref.model.path", replies=interactions is not None)
        if any(NOT_APPEND_ONLY in notice for notice in notices):
            notices.append(f"{MULTI_TURN}.history={turns.history}: {context.history.notice}")
    elif not agents.keys() - set(AGENTS.names()):
        if turns.enable:
            raise nothing_to_talk_to()
        return SingleTurn(), []
    return AgentByRow(agents, default), notices


def build_agents(cfg: TrainConfig, context: AgentContext, environment: Any = None) -> dict[str, Episode]:
    """Agents by name: built-in ones, those of the YAML file, registered ones, and a default given by its path."""
    agent = cfg.actor_rollout_ref.rollout.agent
    agents: dict[str, Episode] = {name: AGENTS[name].load()(context) for name in AGENTS.names()}
    if agent.agent_loop_config_path:
        agents |= load_agent_loops(agent.agent_loop_config_path, f"{AGENT}.agent_loop_config_path", context)
    agents |= registered_agent_loops(context, f"{AGENT}.default_agent_loop")
    if agent.agent_func_path:
        agents["agent_func"] = OpenRLHFAgent(context, agent.agent_func_path, f"{AGENT}.agent_func_path")
    turns = cfg.actor_rollout_ref.rollout.multi_turn
    if turns.completion_callback:
        key, make_parser = f"{MULTI_TURN}.completion_callback", TOOL_PARSERS[turns.format].load()
        agents["completion_callback"] = CallbackAgent(context, turns.completion_callback, key, make_parser)
    if environment is not None:
        agents["environment"] = EnvironmentAgent(context, python_environment(environment))
    elif agent.environment:
        factory = load_environment(agent.environment, agent.environment_kwargs, f"{AGENT}.environment")
        agents["environment"] = EnvironmentAgent(context, factory)
    default = agent.default_agent_loop
    if default is not None and default not in agents and is_user_path(default):
        agents[default] = agent_of(AGENTS[default].load(), default, context, f"{AGENT}.default_agent_loop")
    return agents


def nothing_to_talk_to() -> UserError:
    return UserError(
        "a conversation needs tools, a simulated user or an agent, and none is configured",
        key=f"{MULTI_TURN}.enable",
        value=True,
        allowed=[
            *(f"{MULTI_TURN}.{name}" for name in ("tool_config_path", "function_tool_path", "interaction_config_path")),
            f"{MULTI_TURN}.completion_callback",
            *(f"{AGENT}.{name}" for name in ("agent_loop_config_path", "agent_func_path", "environment")),
        ],
        hint=f"{MULTI_TURN}.tool_config_path=tools.yaml, or {MULTI_TURN}.enable=false for single-turn training",
    )


def check_rows(cfg: TrainConfig, episode: Episode, datasets: Sequence[PromptDataset]) -> None:
    """Refuse data whose rows name agents that do not exist, or say nothing to the simulated users."""
    agents = episode.agents if isinstance(episode, AgentByRow) else AGENTS.names()
    for name in sorted({name for data in datasets for name in data.agent_names()}):
        if name not in agents:
            raise unknown_agent(name, agents)
    path = cfg.actor_rollout_ref.rollout.multi_turn.interaction_config_path
    rows = (data[number] for data in datasets for number in range(len(data)))
    if path and not any(interaction_kwargs(row) for row in rows):
        raise UserError(
            "no row of the data has extra_info.interaction_kwargs, so that no conversation would have a simulated user",
            key=f"{MULTI_TURN}.interaction_config_path",
            value=path,
            hint='"extra_info": {"interaction_kwargs": {"name": "...", "ground_truth": "..."}} in the rows',
        )


def added_stop_ids(parser: ToolParser, tokenizer: Any, eos_ids: Sequence[int]) -> tuple[int, ...]:
    """Tokens that end a turn in this format besides EOS, of those that the tokenizer has."""
    vocab = tokenizer.get_vocab()
    ids = [vocab[token] for token in getattr(parser, "stop_tokens", ()) if token in vocab]
    return tuple(token for token in ids if token not in eos_ids)
