"""Tools of a YAML file, and their calls in one conversation."""

from __future__ import annotations

import asyncio
import json
import textwrap

import pytest

from burnish.rollout.chat.tool_calls import ToolCall
from burnish.rollout.tools.load import load_tool_config
from burnish.rollout.tools.tool import ConversationInfo
from burnish.rollout.tools.toolbox import Toolbox, ToolSession
from burnish.rollout.tools.truncation import NO_LIMIT

KEY = "actor_rollout_ref.rollout.multi_turn.tool_config_path"


class Used:
    """What a conversation with tools gave."""

    def __init__(self):
        self.results, self.reward, self.counts = [], 0.0, None

    @property
    def texts(self):
        return [result.text for result in self.results]


async def converse(tools, calls, *, row=None, options=None, limit=NO_LIMIT, names=None, together=False):
    """Each call is (name, arguments). One after the other, or all at once."""
    used = Used()
    toolbox = tools if isinstance(tools, Toolbox) else Toolbox(tools)
    session = ToolSession(toolbox, ConversationInfo("row-0", 7, row or {}), options or {}, limit, names)
    try:
        await session.start()
        made = [ToolCall(name, arguments) for name, arguments in calls]
        if together:
            used.results = list(await asyncio.gather(*map(session.call, made)))
        else:
            used.results = [await session.call(call) for call in made]
        for result in used.results:
            session.counts.add(result)
        used.reward = await session.finish()
    finally:
        await session.close()
    used.counts = session.counts
    return used


def use(tools, *calls, **more):
    """One conversation in an event loop of its own, as a step has it."""
    return asyncio.run(converse(tools, calls, **more))


@pytest.fixture
def write(tmp_path):
    """write(name, text) -> path."""

    def write_file(name, text):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text) if isinstance(text, str) else json.dumps(text))
        return str(path)

    return write_file


@pytest.fixture
def load(write):
    """load(yaml) -> the tools of such a file, shut down in the end."""
    loaded = []

    def load_tools(text, **more):
        tools, notices = load_tool_config(write("tools.yaml", text), KEY, **more)
        loaded.extend(tools)
        load_tools.notices = notices
        return tools

    yield load_tools
    for tool in loaded:
        tool.shut_down()
