"""Simulated users: a file written as verl's documentation shows, with and without tools."""

from __future__ import annotations

import asyncio
import textwrap

import pytest

from burnish.errors import UserError
from burnish.models.model_input import ModelInput
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.interactions import default_name, load_interactions
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.agents.tool_agent import ToolAgent
from burnish.rollout.chat.parsers.hermes import HermesParser
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.engine import Sampling
from burnish.rollout.episode import Prompt
from burnish.rollout.tools.functions import FunctionTool
from burnish.rollout.tools.toolbox import Toolbox

from .conftest import Script

END = "<|im_end|>"
KEY = "actor_rollout_ref.rollout.multi_turn.interaction_config_path"
MESSAGES = [{"role": "user", "content": "What is 2+2?"}]
KWARGS = {"name": "gsm8k", "query": "What is 2+2?", "ground_truth": "4"}

CODE = """
from uuid import uuid4
from verl.interactions.base import BaseInteraction
from verl.utils.reward_score import gsm8k

LOG = []

class Gsm8kInteraction(BaseInteraction):
    def __init__(self, config: dict):
        super().__init__(config)
        self._instance_dict = {}

    async def start_interaction(self, instance_id=None, ground_truth=None, **kwargs):
        if instance_id is None:
            instance_id = str(uuid4())
        self._instance_dict[instance_id] = {"response": "", "ground_truth": ground_truth}
        LOG.append(("start", kwargs["name"]))
        return instance_id

    async def generate_response(self, instance_id, messages, **kwargs):
        content = ""
        for item in reversed(messages):
            if item.get("role") == "assistant":
                content = item.get("content")
                break
        LOG.append(("messages", [m["role"] for m in messages], content))
        self._instance_dict[instance_id]["response"] = "#### " + content
        reward = await self.calculate_score(instance_id)
        if reward == 1.0:
            return True, "Your response is correct!", 1.0, {}
        text = "Your response is incorrect! You need to reflect on your answer and try again."
        return False, text, -0.5, {"tries": 1}

    async def calculate_score(self, instance_id, **kwargs):
        instance = self._instance_dict[instance_id]
        return gsm8k.compute_score(instance["response"], instance["ground_truth"], method="flexible")

    async def finalize_interaction(self, instance_id, **kwargs):
        LOG.append(("finalize", instance_id in self._instance_dict))
        del self._instance_dict[instance_id]


class Grumpy:
    '''No base class, no coroutines, and a score of its own at the end.'''

    def __init__(self, config):
        self.config = config

    def start_interaction(self, instance_id, **kwargs):
        return instance_id

    def generate_response(self, instance_id, messages, **kwargs):
        if "fail" in kwargs:
            raise OSError("no line to the user")
        return (False, "No.", 0.25, {})

    def calculate_score(self, instance_id):
        return 2

    def finalize_interaction(self, instance_id):
        LOG.append(("finalize", instance_id))
"""
YAML = """
interaction:
  - class_name: "{path}:Gsm8kInteraction"
    config: {{}}
  - name: "grumpy"
    class_name: "{path}:Grumpy"
    config: {{timeout: 5}}
"""


def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: the first
        b: the second
    """
    return a + b


@pytest.fixture
def user_file(tmp_path):
    (tmp_path / "users.py").write_text(textwrap.dedent(CODE))
    (tmp_path / "users.yaml").write_text(YAML.format(path=tmp_path / "users.py"))
    return tmp_path


def converse(tokenizer, folder, texts, kwargs=KWARGS, limits=TurnLimits(), tools=(), budget=10_000):  # noqa: B008
    interactions = load_interactions(str(folder / "users.yaml"), KEY)
    toolbox = Toolbox(tools)
    template = ChatTemplate(tokenizer, [tokenizer.eos_token_id], toolbox.schemas())
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    context = AgentContext(
        tokenizer, template, HermesParser(), toolbox, decode, limits=limits, interactions=interactions
    )
    prompt = ModelInput(tuple(template.encode(template.render(MESSAGES))))
    sampler = Script(tokenizer, texts, budget, len(prompt))
    row = {"raw_prompt": MESSAGES, "extra_info": {"interaction_kwargs": kwargs}}
    (trajectory,) = asyncio.run(ToolAgent(context).run(Prompt(prompt, Sampling(budget), 7, "row", 0, row), sampler))
    user = next(iter(interactions.by_name.values())).user
    log = __import__("sys").modules[type(user).__module__].LOG
    return trajectory, sampler, template, log


def rewards(trajectory):
    return [turn.reward for turn in trajectory.turns if turn.role == "assistant"]


def test_the_documented_interaction(chat_tokenizer, user_file):
    texts = [f"It is 5{END}", f"It is 4{END}"]
    trajectory, sampler, template, log = converse(chat_tokenizer, user_file, texts)
    assert rewards(trajectory) == [-0.5, 1.0]  # calculate_score is the turn's score: it counts once
    assert trajectory.finish_reason == "stop" and trajectory.mask[-1]  # the last reply is not appended
    everything = (*trajectory.prompt.ids, *trajectory.ids)
    assert all(everything[: len(given)] == given.ids for given in sampler.inputs)
    reply = {"role": "user", "content": "Your response is incorrect! You need to reflect on your answer and try again."}
    answers = [{"role": "assistant", "content": text.removesuffix(END)} for text in texts]
    conversation = [*MESSAGES, answers[0], reply, answers[1]]
    assert chat_tokenizer.decode(everything) + "\n" == template.render(conversation, reply=False)
    assert log == [
        ("start", "gsm8k"),
        ("messages", ["user", "assistant"], "It is 5"),
        ("messages", ["user", "assistant", "user", "assistant"], "It is 4"),
        ("finalize", True),
    ]
    assert trajectory.extras == {"num_turns": 4, "rollout_reward_scores": {"user_turn_rewards": [-0.5, 1.0]}}
    assert trajectory.info["interaction"] == {"replies": 2, "tries": 1.0}


def test_a_score_at_the_end_counts_once(chat_tokenizer, user_file):
    limits = TurnLimits(max_user_turns=1)
    trajectory, _, _, log = converse(chat_tokenizer, user_file, [f"a{END}", f"b{END}"], {"name": "grumpy"}, limits)
    assert rewards(trajectory) == [0.25, 2.25]  # the last turn is scored too, though no reply may follow it
    assert log == [("finalize", "row-0-7")]


def test_tools_and_a_user_in_one_conversation(chat_tokenizer, user_file):
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'
    texts = [f"5{END}", f"{call}{END}", f"4{END}"]
    trajectory, _, _, log = converse(chat_tokenizer, user_file, texts, tools=[FunctionTool(add)])
    assert [turn.role for turn in trajectory.turns] == ["assistant", "user", "assistant", "tool", "assistant"]
    assert rewards(trajectory) == [-0.5, 0.0, 1.0]
    assert log[2] == ("messages", ["user", "assistant", "user", "assistant", "tool", "assistant"], "4")
    both, _, _, _ = converse(
        chat_tokenizer, user_file, texts, tools=[FunctionTool(add)], limits=TurnLimits(max_user_turns=1)
    )
    assert [turn.role for turn in both.turns] == ["assistant", "user", "assistant"]  # tool results count too
    alone, _, _, _ = converse(
        chat_tokenizer, user_file, texts, tools=[FunctionTool(add)], limits=TurnLimits(max_interaction_turns=1)
    )
    assert len(alone.turns) == 5


def test_rows_without_kwargs_have_no_user(chat_tokenizer, user_file):
    trajectory, _, _, log = converse(chat_tokenizer, user_file, [f"5{END}"], {})
    assert len(trajectory.turns) == 1 and log == []
    with pytest.raises(UserError, match="unknown interaction") as raised:
        converse(chat_tokenizer, user_file, [f"5{END}"], {"name": "nobody"})
    assert raised.value.allowed == ["gsm8k", "grumpy"]
    named, _, _, _ = converse(chat_tokenizer, user_file, [f"4{END}"], {"ground_truth": "4", "name": None})
    assert rewards(named) == [1.0]  # verl 0.4's default name


def test_a_reply_that_leaves_no_room_is_not_appended(chat_tokenizer, user_file):
    trajectory, _, _, _ = converse(chat_tokenizer, user_file, [f"5{END}", "never"], budget=20)
    assert trajectory.finish_reason == "length" and all(trajectory.mask) and rewards(trajectory) == [-0.5]


def test_a_failing_user_ends_its_conversation_and_is_finalized(chat_tokenizer, user_file):
    trajectory, _, _, log = converse(chat_tokenizer, user_file, [f"a{END}"], {"name": "grumpy", "fail": True})
    assert trajectory.problem == ("interaction 'grumpy': generate_response failed: OSError: no line to the user")
    assert log == [("finalize", "row-0-7")] and all(trajectory.mask)


def test_a_canceled_conversation_is_finalized(chat_tokenizer, user_file):
    class Never(Script):
        async def generate(self, input, **sampling):
            await asyncio.Event().wait()

    interactions = load_interactions(str(user_file / "users.yaml"), KEY)
    template = ChatTemplate(chat_tokenizer, [chat_tokenizer.eos_token_id])
    agent = ToolAgent(
        AgentContext(chat_tokenizer, template, HermesParser(), Toolbox([]), str, interactions=interactions)
    )
    row = {"raw_prompt": MESSAGES, "extra_info": {"interaction_kwargs": KWARGS}}

    async def cancel():
        task = asyncio.create_task(
            agent.run(Prompt(ModelInput((1,)), Sampling(9), 7, "row", 0, row), Never(chat_tokenizer, []))
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    user = interactions.by_name["gsm8k"].user
    assert user._instance_dict == {} and __import__("sys").modules[type(user).__module__].LOG[-1][0] == "finalize"


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [
        ("interaction: []", "expected a list of entries under `interaction:`"),
        ("interaction: [{name: a}]", "has no class_name"),
        ("interaction: !!python/object:os.system {}", "not valid YAML"),
        ("interaction: [{class_name: nowhere.to.be.Found}]", "cannot import nowhere.to.be"),
        (
            "interaction: [{class_name: 'PATH:Grumpy', name: x}, {class_name: 'PATH:Grumpy', name: x}]",
            "the name is used twice",
        ),
        ("interaction: [{class_name: 'PATH:Missing'}]", "has no 'Missing'"),
    ],
)
def test_bad_files(user_file, yaml, problem):
    path = user_file / "bad.yaml"
    path.write_text(yaml.replace("PATH", str(user_file / "users.py")))
    with pytest.raises(UserError, match=problem) as raised:
        load_interactions(str(path), KEY)
    assert raised.value.key == KEY


def test_default_names():
    assert default_name("Gsm8kInteraction") == "gsm8k" and default_name("Judge") == "judge"
