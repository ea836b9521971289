"""Replace the tools of a run, drop what is not on this machine, and shorten conversations."""

from __future__ import annotations

from pathlib import Path

import yaml

from burnish.errors import UserError
from burnish.loop.build_agents import AGENT, MULTI_TURN
from burnish.rehearsal.folding import user_file_exists
from burnish.rehearsal.plan import READING, Plan
from burnish.rehearsal.rows import exists
from burnish.rehearsal.stand_in_tools import ENVIRONMENT, is_local, is_mcp, made_up_schema
from burnish.rollout.environments.environment import ENVIRONMENTS
from burnish.rollout.tools.entry import ToolEntry
from burnish.rollout.tools.load import read_tool_config
from burnish.user_code import is_user_path

TOOLS = f"{MULTI_TURN}.tool_config_path"
FUNCTIONS = f"{MULTI_TURN}.function_tool_path"
SHOWN = "data.tool_config_path"
# Users' code that is run, where it is on this machine. Together with tools: what makes a conversation.
OTHERS = (
    f"{MULTI_TURN}.interaction_config_path",
    f"{MULTI_TURN}.completion_callback",
    f"{AGENT}.agent_loop_config_path",
    f"{AGENT}.agent_func_path",
    f"{AGENT}.default_agent_loop",
)


def has_conversations(plan: Plan) -> bool:
    """Whether samples may have several turns."""
    keys = (TOOLS, FUNCTIONS, *OTHERS, f"{AGENT}.environment")
    return plan.job == "train" and any(plan.value(key) for key in keys)


def replace_conversations(plan: Plan) -> None:
    """Report a stand-in for every tool, which the run then creates; drop users' code that is not on this machine."""
    if not has_conversations(plan):
        return
    replaced = _replace_tools(plan)
    missing = [key for key in OTHERS if plan.value(key) and not _is_here(plan.value(key))]
    for key in missing:
        plan.not_tested.append(f"{plan.user_name(key)} {plan.value(key)}: not on this machine")
        plan.drop(key)
    _replace_environment(plan)
    left = [key for key in OTHERS if plan.value(key) and key not in missing]
    if missing and not left and not replaced and not plan.value(f"{AGENT}.environment"):
        plan.put(f"{MULTI_TURN}.enable", False)
        plan.not_tested.append("conversations: responses have one turn here")


def _is_here(value: str) -> bool:
    """Whether a file exists, or a class can be imported. A bare name is one of an agent."""
    if is_user_path(value):
        return user_file_exists(value.rpartition(":")[0])
    if "/" in value or Path(value).suffix in (".yaml", ".yml", ".json", ".py"):
        return exists(value)
    module, separator, _ = value.rpartition(":" if ":" in value else ".")
    return not separator or user_file_exists(f"pkg://{module}")


def _replace_tools(plan: Plan) -> bool:
    """Whether the rehearsal has tools."""
    paths = {key: plan.value(key) for key in (TOOLS, FUNCTIONS) if plan.value(key)}
    if not paths:
        return False
    missing = {key: path for key, path in paths.items() if not exists(path)}
    for key, path in missing.items():
        plan.drop(key)
        plan.stand_ins.append(f"tools of {path}: not on this machine, replaced by one tool with a made-up schema")
    lines: list[str] = []
    if missing:
        _add_made_up_tool(plan)
    if TOOLS in paths and TOOLS not in missing:
        lines += _entry_lines(plan, paths[TOOLS])
    if FUNCTIONS in paths and FUNCTIONS not in missing:
        lines.append(f"functions of {paths[FUNCTIONS]}: a stand-in for each, which answers by its schema")
    _replace_shown_tools(plan)
    plan.stand_ins += lines
    name = plan.user_name(f"{MULTI_TURN}.format")
    plan.not_tested.append(f"the tools themselves, and calls in the model's format ({name}): turns call by a script")
    return True


def _entry_lines(plan: Plan, path: str) -> list[str]:
    try:
        entries = read_tool_config(path, TOOLS)
    except UserError as error:
        plan.add_finding(READING, error)
        plan.drop(TOOLS)
        plan.put(f"{MULTI_TURN}.enable", False)
        return []
    return [_entry_line(entry) for entry in entries]


def _entry_line(entry: ToolEntry) -> str:
    """What the report says about one entry of the file."""
    name = entry.class_name if entry.schema is None else f"{entry.schema['function']['name']} ({entry.class_name})"
    if is_mcp(entry):
        return f"tool {name}: a stand-in with a made-up schema, because no MCP server is started here"
    if is_local(entry):
        return f"tool {name}: a stand-in that answers by its schema"
    reason = f"{entry.class_name} is not on this machine"
    return f"tool {name}: a stand-in that answers by {'a made-up' if entry.schema is None else 'its'} schema; {reason}"


def _add_made_up_tool(plan: Plan) -> None:
    """One tool in place of files that are not on this machine, unless the other file has tools."""
    if TOOLS in plan.settings:
        return
    file = plan.folder / "stand_in_tools.yaml"
    entry = {"class_name": "elsewhere.Tool", "config": {}, "tool_schema": made_up_schema("stand_in_tool")}
    file.write_text(yaml.safe_dump({"tools": [entry]}), encoding="utf-8")
    plan.put(TOOLS, str(file))


def _replace_shown_tools(plan: Plan) -> None:
    """Prompts show the stand-ins, unless they have a file of their own that says all."""
    path = plan.value(SHOWN)
    if not path:
        return
    if path == plan.value(TOOLS):
        plan.put(SHOWN, plan.settings.get(TOOLS))
        return
    if exists(path):
        try:
            if all(entry.schema is not None for entry in read_tool_config(path, SHOWN)):
                return
        except UserError as error:
            plan.add_finding(READING, error)
    plan.not_tested.append(f"{plan.user_name(SHOWN)} {path}: prompts show the tools of the conversation")
    plan.drop(SHOWN)


def _replace_environment(plan: Plan) -> None:
    """A stand-in for an environment behind a network or on another machine."""
    key = f"{AGENT}.environment"
    name = plan.value(key)
    if not name:
        return
    known = name in ENVIRONMENTS
    remote = known and "network" in ENVIRONMENTS[name].needs and not plan.live
    if not remote and (known or _is_here(name)):
        return
    reason = "it is only called with --live" if remote else "it is not on this machine"
    plan.drop(f"{AGENT}.environment_kwargs")
    plan.put(key, ENVIRONMENT)
    plan.stand_ins.append(f"environment {name}: a stand-in, because {reason}")
    plan.not_tested.append(f"the environment {name}")
