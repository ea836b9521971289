"""Files written for verl: tool classes of every generation, @function_tool, and the bundled tools by their names."""

from __future__ import annotations

import pytest

from burnish.errors import NotSupportedYet, UserError
from burnish.rollout.tools.load import load_function_tools

from .conftest import use

ANSWER_SCHEMA = """
    tool_schema:
      type: function
      function:
        name: NAME
        description: A tool
        parameters:
          type: object
          properties:
            answer: {type: string, description: The answer}
          required: [answer]
"""

# verl 0.4: one instance per conversation, an id from create, text from execute, kwargs unpacked.
FIRST_GENERATION = """
from typing import Any, Optional, Tuple
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema


class Checker(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._instance_dict = {}

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def create(self, instance_id: Optional[str] = None, ground_truth: Optional[str] = None, **kwargs) -> str:
        if instance_id is None:
            instance_id = str(uuid4())
        self._instance_dict[instance_id] = {"ground_truth": ground_truth, "answers": []}
        return instance_id

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> Tuple[str, float, dict]:
        instance = self._instance_dict[instance_id]
        instance["answers"].append(parameters["answer"])
        return f"{len(instance['answers'])} answers, unit {kwargs['unit']}", -0.25, {"length": 1, "note": "x"}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        instance = self._instance_dict[instance_id]
        return float(instance["ground_truth"] in instance["answers"])

    async def release(self, instance_id: str, **kwargs) -> None:
        del self._instance_dict[instance_id]
"""

# From 0.5: create returns a response too, and is given `create_kwargs` as one dict.
SECOND_GENERATION = """
from typing import Any, Optional

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class Checker(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._instance_dict = {}

    async def create(self, instance_id: Optional[str] = None, **kwargs) -> tuple[str, ToolResponse]:
        create_kwargs = kwargs.get("create_kwargs", {})
        self._instance_dict[instance_id] = {"ground_truth": create_kwargs.get("ground_truth")}
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> tuple[ToolResponse, float, dict]:
        agent_data = kwargs["agent_data"]
        calls = agent_data.extra_fields["calls"] = agent_data.extra_fields.get("calls", 0) + 1
        right = parameters["answer"] == self._instance_dict[instance_id]["ground_truth"]
        return ToolResponse(text=f"call {calls} of {self.config['title']}: {right}"), None, None

    async def release(self, instance_id: str, **kwargs) -> None:
        del self._instance_dict[instance_id]
"""


def yaml_of(path, name, config="{type: native}"):
    return f"tools:\n  - class_name: '{path}:Checker'\n    config: {config}{ANSWER_SCHEMA.replace('NAME', name)}"


OPTIONS = {"check": {"create_kwargs": {"ground_truth": "72"}, "execute_kwargs": {"unit": "km"}}}
CALLS = [("check", {"answer": "71"}), ("check", {"answer": "72"})]


def test_a_tool_of_the_first_generation(write, load):
    tools = load(yaml_of(write("checker.py", FIRST_GENERATION), "check"))
    used = use(tools, *CALLS, options=OPTIONS)
    assert used.texts == ["1 answers, unit km", "2 answers, unit km"]  # one instance for all calls
    assert [result.reward for result in used.results] == [-0.25, -0.25] and used.reward == 1.0
    assert used.counts.metrics == {"length": 2.0} and used.counts.scores == {"check": 1.0}
    assert tools[0].tool._instance_dict == {}  # released


def test_a_tool_of_the_second_generation(write, load):
    tools = load(yaml_of(write("checker.py", SECOND_GENERATION), "check", "{type: native, title: test}"))
    used = use(tools, *CALLS, options=OPTIONS)
    assert used.texts == ["call 1 of test: False", "call 2 of test: True"]
    assert used.reward == 0.0 and tools[0].tool._instance_dict == {}
    # A second conversation, in an event loop of its own, has its own state.
    assert use(tools, *CALLS[:1], options=OPTIONS).texts == ["call 1 of test: False"]


def test_variants_of_the_signatures(write, load):
    """`create_kwargs` by name, JSON text as arguments, a dict as response, a list as score, no release."""
    source = """
        from verl.tools.base_tool import BaseTool

        class Checker(BaseTool):
            async def create(self, instance_id=None, create_kwargs=None):
                self.given = create_kwargs
                return instance_id

            def execute(self, instance_id, parameters: str):
                return {"text": f"{parameters} {self.given}"}, 1, {}

            async def calc_reward(self, instance_id):
                return ["a text"]
    """
    used = use(
        load(yaml_of(write("odd.py", source), "check")), CALLS[0], options={"check": {"create_kwargs": {"x": 1}}}
    )
    assert used.texts == ["""{"answer": "71"} {'x': 1}"""] and used.results[0].reward == 1.0 and used.reward == 0.0


def test_a_flat_schema_with_a_list_of_parameters(write, load):
    source = """
        from verl.tools.base_tool import BaseTool

        class SearchTool(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                return f"found {parameters['query']}", 0.0, {}
    """
    tools = load(f"""
        tools:
          - class_name: {write("mine.py", source)}:SearchTool  # inherits verl.tools.base_tool.BaseTool
            config:
              type: native
            tool_schema:
              name: "web_search"
              description: "search the web"
              parameters:
                - name: query
                  type: string
    """)
    assert tools[0].schema == {
        "type": "function",
        "function": {
            "name": "web_search",
            "description": "search the web",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
    assert use(tools, ("web_search", {"query": "x"})).texts == ["found x"]


def bundled(class_name, name):
    schema = ANSWER_SCHEMA.replace("NAME", name)
    return f"tools:\n  - class_name: {class_name}\n    config: {{type: native}}{schema}"


def test_a_bundled_tool_that_scores_an_answer(load):
    name = "calc_gsm8k_reward"
    tools = load(bundled("verl.tools.gsm8k_tool.Gsm8kTool", name))
    calls = [(name, {"answer": answer}) for answer in ("7", "#### 72", "72")]
    used = use(tools, *calls, options={name: {"create_kwargs": {"ground_truth": "72"}}})
    assert [result.reward for result in used.results] == [-0.05, 0.0, -0.05]  # no better than before
    assert used.reward == 1.0 and "reward=1.0" in used.texts[1]
    missing = use(tools, calls[0])
    assert missing.counts.failed == 1 and "has no ground_truth" in missing.texts[0]


@pytest.mark.long  # imports sympy
def test_the_bundled_tool_for_geometry(load):
    tools = load(bundled("verl.tools.geo3k_tool.Geo3kTool", "calc"))
    used = use(
        tools, ("calc", {"answer": "\\frac{1}{2}"}), options={"calc": {"create_kwargs": {"ground_truth": "0.5"}}}
    )
    assert used.reward == 1.0


def test_a_bundled_tool_for_images_is_refused(load):
    with pytest.raises(NotSupportedYet, match="vision models"):
        load("tools: [{class_name: verl.tools.image_zoom_in_tool.ImageZoomInTool, config: {type: native}}]")


@pytest.mark.parametrize(("image", "text"), [("[Image.new('RGB', (28, 28))]", "see"), ("[object()]", "Error: ")])
def test_images_that_a_tool_returns(write, load, image, text):
    """A picture that cannot be read is an error to the model, and not the end of the run."""
    source = f"""
        from PIL import Image
        from verl.tools.base_tool import BaseTool
        from verl.tools.schemas import ToolResponse

        class Checker(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                return ToolResponse(text="see", image={image}), 0.5, {{}}
    """
    tools = load(yaml_of(write("images.py", source), "check"))
    (result,) = use(tools, CALLS[0]).results
    assert result.text.startswith(text) and [image.size for image in result.images] == [(28, 28)] * (text == "see")


FUNCTIONS = '''
from verl.tools.function_tool import function_tool
from verl.tools.schemas import ToolResponse


@function_tool
def get_temperature(city: str, unit: str = "celsius") -> dict:
    """Get the temperature of a city.

    Args:
        city: Name of the city.
        unit: The unit.
    """
    return {"city": city, "unit": unit}


@function_tool("guess")
async def guess_number(number: int) -> tuple:
    """Guess the number.

    Args:
        number: The guess.
    """
    return ToolResponse(text="too low" if number < 5 else "yes"), float(number >= 5), {"guesses": 1}


def not_a_tool():
    ...
'''


def test_decorated_functions(write):
    tools = load_function_tools(write("functions.py", FUNCTIONS), "function_tool_path")
    assert [tool.name for tool in tools] == ["get_temperature", "guess"]
    calls = [("get_temperature", {"city": "Paris"}), ("guess", {"number": 3}), ("guess", {"number": 5})]
    used = use(tools, *calls)
    assert used.texts == ['{"city": "Paris", "unit": "celsius"}', "too low", "yes"]
    assert [result.reward for result in used.results] == [0.0, 0.0, 1.0] and used.counts.metrics == {"guesses": 2.0}
    again = load_function_tools(write("functions.py", FUNCTIONS), "function_tool_path")
    assert [tool.name for tool in again] == ["get_temperature", "guess"]


def test_a_file_without_decorated_functions_is_refused(write):
    with pytest.raises(UserError, match=r"no function decorated with @function_tool \(found plain\)"):
        load_function_tools(write("plain.py", "def plain():\n    ..."), "function_tool_path")
    bare = "from verl.tools.function_tool import function_tool\n@function_tool\ndef bare(a):\n    ..."
    with pytest.raises(UserError, match="DocstringParsingException on import"):
        load_function_tools(write("bare.py", bare), "function_tool_path")
