"""Isolated tools on other nodes: here processes of this machine, of which one is killed amid a conversation."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from burnish.distributed.processes import Processes
from burnish.distributed.worker_group import WorkerGroup
from burnish.errors import UserError
from burnish.loop.tool_nodes import ToolNodes
from burnish.rollout.tools.load import load_tool_config
from burnish.rollout.tools.tool import ConversationInfo, ToolTimeout

COUNTER = '''
import os
import time


class Counter:
    def reset(self, start=0, **row):
        self.value = start

    def increase(self, by: int) -> str:
        """Increase the counter.

        Args:
            by: how much
        """
        if by > 100:
            time.sleep(1000)
        self.value += by
        return f"{self.value} in {os.getppid()}"

    def get_reward(self):
        return float(self.value)
'''


@pytest.fixture
def load(tmp_path, monkeypatch):
    """load(limits) -> a counter on two nodes, the nodes, and what was closed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (tmp_path / "counter.py").write_text(COUNTER)
    made = []

    def one(limits):
        config = tmp_path / "tools.yaml"
        config.write_text(
            f"tools: [{{class_name: '{tmp_path}/counter.py:Counter', limits: {{isolate: true, {limits}}}}}]"
        )
        closed = []
        nodes = ToolNodes(lambda: (WorkerGroup(["node 0", "node 1"], Processes()), lambda: closed.append("cluster")))
        (tool,), _ = load_tool_config(str(config), "tools", load_template=nodes.load)
        made.append(tool)
        return tool, nodes, closed

    yield one
    for tool in made:
        if tool.template.nodes._group is not None:
            tool.shut_down()


def kill(nodes, worker):
    """The node where a conversation is."""
    name = nodes.group.names[worker._place[0]]
    os.kill(nodes.group.starter.pid(name), signal.SIGKILL)


def test_a_conversation_goes_on_with_its_state_on_another_node(load):
    tool, nodes, closed = load("")

    async def converse():
        first, second = [await tool.open(ConversationInfo(name, 1, {}), {}) for name in "ab"]
        assert {first._place[0], second._place[0]} == {0, 1}, "they are spread over the nodes"
        before = [(await tool.call(worker, {"by": by})).text for worker, by in ((first, 2), (first, 3), (second, 7))]
        kill(nodes, first)
        after = (await tool.call(first, {"by": 4})).text
        third = await tool.open(ConversationInfo("c", 1, {}), {})
        scores = [await tool.score(worker) for worker in (first, second, third)]
        for worker in (first, second, third):
            await tool.close(worker)
        return before, after, scores

    before, after, scores = asyncio.run(converse())
    assert [text.split()[0] for text in before] == ["2", "5", "7"]
    assert after.split()[0] == "9", "the calls so far were repeated"
    assert after.split()[-1] == before[2].split()[-1] != before[0].split()[-1], "on the other node"
    assert scores == [9.0, 7.0, 0.0]
    assert set(nodes._open.values()) == {0}
    tool.shut_down()
    assert closed == ["cluster"]


@pytest.mark.long
def test_what_may_not_be_repeated_starts_anew(load):
    tool, nodes, _ = load("repeatable: false, timeout: 20")

    async def converse():
        worker = await tool.open(ConversationInfo("a", 1, {}), {})
        await tool.call(worker, {"by": 2})
        kill(nodes, worker)
        with pytest.raises(RuntimeError, match="the tool's node was lost"):
            await tool.call(worker, {"by": 3})
        text = (await tool.call(worker, {"by": 4})).text
        kill(nodes, worker)
        with pytest.raises(RuntimeError, match="the tool's node was lost"):
            await tool.call(worker, {"by": 1})
        with pytest.raises(RuntimeError, match="no node of tools is left"):
            await tool.call(worker, {"by": 1})
        await tool.close(worker)
        return text

    text = asyncio.run(converse())
    assert "restarted" in text and "\n4 in" in text


@pytest.mark.long
def test_a_call_that_hangs_is_killed_on_its_node(load, tmp_path):
    tool, nodes, _ = load("timeout: 2")

    async def converse():
        worker = await tool.open(ConversationInfo("a", 1, {}), {})
        with pytest.raises(ToolTimeout, match="2 s"):
            await tool.call(worker, {"by": 1000})
        text = (await tool.call(worker, {"by": 1})).text
        await tool.close(worker)
        return text

    assert "restarted" in asyncio.run(converse())
    (tmp_path / "counter.py").write_text("raise ValueError('broken')")
    (tmp_path / "other.py").write_text("raise ValueError('broken')")
    config = tmp_path / "other.yaml"
    config.write_text(f"tools: [{{class_name: '{tmp_path}/other.py:Counter', limits: {{isolate: true}}}}]")
    with pytest.raises(UserError, match="broken"):
        load_tool_config(str(config), "tools", load_template=nodes.load)
