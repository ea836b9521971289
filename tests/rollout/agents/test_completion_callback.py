"""Completion callbacks as users of verl 0.4 wrote them, with exact tokens."""

from __future__ import annotations

import asyncio
import textwrap

import pytest

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.completion_callback import CallbackAgent
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.chat.parsers.hermes import HermesParser
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.engine import Sampling
from burnish.rollout.episode import Prompt
from burnish.rollout.tools.toolbox import Toolbox

from .conftest import Script

END = "<|im_end|>"
KEY = "actor_rollout_ref.rollout.multi_turn.completion_callback"
MESSAGES = [{"role": "user", "content": "2+3?"}]
CONFIG = {"actor_rollout_ref": {"rollout": {"multi_turn": {"max_assistant_turns": 4, "max_user_turns": None}}}}
CODE = """
import re
from verl.workers.rollout.chat_scheduler import ChatCompletionScheduler, ToolCompletionCallback

SEEN = []

class CodeCallback(ToolCompletionCallback):
    def __init__(self, config, scheduler: ChatCompletionScheduler):
        super().__init__(config, scheduler)
        self.pattern = re.compile(r"<code>(.*?)</code>", re.DOTALL)

    @property
    def tool_schemas(self):
        return None

    @property
    def extra_body(self):
        return {"include_stop_str_in_output": True, "stop": ["</code>", "</answer>"]}

    async def __call__(self, messages, completions, info):
        message = completions.choices[0].message
        SEEN.append((completions.choices[0].finish_reason, message.content, info["__depth__"]))
        messages.append({"role": message.role, "content": message.content})
        code = self.pattern.findall(message.content)
        if len(messages) >= 2 * self.max_assistant_turns or not code:
            return
        messages.append({"role": "user", "content": f"output: {len(code[-1])}"})
        self.scheduler.submit_chat_completions(messages=messages, request_id=completions.id, info=info)


class ToolCallback(ToolCompletionCallback):
    @property
    def tool_schemas(self):
        parameters = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
        return [{"type": "function", "function": {"name": "ask", "description": "Asks.", "parameters": parameters}}]

    async def __call__(self, messages, completions, info):
        message = completions.choices[0].message.model_dump(exclude_unset=True, exclude_none=True)
        SEEN.append(message)
        messages.append(message)
        if completions.choices[0].finish_reason == "tool_calls":
            call = completions.choices[0].message.tool_calls[0]
            messages.append({"role": "tool", "content": "blue", "tool_call_id": call.id})
            self.scheduler.submit_chat_completions(messages=messages, request_id=completions.id, info=info)


class Forgetful(ToolCompletionCallback):
    async def __call__(self, messages, completions, info):
        del messages[0]
        messages += [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
        self.scheduler.submit_chat_completions(messages=messages, request_id=completions.id, info=info)


class Broken(ToolCompletionCallback):
    async def __call__(self, messages, completions, info):
        raise OSError("no line")


class Unknown(ToolCompletionCallback):
    extra_body = {"beam_width": 4}
"""


@pytest.fixture
def converse(tmp_path, chat_tokenizer):
    (tmp_path / "callbacks.py").write_text(textwrap.dedent(CODE))

    def converse(name, texts, limits=TurnLimits()):  # noqa: B008
        template = ChatTemplate(chat_tokenizer, [chat_tokenizer.eos_token_id])
        decode = lambda ids: chat_tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
        context = AgentContext(
            *(chat_tokenizer, template, HermesParser(), Toolbox([]), decode), limits=limits, config=CONFIG, timeout=60
        )
        agent = CallbackAgent(context, f"{tmp_path / 'callbacks.py'}:{name}", KEY, HermesParser)
        prompt = ModelInput(tuple(template.encode(template.render(MESSAGES))))
        sampler = Script(chat_tokenizer, texts, 10_000, len(prompt), [list(texts)])
        row = {"raw_prompt": MESSAGES}
        (trajectory,) = asyncio.run(agent.run(Prompt(prompt, Sampling(10_000), 7, "row", 0, row), sampler))
        return trajectory, sampler, __import__("sys").modules[type(agent.callback).__module__].SEEN

    return converse


def test_a_callback_appends_messages_and_asks_for_another_turn(converse, chat_tokenizer):
    texts = [f"<code>1+1</code>{END}", f"5{END}"]
    trajectory, sampler, seen = converse("CodeCallback", texts)
    assert [turn.role for turn in trajectory.turns] == ["assistant", "user", "assistant"]
    everything = (*trajectory.prompt.ids, *trajectory.ids)
    assert all(everything[: len(given)] == given.ids for given in sampler.inputs)  # never tokenized again
    assert "output: 3" in chat_tokenizer.decode(trajectory.ids) and trajectory.mask[-1]
    assert seen == [("stop", "<code>1+1</code>", 0), ("stop", "5", 0)]
    assert sampler.samplings[0]["stop"] == ("</code>", "</answer>")
    assert trajectory.extras == {"num_turns": 4}


def test_limits_end_the_conversation(converse):
    texts = [f"<code>1</code>{END}"] * 9
    for limits in (TurnLimits(max_assistant_turns=2), TurnLimits(max_user_turns=1)):
        trajectory, _, _ = converse("CodeCallback", texts, limits)
        assert [turn.role for turn in trajectory.turns] == ["assistant", "user", "assistant"]
        assert trajectory.finish_reason == "stop"


def test_tools_of_the_callback_are_in_the_prompt_and_calls_are_parsed(converse, chat_tokenizer):
    texts = [f'<tool_call>\n{{"name": "ask", "arguments": {{"q": "sky"}}}}\n</tool_call>{END}', f"blue{END}"]
    trajectory, _, seen = converse("ToolCallback", texts)
    assert '"name": "ask"' in chat_tokenizer.decode(trajectory.prompt.ids)
    assert "<tool_response>\nblue\n</tool_response>" in chat_tokenizer.decode(trajectory.ids)
    function = {"name": "ask", "arguments": '{"q": "sky"}'}
    assert seen[0]["tool_calls"] == [{"id": "call00000", "type": "function", "function": function}]
    assert trajectory.turns[1].role == "tool"


@pytest.mark.parametrize(
    ("name", "problem"), [("Forgetful", "changed earlier messages"), ("Broken", "failed: OSError: no line")]
)
def test_a_failure_ends_one_conversation(converse, name, problem):
    trajectory, _, _ = converse(name, [f"5{END}"])
    assert problem in trajectory.problem and all(trajectory.mask)


def test_sampling_that_cannot_act_is_refused(converse):
    with pytest.raises(UserError, match="beam_width"):
        converse("Unknown", [])
