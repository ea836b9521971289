"""Functions and classes as tools: schemas from type hints, results as text, rewards."""

from __future__ import annotations

import asyncio
import threading

import pytest

from burnish.errors import NotSupportedYet, UserError
from burnish.rollout.tools.functions import FunctionTool, python_tools
from burnish.rollout.tools.tool import ToolResult

from .conftest import use


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


async def later(text: str) -> str:
    """Wait.

    Args:
        text: what to say
    """
    await asyncio.sleep(0)
    return f"{text} from {threading.current_thread().name}"


def test_type_hints_and_docstring_are_the_schema():
    (tool,) = python_tools([add])
    assert tool.schema["function"] == {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "the first"},
                "b": {"type": "integer", "description": "the second"},
            },
            "required": ["a"],
        },
    }


def test_functions_are_called_off_the_event_loop():
    used = use(python_tools([add, later]), ("add", {"a": 1}), ("add", {"a": 1, "b": 5}), ("later", {"text": "hi"}))
    assert used.texts == ["3", "6", "hi from tool-later"]
    assert used.counts.calls == 3 and used.counts.failed == 0 and used.reward == 0.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        (0.1, "0.1"),
        (None, "None"),
        ({"é": [1, None]}, '{"é": [1, null]}'),
        ((1, 2), "(1, 2)"),
        ([1], "[1]"),
    ],
)
def test_what_a_function_returns_becomes_text(value, text):
    def give() -> str:
        """Give."""
        return value

    used = use(python_tools([give]), ("give", {}))
    assert used.texts == [text] and used.results[0].reward == 0.0  # a tuple is no reward


def test_a_function_may_give_a_reward():
    def give() -> str:
        """Give."""
        return ToolResult("x", reward=0.5, metrics={"hits": 2.0})

    used = use(python_tools([give]), ("give", {}), ("give", {}))
    assert [result.reward for result in used.results] == [0.5, 0.5] and used.counts.metrics == {"hits": 4.0}


def undocumented(a: int) -> int:
    return a


def unannotated(a):
    """Add.

    Args:
        a: the first
    """


@pytest.mark.parametrize("function", [undocumented, unannotated])
def test_a_function_without_hints_or_docstring_is_refused(function):
    with pytest.raises(UserError, match=f"tool {function.__name__} needs type hints and a docstring"):
        python_tools([function])


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"a": {"type": "integer"}, "c": {"type": "integer"}}, "has c, which the function does not take"),
        ({"b": {"type": "integer"}}, "lacks a, which the function requires"),
    ],
)
def test_a_schema_that_does_not_match_the_function_is_refused(properties, problem):
    with pytest.raises(UserError, match=problem):
        FunctionTool(add, {"name": "add", "parameters": {"type": "object", "properties": properties}})


def test_what_is_no_tool_is_refused():
    with pytest.raises(UserError, match="not a tool"):
        python_tools([3])
    with pytest.raises(UserError, match="2 tools have this name"):
        use(python_tools([add, add]))


class Counter:
    """In the manner of TRL's environment_factory."""

    made = []

    def __init__(self):
        self.value = 0
        self.closed = False
        Counter.made.append(self)

    def reset(self, start=0, **row):
        self.value, self.row = start, row

    def increase(self, by: int) -> str:
        """Increase the counter.

        Args:
            by: how much
        """
        self.value += by
        return f"now {self.value}"

    async def show(self) -> str:
        """Show the counter."""
        return str(self.value)

    def get_reward(self):
        return self.value / 10

    def close(self):
        self.closed = True

    def _private(self):
        raise AssertionError


def test_public_methods_are_tools_and_every_conversation_has_an_instance():
    Counter.made.clear()
    tools = python_tools([Counter])
    assert sorted(tool.name for tool in tools) == ["increase", "show"] and not Counter.made
    row = {"dataset_row": ("prompt", {"start": 5, "level": "hard"}), "ground_truth": "x"}
    first = use(tools, ("increase", {"by": 1}), ("show", {}), row=row)
    second = use(tools, row={})
    assert first.texts == ["now 6", "6"] and first.reward == 0.6
    assert second.texts == [] and second.reward == 0.0  # reset and get_reward also without a call
    assert len(Counter.made) == 2 and all(counter.closed for counter in Counter.made)
    assert Counter.made[0].row == {"prompt": "prompt", "ground_truth": "x", "level": "hard"}


def test_a_class_of_a_yaml_file_gets_its_config(write, load):
    path = write(
        "games.py",
        '''
        class Game:
            def __init__(self, size):
                self.size = size

            async def reset(self):
                self.size += 1

            def look(self) -> str:
                """Look around."""
                return f"size {self.size}"
        ''',
    )
    tools = load(f"tools: [{{class_name: '{path}:Game', config: {{type: native, size: 3}}, limits: {{timeout: 7}}}}]")
    assert use(tools, ("look", {})).texts == ["size 4"] and tools[0].limits.timeout == 7


def test_text_of_reset_is_not_dropped():
    class Talker(Counter):
        def reset(self, **row):
            return "You are in a maze."

    with pytest.raises(NotSupportedYet, match="reset returned text"):
        use(python_tools([Talker]))


def test_a_class_without_public_methods_is_refused():
    class Empty:
        def reset(self): ...

    with pytest.raises(UserError, match="no public method"):
        python_tools([Empty])
