"""The adapter to verifiers.v1, against the library that `make test-all` installs (0.3.1; 0.4 has it too)."""

from __future__ import annotations

import sys

import pytest

from burnish.errors import UserError
from burnish.rollout.environments.environment import load_environment
from burnish.rollout.environments.rows import environment_rows

from .test_environments import END, rewards, run

pytestmark = pytest.mark.long

# Written as the library's documentation shows: a taskset, and an agent with a tool of its own.
TASKSET = """
import asyncio

import verifiers.v1 as vf

__all__ = ["SumTaskset"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.metric
    async def num_turns(self, trace) -> float:
        return float(trace.num_turns)


class SumTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for n in range(5):
            data = SumData(prompt=f"What is {n} + 1?", answer=str(n + 1), system_prompt="Add.")
            yield SumTask(data, self.config.task)
"""
HARNESS = '''
import json

import httpx
import verifiers.v1 as vf

__all__ = ["AskingHarness"]
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
}


class AskingConfig(vf.HarnessConfig):
    tools: bool = False
    stream: bool = False
    breaks: bool = False
    rewrites: bool = False


class AskingHarness(vf.Harness[AskingConfig]):
    """Asks, says no to a wrong answer, and asks again; runs the calls of the model."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **more):
        if self.config.breaks:
            return vf.ProgramResult(exit_code=3, stdout="", stderr="out of ideas")
        messages = [{"role": "system", "content": data.system_prompt}, {"role": "user", "content": data.prompt}]
        headers, url = {"Authorization": f"Bearer {secret}"}, f"{endpoint}/chat/completions"
        async with httpx.AsyncClient(timeout=60) as client:
            for _ in range(3):
                body = {"model": ctx.model, "messages": messages, "stream": self.config.stream}
                if self.config.tools:
                    body["tools"] = [TOOL]
                response = await client.post(url, json=body, headers=headers)
                response.raise_for_status()
                message = whole(response.text) if self.config.stream else response.json()["choices"][0]["message"]
                messages.append({name: value for name, value in message.items() if value is not None})
                calls = message.get("tool_calls") or []
                for call in calls:
                    given = json.loads(call["function"]["arguments"])
                    result = {"role": "tool", "tool_call_id": call["id"], "content": str(given["a"] + given["b"])}
                    messages.append(result)
                if not calls:
                    if (message.get("content") or "").strip() == data.answer:
                        break
                    messages.append({"role": "user", "content": "No."})
                if self.config.rewrites:
                    messages[1] = {"role": "user", "content": "Forget it."}
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def whole(text):
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return json.loads(lines[0])["choices"][0]["delta"]
'''
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 1}}\n</tool_call>'


@pytest.fixture(scope="module", autouse=True)
def _modules(tmp_path_factory):
    """Packages on the path, as an installed taskset and harness are."""
    folder = tmp_path_factory.mktemp("verifiers_v1")
    (folder / "sums_of_the_test.py").write_text(TASKSET)
    (folder / "asking_of_the_test.py").write_text(HARNESS)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def factory_of(**harness):
    config = {"agent": {"harness": {"id": "asking-of-the-test", **harness}, "runtime": {"type": "subprocess"}}}
    return load_environment("verifiers_v1", {"id": "sums-of-the-test", "config": config})


def columns(factory, seed=2):
    (row,) = environment_rows(factory, 1, seed)
    return {"raw_prompt": row["prompt"], "extra_info": row["extra_info"], "ground_truth": ""}


@pytest.mark.parametrize("stream", [False, True])
def test_turns_until_the_answer_is_right(chat_tokenizer, stream):
    factory = factory_of(stream=stream)
    trajectory, _, _ = run(chat_tokenizer, factory, [f"4{END}", f"3{END}"], row=columns(factory))
    assert [turn.role for turn in trajectory.turns] == ["assistant", "user", "assistant"]
    assert rewards(trajectory) == [0.0, 1.0] and trajectory.problem is None
    assert chat_tokenizer.decode(trajectory.prompt.ids).count("What is 2 + 1?") == 1
    assert trajectory.extras["num_turns"] == 2.0


def test_tools_of_the_agent(chat_tokenizer):
    factory = factory_of(tools=True)
    trajectory, _, _ = run(chat_tokenizer, factory, [f"{CALL}{END}", f"3{END}"], row=columns(factory))
    assert [turn.role for turn in trajectory.turns] == ["assistant", "user", "assistant"]
    assert rewards(trajectory)[-1] == 1.0
    assert '"name": "add"' in chat_tokenizer.decode(trajectory.prompt.ids)


@pytest.mark.parametrize(
    ("harness", "problem"), [({"breaks": True}, "out of ideas"), ({"rewrites": True}, "rewrites the conversation")]
)
def test_failures_belong_to_one_conversation(chat_tokenizer, harness, problem):
    factory = factory_of(**harness)
    trajectory, _, _ = run(chat_tokenizer, factory, [f"4{END}"] * 3, row=columns(factory))
    assert problem in trajectory.problem


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(UserError, match="cannot be loaded: ModuleNotFoundError"):
        load_environment("verifiers_v1", {"id": "no_such_taskset"})
    with pytest.raises(UserError, match=r"environment_kwargs.id: required"):
        load_environment("verifiers_v1", {})
    with pytest.raises(UserError, match=r"config.agent.runtime.type='?prime.*another machine.*Allowed: docker"):
        load_environment("verifiers_v1", {"id": "sums-of-the-test"})
