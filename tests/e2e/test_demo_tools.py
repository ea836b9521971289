"""The demo's task `tools` learns, and because of the tool's answers: with those of other calls it does not."""

from __future__ import annotations

import json
from collections import deque

import pytest

from burnish.cli.main import main
from burnish.demo.calculator import SCHEMA, CalculatorTask, Question
from burnish.demo.run import reinforce
from burnish.log.file import read_metrics
from burnish.rollout.tools.builtin.calculator import Calculator
from burnish.rollout.tools.tool import ToolResult


class ShuffledCalculator(Calculator):
    """Answers each call with the result of another one. Samples of one question often make the same call, so the
    answer is the oldest of the last results that differs."""

    def __init__(self) -> None:
        super().__init__(SCHEMA)
        self.results: deque[ToolResult] = deque(maxlen=64)

    async def call(self, state, arguments):
        result = await super().call(state, arguments)
        other = next((earlier for earlier in self.results if earlier.text != result.text), ToolResult("0"))
        self.results.append(result)
        return other


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_model_learns_when_and_how_to_call_the_tool(tmp_path, capsys):
    assert main(["demo", "--task", "tools", "--seed", "1", "--json", "--folder", str(tmp_path)]) == 0
    line = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert set(line) == {"seed", "before", "after", "seconds"} and line["seed"] == 1
    assert line["before"] < 0.4
    assert line["after"] > 0.8
    records = [json.loads(text) for text in last_answers(tmp_path / "seed_1").read_text().splitlines()]
    solved = [record for record in records if Question.of(CalculatorTask().sample(record)[0]).solved]
    needless = [record["needless_calls"] for record in solved]
    assert sum(needless) < 0.2 * len(needless)


def last_answers(folder):
    return max((folder / "answers").glob("*.jsonl"), key=lambda path: int(path.stem))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_answers_of_other_calls_do_not_improve_the_model(tmp_path):
    task = CalculatorTask()
    problems = task.make_problems(1)
    task.warm_up(tmp_path / "model", problems, 1, lambda text: None)
    quiet = ("trainer.logger=[file]", "trainer.save_freq=-1")
    result = reinforce(task, tmp_path, tmp_path / "model", problems, 1, task.steps, quiet, tools=[ShuffledCalculator()])
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[1]["tools/calls"] > 0
    assert result.validation[0][task.accuracy] < 0.4
    assert result.validation[task.steps][task.accuracy] < 0.4
