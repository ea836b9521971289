"""examples/agents: every tool answers a call, and a tiny model trains a step with tools, a game and an agent."""

from __future__ import annotations

import asyncio
import random
import string
from pathlib import Path

import pytest

import burnish
from burnish.demo.tiny import make_model, make_tokenizer
from burnish.rollout.chat.tool_calls import ToolCall
from burnish.rollout.environments.environment import load_environment
from burnish.rollout.environments.rows import environment_rows
from burnish.rollout.tools.load import load_function_tools, load_tool_config
from burnish.rollout.tools.tool import ConversationInfo
from burnish.rollout.tools.toolbox import Toolbox, ToolSession

from ..rollout.agents.conftest import CHATML

ROOT = Path(__file__).parents[2]
AGENTS = "examples/agents"
ROLLOUT = "actor_rollout_ref.rollout"


def answers(tools, calls, options=None):
    toolbox = Toolbox(tools)

    async def converse():
        info = ConversationInfo("conversation", 0, {}, [])
        session = ToolSession(toolbox, info, options or {})
        await session.start()
        try:
            return [await session.call(ToolCall(name, arguments)) for name, arguments in calls]
        finally:
            await session.close()

    try:
        return asyncio.run(converse())
    finally:
        for tool in tools:
            tool.shut_down()


def test_the_function_tool():
    (result,) = answers(load_function_tools(f"{ROOT}/{AGENTS}/calculator.py", "key"), [("multiply", {"a": 6, "b": 7})])
    assert (result.text, result.failed) == ("42", False)


def test_search_in_a_corpus(monkeypatch):
    monkeypatch.chdir(ROOT)
    tools, _ = load_tool_config(f"{AGENTS}/search.yaml", "key")
    (name,) = {tool.name for tool in tools}
    argument = next(iter(tools[0].schema["function"]["parameters"]["properties"]))
    query = "What melts at 232 degrees?"
    wants_list = tools[0].schema["function"]["parameters"]["properties"][argument].get("type") == "array"
    (result,) = answers(tools, [(name, {argument: [query] if wants_list else query})])
    assert "Tin" in result.text and not result.failed


def test_verls_tool_file(monkeypatch):
    monkeypatch.chdir(ROOT)
    tools, _ = load_tool_config(f"{AGENTS}/verl_tool.yaml", "key")
    options = {"check": {"create_kwargs": {"ground_truth": "5"}}}
    wrong, right = answers(tools, [("check", {"answer": "4"}), ("check", {"answer": "5"})], options)
    assert (wrong.text, wrong.reward) == ("wrong, try again", -0.1) and (right.text, right.reward) == ("right", 0.0)


@pytest.mark.long
def test_the_code_interpreter():
    tools, _ = load_tool_config(f"{ROOT}/{AGENTS}/code_interpreter.yaml", "key", allow_weak=True)
    (name,) = {tool.name for tool in tools}
    first, second = answers(tools, [(name, {"code": "x = 6"}), (name, {"code": "print(x * 7)"})])
    assert "42" in second.text and not first.failed


def test_the_environment():
    game = load_environment(f"{ROOT}/{AGENTS}/guess_number.py:GuessNumber", {"high": 4})({})
    assert "between 1 and 4" in game.reset(3, {})
    number = random.Random(3).randint(1, 4)
    assert game.step(f"It is {number}") == ("Right.", 1.0, True) and game.step("?")[2] is False


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat_model")
    tokenizer = make_tokenizer(string.printable)
    tokenizer.chat_template = CHATML
    make_model(folder, tokenizer, hidden=16, layers=1, seed=0)
    return folder


def train(model, folder, rows, *overrides, reward=None):
    settings = [
        *(
            f"actor_rollout_ref.model.path={model}",
            "data.train_batch_size=2",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        ),
        *(
            "data.max_prompt_length=900",
            "data.max_response_length=48",
            f"{ROLLOUT}.n=2",
            f"trainer.default_local_dir={folder}",
        ),
        *("trainer.total_training_steps=1", "trainer.test_freq=-1", "trainer.save_freq=-1", "trainer.logger=[]"),
        *("algorithm.adv_estimator=grpo", f"{ROLLOUT}.multi_turn.max_assistant_turns=2", "trainer.save_final=false"),
    ]
    return burnish.train([*settings, *overrides], dataset=rows, reward=reward)


def rows(number=2):
    return [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{index}+1?"}],
            "reward_model": {"style": "rule", "ground_truth": str(index + 1)},
            "extra_info": {"index": index},
        }
        for index in range(number)
    ]


def test_a_step_with_the_openrlhf_agent(model, tmp_path):
    result = train(model, tmp_path, rows(), f"{ROLLOUT}.agent.agent_func_path={ROOT}/{AGENTS}/openrlhf_agent.py")
    assert result.metrics["response_length/mean"] > 0 and result.metrics["reward/failed"] == 0


@pytest.mark.long
def test_a_step_in_the_environment(model, tmp_path):
    path = f"{ROOT}/{AGENTS}/guess_number.py:GuessNumber"
    data = list(environment_rows(load_environment(path, {}), 2, 0))
    result = train(model, tmp_path, data, f"{ROLLOUT}.agent.environment={path}")
    assert result.metrics["response_length/mean"] > 0 and result.metrics["reward/failed"] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "setting",
    [
        f"function_tool_path={AGENTS}/calculator.py",
        *(f"tool_config_path={AGENTS}/{name}.yaml" for name in ("search", "verl_tool")),
    ],
)
def test_a_step_with_tools(model, tmp_path, monkeypatch, setting):
    monkeypatch.chdir(ROOT)
    result = train(model, tmp_path, rows(), f"{ROLLOUT}.multi_turn.{setting}", reward=lambda **unused: 0.5)
    assert result.metrics["prompt_length/mean"] > 100  # the prompt shows the tools
