"""The adapter to verifiers, against the library that `make test-all` installs."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from burnish.cli.main import main
from burnish.errors import UserError
from burnish.rollout.environments.environment import load_environment
from burnish.rollout.environments.rows import environment_rows

from .test_environments import END, rewards, run

pytestmark = pytest.mark.long

# Written as the library's documentation shows.
FILE = '''
import verifiers as vf
from datasets import Dataset


def rows():
    return Dataset.from_list([{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(5)])


def right(completion, answer, **kwargs):
    return float(completion[-1]["content"].strip() == answer)


def single(weight=1.0):
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[right], weights=[weight]), system_prompt="Add.")


class Again(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["tries"] = 0
        return state

    @vf.stop
    async def is_right(self, state):
        turns = state["trajectory"]
        return bool(turns) and turns[-1]["completion"][-1].content.strip() == state["answer"]

    async def env_response(self, messages, state, **kwargs):
        state["tries"] += 1
        return [{"role": "user", "content": f"No, try {state['tries'] + 1}."}]


def several():
    return Again(dataset=rows(), rubric=vf.Rubric(funcs=[right]), max_turns=3)


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def tools():
    return vf.ToolEnv(dataset=rows(), tools=[add], rubric=vf.Rubric(funcs=[right]), max_turns=4)


def groups():
    async def best(completions, **kwargs):
        return [0.0 for _ in completions]

    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[best]))


class Broken(Again):
    async def env_response(self, messages, state, **kwargs):
        raise vf.ToolError("no luck")


def broken():
    return Broken(dataset=rows(), rubric=vf.Rubric(funcs=[right]))


def not_there():
    raise RuntimeError("no data")
'''


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("verifiers") / "environments.py"
    file.write_text(FILE)
    return file


def factory_of(path, name, **kwargs):
    return load_environment("verifiers", {"id": f"{path}:{name}", **kwargs})


def columns(factory, seed=2):
    (row,) = environment_rows(factory, 1, seed=seed)
    return {"raw_prompt": row["prompt"], "extra_info": row["extra_info"]}


def test_single_turn(chat_tokenizer, path):
    factory = factory_of(path, "single", args={"weight": 2.0})
    rows = list(environment_rows(factory, 9, seed=3))
    assert len(rows) == 5 and rows[0]["reward_model"]["ground_truth"] == "4"
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    assert rows[2]["extra_info"]["environment"] == {"seed": 0}  # after the last comes the first
    right, sampler, _ = run(chat_tokenizer, factory, [f"3{END}"], row=columns(factory))
    assert rewards(right) == [2.0] and sampler.forked == {}
    assert right.extras["right"] == 1.0
    wrong, _, _ = run(chat_tokenizer, factory, [f"4{END}"], row=columns(factory))
    assert rewards(wrong) == [0.0]


def test_several_turns(chat_tokenizer, path):
    factory = factory_of(path, "several")
    row = columns(factory)
    trajectory, _, _ = run(chat_tokenizer, factory, [f"1{END}", f"2{END}", f"3{END}"], row=row)
    assert rewards(trajectory) == [0.0, 0.0, 1.0]
    text = chat_tokenizer.decode(trajectory.ids)
    assert "No, try 2." in text and "No, try 3." in text and "try 4" not in text
    never, _, _ = run(chat_tokenizer, factory, [f"9{END}"] * 3, row=row)
    assert rewards(never) == [0.0, 0.0, 0.0] and len(never.turns) == 5  # max_turns of the environment
    cut, _, _ = run(chat_tokenizer, factory, ["no end"], row=row)
    assert cut.finish_reason == "length" and cut.problem is None


def test_tools(chat_tokenizer, path):
    factory = factory_of(path, "tools")
    row = columns(factory)
    assert '"name": "add"' in row["raw_prompt"][0]["content"] and row["raw_prompt"][0]["role"] == "system"
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 1}}</tool_call>'
    trajectory, _, _ = run(chat_tokenizer, factory, [f"{call}{END}", f"3{END}"], row=row)
    assert rewards(trajectory) == [0.0, 1.0]
    assert "<tool_response>\n3\n</tool_response>" in chat_tokenizer.decode(trajectory.ids)
    assert trajectory.extras["add_calls"] == 1.0


def test_failures(chat_tokenizer, path):
    failed, _, _ = run(chat_tokenizer, factory_of(path, "broken"), [f"1{END}"])
    assert "no luck" in failed.problem
    with pytest.raises(UserError, match="scores groups of responses"):
        factory_of(path, "groups")
    with pytest.raises(UserError, match="cannot be loaded: RuntimeError: no data"):
        factory_of(path, "not_there")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_environment("verifiers", {"id": "no_such_environment"})
    with pytest.raises(UserError, match=r"environment_kwargs\.id"):
        load_environment("verifiers", {})


def test_prompts_on_the_command_line(path, tmp_path):
    out = tmp_path / "train.parquet"
    assert main(["data", "env", "verifiers", str(out), f"id={path}:several", "--size", "3"]) == 0
    rows = pq.read_table(out).to_pylist()
    assert [row["prompt"][0]["content"] for row in rows] == [f"What is {n} + 1?" for n in range(3)]
