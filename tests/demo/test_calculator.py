"""The task `tools`: its questions and score, demonstrations that are tokens of a rollout, and a short run."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from burnish.demo import calculator
from burnish.demo.calculator import (
    SCHEMA,
    CalculatorTask,
    Demonstration,
    Question,
    Renderer,
    call_text,
    compute_score,
    random_question,
)
from burnish.demo.run import reinforce
from burnish.demo.tiny import END
from burnish.demo.warmup import Warmup
from burnish.log.file import read_metrics
from burnish.models.model_input import ModelInput
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.tool_agent import ToolAgent
from burnish.rollout.chat.parsers.hermes import HermesParser
from burnish.rollout.engine import Sampling
from burnish.rollout.episode import Prompt
from burnish.rollout.tools.toolbox import Toolbox
from burnish.training.policy import Policy

from ..rollout.agents.conftest import Script

TWO_STEPS = Question(47, ("+12", "-30"))


@pytest.fixture(scope="module")
def tokenizer():
    return calculator.tools_tokenizer()


def test_questions_are_read_from_their_text():
    rng = random.Random(0)
    questions = [random_question(rng) for _ in range(200)]
    assert [Question.of(question.text) for question in questions] == questions
    assert {question.num_needed_calls for question in questions} == {0, 1, 2}
    assert {len(question.text) for question in questions} == {8}
    assert all(10 <= result <= 99 for question in questions for result in question.results)
    assert [Question(47, ("+12",), solved).text for solved in (True, False)] == ["47+12=59", "47+12=??"]
    assert TWO_STEPS.text == "47+12-30"
    assert TWO_STEPS.calls == ["47+12", "59-30"] and TWO_STEPS.results == [47, 59, 29]


def test_no_question_is_in_two_sets():
    problems = CalculatorTask().make_problems(1)
    questions = [p.question for part in (problems.warmup, problems.train, problems.held_out) for p in part]
    assert len(set(questions)) == len(questions) == calculator.WARMUP + calculator.TRAIN + calculator.HELD_OUT


def test_a_demonstration_has_the_tokens_and_mask_of_a_rollout(tokenizer):
    """Turns that the model writes are trained on; results and the template's tokens around them are not."""
    renderer = Renderer(tokenizer)
    expected, mask = renderer.response(Demonstration(TWO_STEPS, tuple(TWO_STEPS.calls), "29"))
    task = CalculatorTask()
    context = AgentContext(
        tokenizer=tokenizer,
        template=renderer.template,
        parser=HermesParser([SCHEMA]),
        toolbox=Toolbox(task.tools()),
        decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
    )
    script = Script(tokenizer, [*(call_text(call) + END for call in TWO_STEPS.calls), f"29{END}"])
    prompt = Prompt(ModelInput(tuple(renderer.prompt(TWO_STEPS.text))), Sampling(100), 7, "row", 0, {})
    (trajectory,) = asyncio.run(ToolAgent(context).run(prompt, script))
    assert trajectory.ids == expected
    assert trajectory.mask == [bool(value) for value in mask]
    results = [turn for turn in trajectory.turns if turn.role == "tool"]
    texts = [tokenizer.decode(trajectory.ids[turn.start : turn.end]) for turn in results]
    assert texts == [f"<|im_start|>t {result}{END}<|im_start|>a " for result in (59, 29)]


@pytest.mark.parametrize(
    ("conversation", "needed", "score"),
    [
        ("59", 0, 1.0),
        ("?", 0, 0.0),
        (f"{call_text('47+12')}t 59a 59", 0, 0.8),
        (f"{call_text('47+12')}t 59a 59", 1, 1.0),
        (f"{call_text('47+12')}t 59a 58", 1, 0.0),
        (f"{call_text('47+12')}t 59", 1, 0.0),  # cut after the result
        (f"{call_text('47+12')}t 59a {call_text('47+12')}", 1, 0.0),  # no answer
        (f"{call_text('47-12')}t 35a {call_text('47+12')}t 59a 59", 1, 0.8),
    ],
)
def test_the_score_pays_less_for_needless_calls(conversation, needed, score):
    result = compute_score(conversation, "59", {"needed_calls": needed})
    assert result["score"] == pytest.approx(score)
    assert result["acc"] == float(score > 0)
    assert result["calls"] == conversation.count("<tool_call>")


def sampled(text: str) -> list[tuple[str, bool]]:
    """A conversation in pieces, and whether the model wrote them: all but what stands between its turns."""
    pieces, rest, writes = [], text, True
    while rest:
        piece, end, rest = rest.partition(END if writes else "<|im_start|>a ")
        pieces.append((piece + end, writes))
        writes = not writes
    return pieces


def test_a_short_run_calls_the_tool_and_trains_on_the_model_s_turns(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(calculator, "MAX_UPDATES", 40)
    monkeypatch.setattr(calculator, "CARELESS_UPDATES", 10)
    monkeypatch.setattr(calculator, "CARELESS", 0.0)  # every demonstration of a calculation has a call
    monkeypatch.setattr(Warmup, "batch_size", 16)
    monkeypatch.setattr("burnish.loop.fit.draw_curves", lambda metrics, picture: None)
    batches, update = [], Policy.update

    def recorded(self, batch, step):
        batches.append(batch)
        return update(self, batch, step)

    monkeypatch.setattr(Policy, "update", recorded)
    task, model = CalculatorTask(), tmp_path / "model"
    problems = task.make_problems(1)
    task.warm_up(model, problems, 1, lambda text: None)
    problems.held_out[8:] = []
    small = ("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "reward.num_workers=0")
    reinforce(task, tmp_path, model, problems, 1, 2, (*small, "trainer.logger=[file]", "trainer.save_freq=-1"))

    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all(metrics[step]["tools/calls"] > 0 for step in (1, 2))
    for batch in batches:
        masks = batch["response_mask"].lists()
        for ids, mask in zip(batch["responses"].lists(), masks, strict=True):
            pieces = sampled(tokenizer.decode(ids))
            expected = [float(writes) for piece, writes in pieces for _ in tokenizer(piece)["input_ids"]]
            assert mask == expected
        assert any(0.0 in mask for mask in masks)
    executed = [entry for batch in batches for entry in executed_calls(batch, tokenizer)]
    assert executed and all(str(calculator.evaluate(expression)) == result for expression, result in executed)


def executed_calls(batch, tokenizer) -> list[tuple[str, str]]:
    """Expressions that the model called the tool with, and the results, of the calls that did not fail."""
    calls = []
    for ids, turns in zip(batch["responses"].lists(), batch["turns"], strict=True):
        for turn, answer in itertools.pairwise(turns):
            text = tokenizer.decode(ids[answer.start : answer.end], skip_special_tokens=True)
            result = text.removeprefix("t ").removesuffix("a ")
            if answer.role == "tool" and len(turn.tool_calls) == 1 and not result.startswith("Error"):
                calls.append((turn.tool_calls[0]["function"]["arguments"]["expression"], result))
    return calls
