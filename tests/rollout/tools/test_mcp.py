"""mcp: tools of real MCP servers, written with the library, over stdio and HTTP."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.rollout.tools.builtin import mcp_client
from burnish.rollout.tools.toolbox import Toolbox

from .conftest import use

SERVER = str(Path(__file__).with_name("mcp_server.py"))


def stdio(name, **more):
    return {"command": sys.executable, "args": [SERVER, "stdio", name], **more}


def entry(path, more="", class_name="verl.tools.mcp_base_tool.MCPBaseTool", selected=""):
    """As verl's documentation shows it."""
    return f"""
        tools:
          - class_name: {class_name}
            config:
              rate_limit: 120
              timeout: 120
              type: mcp
            mcp:
              mcp_servers_config_path: {path}
              {selected}
            {more}
    """


@pytest.fixture
def servers(write):
    """servers(name=spec, ...) -> the path of a file with them."""
    return lambda **specs: write("servers.json", {"mcpServers": specs})


def test_two_servers(write, load, servers):
    """One after the other, because starting a server takes the most of the time."""
    path = servers(one=stdio("one", env={"MCP_TEST": "set"}), two=stdio("many"))
    tools = load(entry(path, "limits: {timeout: 60}"))
    # Tools of the same name are qualified, and the others keep theirs.
    assert {tool.name for tool in tools} == {"one__add", "two__add", "one__where", "two__where", "only_here"}
    add = next(tool for tool in tools if tool.name == "one__add")
    parameters = add.schema["function"]["parameters"]
    assert add.schema["function"]["description"] == "Add two numbers." and parameters["required"] == ["a", "b"]
    assert parameters["properties"]["a"]["type"] == "integer"
    assert (add.limits.rate_limit, add.limits.timeout) == (120.0, 60.0)
    box = Toolbox(tools)
    assert len(box._gates) == 1  # the rate limit is one for all servers

    calls = [("one__add", {"a": 2, "b": 3}), ("two__add", {"a": 2, "b": 3}), ("one__where", {"what": "x"})]
    used = use(box, *calls, ("one__add", {"a": "x", "b": 3}), together=True)
    assert used.texts[:2] == ["5 from one", "5 from many"]
    assert used.texts[2].startswith("set ") and "must be of type integer" in used.texts[3]

    # A tool that raises is an error of the call; a server that dies or floods is started again.
    raised, before = use(box, ("two__where", {"what": "raise"}), ("two__where", {"what": "x"})).results
    assert raised.failed and "Error executing tool where" in raised.text
    for what, reason in (("die", "out of ideas"), ("flood", "a message of more than 8 MiB")):
        broken, after = use(box, ("two__where", {"what": what}), ("two__where", {"what": "x"})).results
        assert broken.failed and "the MCP server two is gone" in broken.text and reason in broken.text
        assert not after.failed and after.text != before.text  # another process
        before = after

    # In another event loop, as every step has one, the session is the same.
    assert use(box, ("two__where", {"what": "x"})).texts == [before.text]


def test_a_server_that_hangs_is_cut_and_started_again(monkeypatch, load, servers):
    monkeypatch.setattr(mcp_client, "PING_SECONDS", 0.2)
    path = servers(one=stdio("one"))
    (tool, where) = sorted(load(entry(path, selected="tool_selected_list: [add, where]")), key=lambda tool: tool.name)
    where.limits = tool.limits.__class__(timeout=0.5)
    used = use([tool, where], ("where", {"what": "hang"}))
    assert used.texts == ["Error: where did not answer within 0.5 s"] and used.counts.timed_out == 1
    deadline = time.monotonic() + 120
    while use([tool, where], ("add", {"a": 1, "b": 1})).texts != ["2 from one"]:
        assert time.monotonic() < deadline


def test_selected_tools_and_a_users_class(write, load, servers):
    source = """
        from verl.tools.mcp_base_tool import MCPBaseTool

        class Loud(MCPBaseTool):
            def _parse_tool_result(self, content):
                return " ".join(part.text.upper() for part in content), {}
    """
    path, class_name = servers(one=stdio("one")), f"'{write('loud.py', source)}:Loud'"
    tools = load(entry(path, class_name=class_name, selected="tool_selected_list: [add]"))
    assert [tool.name for tool in tools] == ["add"]
    assert use(tools, ("add", {"a": 1, "b": 2})).texts == ["3 FROM ONE"]
    with pytest.raises(UserError, match=r"tool_selected_list='sub': .*Allowed: add, where"):
        load(entry(path, selected="tool_selected_list: [sub]"))


def test_a_server_over_http(load, servers):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, SERVER, "http", "web", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        tools = load(entry(servers(web={"url": f"http://127.0.0.1:{port}/mcp", "auth_token": "secret"})))
        used = use(tools, ("add", {"a": 2, "b": 2}), ("where", {"what": "raise"}))
        assert used.texts[0] == "4 from web" and used.results[1].failed and "Error executing" in used.texts[1]
        large = use(tools, ("where", {"what": "large"}))
        # Below our bound; mcp 2.3 has a lower one of its own for this transport.
        assert len(large.texts[0]) == 9 * 2**20 or (large.results[0].failed and "exceeded the" in large.texts[0])
    finally:
        process.kill()
        process.wait()
    gone = use(tools, ("add", {"a": 2, "b": 2}))
    assert gone.counts.failed == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not valid JSON"),
        ({"servers": {}}, "the file has no servers"),
        ({"mcpServers": {"a": {"args": []}}}, r"mcpServers\.a=\['args'\]: .*either a command or a url"),
        ({"mcpServers": {"a": {"url": "http://x", "transport": "pigeon"}}}, "no such transport.*Allowed: http"),
        ({"mcpServers": {"a": {"command": "/no/such/server"}}}, "MCP server a cannot be reached: .*No such file"),
        ({"mcpServers": {"a": {"command": sys.executable, "args": ["-c", "1/0"]}}}, "status 1.*ZeroDivision"),
        ({"mcpServers": {"a": {"url": "http://127.0.0.1:9/mcp"}}}, "MCP server a cannot be reached"),
    ],
)
def test_what_is_wrong_with_the_servers_is_said(write, load, content, problem):
    path = write("servers.json", content)
    with pytest.raises(UserError, match=problem) as caught:
        load(entry(path))
    assert "secret" not in str(caught.value)


def test_which_transport_an_address_suggests():
    spec = mcp_client.ServerSpec
    assert spec("a", url="http://host/sse").transports() == ["sse", "http"]
    assert spec("a", url="http://host/mcp").transports() == ["http", "sse"]
    assert spec("a", url="http://host/mcp", transport="sse").transports() == ["sse"]
    assert spec("a", command="server").transports() == ["stdio"]
