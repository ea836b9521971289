"""Runs with tools, simulated users and environments are rehearsed with stand-ins; users' tools are never called."""

from __future__ import annotations

import json

import pytest

from burnish.dialects.translate import translate_command
from burnish.rehearsal.rehearse import rehearse
from burnish.rehearsal.report import BROKEN
from burnish.rehearsal.stand_in_tools import ScriptedCalls, StandInEnvironment, arguments_for, made_up_schema, value_for
from burnish.rollout.tools.schema import check_arguments

TURNS, AGENT = "actor_rollout_ref__rollout__multi_turn", "actor_rollout_ref__rollout__agent"
TOOL = '''
class Weather:
    def forecast(self, city: str, days: int = 2) -> str:
        """The weather of the next days.

        Args:
            city: its name
            days: how many
        """
        open("{called}", "w").write("yes")
        return "rain"
'''
SCHEMA = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "count": {"type": "integer", "minimum": 3},
                "kind": {"type": "string", "enum": ["page", "word"]},
                "where": {"type": "object", "properties": {"years": {"type": "array", "items": {"type": "integer"}}}},
                "exact": {"type": ["boolean", "null"]},
                "limit": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            },
            "required": ["query", "count", "kind", "where"],
        },
    },
}


@pytest.fixture
def tool_file(tmp_path):
    """Writes a YAML file of four tools: a class, one of another machine, a built-in one and an MCP server's."""

    def write(class_name="Weather"):
        (tmp_path / "weather.py").write_text(TOOL.replace("{called}", str(tmp_path / "called")))
        servers = {"mcpServers": {"web": {"command": "touch", "args": [str(tmp_path / "started")]}}}
        (tmp_path / "servers.json").write_text(json.dumps(servers))
        entries = [
            {"class_name": f"{tmp_path}/weather.py:{class_name}", "config": {}},
            {"class_name": "elsewhere.Lookup", "config": {}, "tool_schema": SCHEMA},
            {"class_name": "calculator"},
            {"class_name": "mcp", "mcp": {"mcp_servers_config_path": "servers.json", "tool_selected_list": ["fetch"]}},
        ]
        path = tmp_path / "tools.yaml"
        path.write_text(json.dumps({"tools": entries}))
        return path

    return write


def turns_of(folder):
    (path,) = folder.glob("run/*/rollouts/1.jsonl")
    return [turn for line in path.read_text().splitlines() for turn in json.loads(line)["turns"]]


def test_made_up_arguments_fit_the_schema():
    parameters = SCHEMA["function"]["parameters"]
    arguments = arguments_for(parameters)
    assert check_arguments(SCHEMA, arguments) is None
    expected = {"query": "text", "count": 3, "kind": "page", "where": {"years": [1]}, "exact": True, "limit": 1.0}
    assert arguments == expected
    endless = {"type": "object", "properties": {}}
    endless["properties"]["self"] = endless
    assert json.dumps(value_for(endless)).count("self") < 10
    assert value_for({"default": 7, "type": "integer"}) == 7 and value_for("no schema") == "text"


def test_most_turns_are_read_as_calls_of_every_tool():
    parser = ScriptedCalls([made_up_schema("one"), made_up_schema("two")])
    parsed = [parser.parse(f"turn {number}") for number in range(400)]
    names = [call.name for turn in parsed for call in turn.calls]
    assert 250 < len(names) < 350 and {"one", "two"} == set(names)
    assert ScriptedCalls([]).parse("text").calls == []


def test_the_stand_in_environment_ends():
    environment = StandInEnvironment(base_url="http://elsewhere")
    assert "7" in environment.reset(7)
    first, second = environment.step("a"), environment.step("b")
    assert not first.done and second.done and 0 <= first.reward < 1


def test_tools_are_replaced_and_never_called(rehearsed, tool_file, tmp_path):
    report = rehearsed(folder=tmp_path / "out", **{f"{TURNS}__enable": True, f"{TURNS}__tool_config_path": tool_file()})
    assert report.passed, report.findings
    lines = [line for line in report.stand_ins if line.startswith("tool ")]
    assert len(lines) == 4
    assert "a stand-in that answers by its schema" in lines[0] and "weather.py:Weather" in lines[0]
    assert "lookup (elsewhere.Lookup)" in lines[1] and "not on this machine" in lines[1]
    assert "calculator" in lines[2] and "no MCP server is started" in lines[3]
    assert any("the tools themselves" in line for line in report.not_tested)
    turns = turns_of(tmp_path / "out")
    called = {call["function"]["name"] for turn in turns for call in turn["tool_calls"]}
    assert called <= {"forecast", "lookup", "calculator", "fetch"} and len(called) > 1
    answers = [turn["text"] for turn in turns if turn["role"] == "tool"]
    assert answers and all('"tool": ' in text and "Error" not in text for text in answers)
    assert not (tmp_path / "called").exists() and not (tmp_path / "started").exists()


@pytest.mark.long
def test_tools_in_an_isolated_process(command, tool_file):
    changes = {f"{TURNS}__enable": True, f"{TURNS}__tool_config_path": tool_file()}
    report = rehearse(translate_command(command(**changes)))
    assert report.passed, report.findings


@pytest.mark.long
def test_a_class_that_does_not_exist_is_named(rehearsed, tool_file):
    report = rehearsed(**{f"{TURNS}__enable": True, f"{TURNS}__tool_config_path": tool_file("Wether")})
    assert report.exit_status == BROKEN
    assert "has no 'Wether'" in report.findings[0].text and "Weather" in report.findings[0].text


@pytest.mark.long
def test_files_of_another_machine(rehearsed, tmp_path):
    paths = {f"{TURNS}__tool_config_path": "/elsewhere/tools.yaml", f"{TURNS}__interaction_config_path": "/else/i.yaml"}
    report = rehearsed(folder=tmp_path, **{f"{TURNS}__enable": True}, **paths)
    assert report.passed, report.findings
    assert any("/elsewhere/tools.yaml: not on this machine, replaced by one tool" in line for line in report.stand_ins)
    assert any("/else/i.yaml: not on this machine" in line for line in report.not_tested)
    assert any(turn["role"] == "tool" for turn in turns_of(tmp_path))
    report = rehearsed(**{f"{TURNS}__enable": True, f"{TURNS}__interaction_config_path": "/else/i.yaml"})
    assert report.passed, report.findings
    assert "conversations: responses have one turn here" in report.not_tested


@pytest.mark.long
def test_an_environment_behind_a_network_is_replaced(rehearsed, tmp_path):
    keys = {f"+{AGENT}__environment": "openenv", f"+{AGENT}__environment_kwargs__base_url": "http://127.0.0.1:1"}
    report = rehearsed(folder=tmp_path, **keys)
    assert report.passed, report.findings
    assert "environment openenv: a stand-in, because it is only called with --live" in report.stand_ins
    assert any("Go on." in turn["text"] for turn in turns_of(tmp_path))


@pytest.mark.long
def test_a_simulated_user_replies_to_synthetic_rows(rehearsed, tmp_path):
    (tmp_path / "user.py").write_text(
        "from verl.interactions.base import BaseInteraction\n\n\n"
        "class User(BaseInteraction):\n"
        "    async def generate_response(self, instance_id, messages, **kwargs):\n"
        "        return False, f'You said something about {kwargs[\"query\"][:3]}', 0.5, {}\n"
    )
    entries = [{"name": name, "class_name": f"{tmp_path}/user.py:User", "config": {}} for name in ("kind", "stern")]
    (tmp_path / "users.yaml").write_text(json.dumps({"interaction": entries}))
    keys = {f"{TURNS}__enable": True, f"{TURNS}__interaction_config_path": tmp_path / "users.yaml"}
    report = rehearsed(folder=tmp_path / "out", **keys)
    assert report.passed, report.findings
    assert any("something about Ann" in turn["text"] for turn in turns_of(tmp_path / "out"))


def test_conversations_with_nothing_to_talk_to_are_refused():
    command = "burnish train actor_rollout_ref.model.path=Qwen/Qwen2.5-7B data.train_files=/elsewhere/gsm8k.parquet"
    report = rehearse(translate_command([*command.split(), "actor_rollout_ref.rollout.multi_turn.enable=true"]))
    assert report.exit_status == BROKEN
    assert "needs tools, a simulated user or an agent" in report.findings[0].text
