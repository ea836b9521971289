"""Files of tools: what is wrong with one is an error at the start, with the key, the value and what to type."""

from __future__ import annotations

import pytest

from burnish.errors import UserError
from burnish.rollout.tools.load import TOOLS, load_tool_config, load_tool_schemas
from burnish.rollout.tools.toolbox import Toolbox

from .conftest import KEY, use

SCHEMA = "{type: function, function: {name: t, parameters: {type: object, properties: {a: {type: string}}}}}"


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def entry(**fields):
    """A file with one tool."""
    given = {"class_name": "calculator", **fields}
    return f"tools: [{{{', '.join(f'{name}: {value}' for name, value in given.items())}}}]"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tools: []", "the file has no list of tools"),
        ("- tool", "the file has no list of tools"),
        ("tools: [3]", r"tool 1 has no class_name.*Allowed: \{class_name: my_tools\.Calculator"),
        ("tools: {", "not valid YAML"),
        ("tools: [!!python/object/apply:os.system ['true']]", "YAML tags are not allowed: .*python/object/apply"),
        (BOMB, "not valid YAML: aliases expand to more than"),
        ("tools: " + "[" * 500, "not valid YAML: nested too deeply"),
        ("tools: ['${oc.env:NO_SUCH_VARIABLE}']", "a value cannot be resolved: .*NO_SUCH_VARIABLE"),
        (entry(class_name="calculater"), r"class_name='calculater'.*no such tool.*Type: class_name: calculator"),
        (entry(class_name="no.such.module.Class"), "cannot import no.such.module"),
        (entry(class_name="json.NoSuchClass"), r"has no 'NoSuchClass'.*Allowed: "),
        (entry(class_name="verl.tools.serch_tool.SearchTool"), "Type: class_name: verl.tools.search_tool.SearchTool"),
        (entry(class_name="/no/such.py:Tool"), "no such file"),
        (entry(class_name="verl.tools.base_tool.BaseTool"), "cannot be created without a schema"),
        (entry(class_name="verl.tools.base_tool.BaseTool", config="{type: strange}"), "Allowed: native, mcp"),
        (entry(config="3"), "config=3: .*must be a mapping"),
        (entry(tool_schema="3"), "tool_schema=3: .*the tool has no schema"),
        (entry(tool_schema="{description: x}"), "the schema has no function name"),
        (entry(tool_schema="{name: t, parameters: 3}"), "must be a JSON schema of an object"),
        (entry(tool_schema="{name: t, parameters: [{type: string}]}"), "every parameter of the list needs a name"),
        (entry(tool_schema="{name: t, parameters: {required: [b]}}"), r"required=\['b'\].*without a description"),
        (entry(limits="{timeot: 3}"), r"limits\.timeot=3: .*no such limit.*Type: limits: \{timeout: 3\}"),
        (entry(limits="{timeout: 0}"), r"limits\.timeout=0: .*must be a number above 0"),
        (entry(limits="{timeout: .nan}"), "must be a number above 0"),
        (entry(limits="{retries: 1.5}"), "must be a whole number of at least 0"),
        (entry(limits="{isolate: maybe}"), "must be true or false"),
        (entry(class_name="mcp"), "the file with the MCP servers is missing"),
        (entry(class_name="mcp", mcp="{mcp_servers_config_path: no.json}"), "no such file.*mcpServers"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(load, text, problem):
    with pytest.raises(UserError, match=problem):
        load(text)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=rf"{KEY}='.*tools.yaml': no such file.*Type: {KEY}="):
        load_tool_config(str(tmp_path / "tools.yaml"), KEY)


def test_the_constructor_of_a_users_class_fails(write, load):
    source = "class Tool:\n    def __init__(self, config, tool_schema):\n        raise KeyError('url')\n"
    source += "    def create(self): ...\n    def execute(self): ...\n"
    with pytest.raises(UserError, match=r"config=\{'a': 1\}: .*cannot be created: KeyError: 'url'"):
        load(entry(class_name=f"'{write('mine.py', source)}:Tool'", config="{a: 1}", tool_schema=SCHEMA))


def test_a_name_that_two_tools_have(load):
    with pytest.raises(UserError, match=r"tool_schema\.function\.name='calculator': 2 tools have this name"):
        Toolbox(load("tools: [{class_name: calculator}, {class_name: calculator}]"))


def test_values_may_refer_to_the_environment(monkeypatch, load):
    monkeypatch.setenv("SEARCH_URL", "http://host/retrieve")
    (tool,) = load(entry(class_name="search", config="{retrieval_service_url: '${oc.env:SEARCH_URL}'}"))
    assert tool.url == "http://host/retrieve"


def test_limits_of_an_entry(load):
    limits = "{timeout: 2.5, retries: 3, max_concurrency: 4, rate_limit: 10, repeatable: false}"
    (tool,) = load(entry(limits=limits))
    got = tool.limits
    assert (got.timeout, got.retries, got.max_concurrency, got.rate_limit, got.repeatable) == (2.5, 3, 4, 10.0, False)


def test_the_time_that_a_users_tool_allows_itself_is_not_cut_short(write, load):
    source = "from verl.tools.base_tool import BaseTool\nclass Tool(BaseTool): ...\n"
    name = f"'{write('mine.py', source)}:Tool'"
    (tool,) = load(entry(class_name=name, config="{timeout: 300, rate_limit: many}", tool_schema=SCHEMA))
    assert tool.limits.timeout == 310 and tool.limits.rate_limit is None
    (tool,) = load(entry(class_name=name, config="{timeout: 300}", limits="{timeout: 5}", tool_schema=SCHEMA))
    assert tool.limits.timeout == 5


def test_schemas_can_be_read_without_the_tools(write):
    text = f"tools: [{{class_name: no.such.Tool, tool_schema: {SCHEMA}}}, {{class_name: calculator}}]"
    schemas = load_tool_schemas(write("tools.yaml", text), KEY)
    assert [schema["function"]["name"] for schema in schemas] == ["t", "calculator"]


def test_every_built_in_tool_exists():
    assert [name for name in TOOLS.names() if not callable(TOOLS[name].load())] == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": "x", "b": 1}, "Error: unknown argument b; expected a, n, c"),
        ({"a": None}, "Error: argument a must be of type string or null"),
        ({"a": "x", "n": True}, "Error: argument n must be of type integer, not boolean"),
        ({"a": "x", "n": 1.5}, "Error: argument n must be of type integer, not number"),
        ({"a": "x", "c": "blue"}, "Error: argument c must be one of red, green"),
        ({"a": "x", "n": 1, "c": "red"}, "called"),
    ],
)
def test_arguments_are_checked_against_the_schema(write, load, arguments, text):
    source = "from verl.tools.base_tool import BaseTool\nclass Tool(BaseTool):\n"
    source += "    async def execute(self, instance_id, parameters, **kwargs):\n        return 'called', 0, {}\n"
    properties = "{a: {type: [string, 'null']}, n: {type: integer}, c: {type: string, enum: [red, green]}}"
    schema = f"{{name: t, parameters: {{type: object, properties: {properties}, required: [a]}}}}"
    tools = load(entry(class_name=f"'{write('mine.py', source)}:Tool'", tool_schema=schema))
    expected = "called" if arguments.get("a") is None and "null" in text else text
    assert use(tools, ("t", arguments)).texts == [expected]
