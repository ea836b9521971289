"""Conversations with tools: exact tokens, limits, budgets, rewards, failures."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import ClassVar

import pytest

from burnish.loop.collect import EpisodeRunner
from burnish.loop.journal import FileJournal
from burnish.models.model_input import ModelInput
from burnish.rollout.agents.agent import AgentContext
from burnish.rollout.agents.limits import TurnLimits
from burnish.rollout.agents.tool_agent import ToolAgent
from burnish.rollout.chat.parsers.hermes import HermesParser
from burnish.rollout.chat.template import ChatTemplate
from burnish.rollout.engine import Capabilities, Completion, Sampling
from burnish.rollout.episode import INTERRUPTED, Prompt
from burnish.rollout.tools.functions import FunctionTool
from burnish.rollout.tools.tool import ToolLimits
from burnish.rollout.tools.toolbox import Toolbox
from burnish.rollout.tools.truncation import ResponseLimit

from .conftest import Script


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def call(name="add", **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


END = "<|im_end|>"
MESSAGES = [{"role": "user", "content": "2+3?"}]


def converse(
    tokenizer,
    texts,
    *,
    tools=None,
    limits=TurnLimits(),  # noqa: B008
    response=ResponseLimit(),  # noqa: B008
    budget=10_000,
    row=None,
    sampler=Script,
):
    toolbox = Toolbox([FunctionTool(add)] if tools is None else tools)
    template = ChatTemplate(tokenizer, [tokenizer.eos_token_id], toolbox.schemas())
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    agent = ToolAgent(AgentContext(tokenizer, template, HermesParser(), toolbox, decode, limits, response))
    prompt = ModelInput(tuple(template.encode(template.render(MESSAGES))))
    sampler = sampler(tokenizer, texts, budget, len(prompt))
    (trajectory,) = asyncio.run(agent.run(Prompt(prompt, Sampling(budget), 7, "row", 0, row or {}), sampler))
    return trajectory, sampler, template


def test_tokens_given_are_tokens_trained_on(chat_tokenizer):
    texts = [f"let me see {call(a=2, b=3)}{END}", f"{call(a=5, b=4)}{END}", f"9{END}"]
    trajectory, sampler, template = converse(chat_tokenizer, texts)
    everything = (*trajectory.prompt.ids, *trajectory.ids)
    for given in sampler.inputs:  # every turn was sampled after a prefix of what is trained on
        assert everything[: len(given)] == given.ids
    sampled = [token for token, mask in zip(trajectory.ids, trajectory.mask, strict=True) if mask]
    assert chat_tokenizer.decode(sampled) == "".join(texts)
    assert [turn.role for turn in trajectory.turns] == ["assistant", "tool", "assistant", "tool", "assistant"]
    results = [chat_tokenizer.decode(trajectory.ids[t.start : t.end]) for t in trajectory.turns if t.role == "tool"]
    assert "<tool_response>\n5\n</tool_response>" in results[0] and "\n9\n" in results[1]
    # and it is what the template renders, up to how the model spelled its calls
    messages = [*MESSAGES, {"role": "assistant", "content": texts[0].removesuffix(END)}]
    messages += [{"role": "tool", "content": "5"}, {"role": "assistant", "content": texts[1].removesuffix(END)}]
    messages += [{"role": "tool", "content": "9"}, {"role": "assistant", "content": "9"}]
    assert chat_tokenizer.decode(everything) + "\n" == template.render(messages, reply=False)


def test_masked_tokens_have_no_log_prob_and_no_version(chat_tokenizer):
    trajectory, _, _ = converse(chat_tokenizer, [f"{call(a=1, b=1)}{END}", f"2{END}"])
    for mask, log_prob, version in zip(trajectory.mask, trajectory.log_probs, trajectory.versions, strict=True):
        assert (log_prob, version) == ((-0.5, 3) if mask else (0.0, -1))


@pytest.mark.parametrize(
    ("limits", "num_turns"),
    [(TurnLimits(), 3), (TurnLimits(max_assistant_turns=2), 2), (TurnLimits(max_user_turns=1), 2)],
)
def test_turn_limits(chat_tokenizer, limits, num_turns):
    texts = [f"{call(a=1, b=1)}{END}", f"{call(a=1, b=2)}{END}", f"3{END}"]
    trajectory, sampler, _ = converse(chat_tokenizer, texts, limits=limits)
    assert len(sampler.inputs) == num_turns and trajectory.mask[-1] and trajectory.finish_reason == "stop"


def test_calls_beyond_the_limit_are_answered(chat_tokenizer):
    texts = [f"{call(a=1, b=1)}{call(a=2, b=2)}{END}", f"x{END}"]
    trajectory, _, _ = converse(chat_tokenizer, texts)
    observed = chat_tokenizer.decode(trajectory.ids[trajectory.turns[1].start : trajectory.turns[1].end])
    assert "\n2\n" in observed and "at most 1 calls per turn" in observed
    assert trajectory.info["tools"]["over_limit"] == 1 and trajectory.info["tools"]["calls"] == 1
    both, _, _ = converse(chat_tokenizer, texts, limits=TurnLimits(max_parallel_calls=2))
    assert both.info["tools"]["calls"] == 2 and both.info["tools"]["over_limit"] == 0


def test_an_observation_that_leaves_no_room_ends_the_conversation(chat_tokenizer):
    first = f"{call(a=1, b=1)}{END}"
    length = len(chat_tokenizer(first)["input_ids"])
    trajectory, sampler, _ = converse(chat_tokenizer, [first, "never"], budget=length + 30)
    assert len(sampler.inputs) == 1 and trajectory.finish_reason == "length"
    assert len(trajectory.ids) == length and all(trajectory.mask)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (call("sub", a=1, b=2), "there is no tool 'sub'"),
        (call(a=1), "missing argument b"),
        (call(a="one", b=2), "argument a must be of type integer"),
        ("<tool_call>{</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "must be a JSON object"),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN, "b": 1}}</tool_call>', "NaN is not valid JSON"),
    ],
)
def test_what_is_wrong_with_a_call_is_told_to_the_model(chat_tokenizer, text, problem):
    trajectory, _, _ = converse(chat_tokenizer, [f"{text}{END}", f"sorry{END}"])
    assert problem in chat_tokenizer.decode(trajectory.ids)
    assert trajectory.info["tools"]["failed"] == 1


def test_long_results_are_cut(chat_tokenizer):
    def shout() -> str:
        """Shout."""
        return "a" * 50 + "b" * 50

    trajectory, _, _ = converse(
        chat_tokenizer,
        [f"{call('shout')}{END}", f"x{END}"],
        tools=[FunctionTool(shout)],
        response=ResponseLimit(10, "middle"),
    )
    assert "aaaaa...(truncated)...bbbbb" in chat_tokenizer.decode(trajectory.ids)
    assert trajectory.info["tools"]["truncated"] == 1


def test_a_call_that_is_never_closed_ends_the_conversation(chat_tokenizer):
    """A model that writes on until its budget ends: what it sampled is kept and trained on, and nothing is called."""
    text = '<tool_call>\n{"name": "add", "arguments": {"a": ' + "1" * 3000
    trajectory, sampler, _ = converse(chat_tokenizer, [text, "never"])
    assert trajectory.finish_reason == "length" and len(sampler.inputs) == 1
    assert chat_tokenizer.decode(trajectory.ids) == text and all(trajectory.mask)
    assert trajectory.info["tools"]["calls"] == 0


class Full(Script):
    """What an engine's sampler does where the prompt has used all of the context."""

    def budget(self, input):
        return 0

    async def generate(self, input, **sampling):
        self.inputs.append(input)
        return Completion([], [], [], "length")


def test_a_prompt_at_the_limit_has_an_empty_response(chat_tokenizer):
    trajectory, sampler, _ = converse(chat_tokenizer, [], sampler=Full)
    assert (trajectory.ids, trajectory.finish_reason, len(sampler.inputs)) == ([], "length", 1)
    assert trajectory.problem is None and len(trajectory.turns) == 1


class Resumed(Script):
    """A sampler whose journal has some answers: a dict, or INTERRUPTED for a call in flight."""

    recorded: ClassVar[list] = []

    async def observe(self, act, *, name="", repeatable=True, key=""):
        recorded = self.recorded.pop(0) if self.recorded else None
        if recorded is INTERRUPTED and repeatable:
            recorded = None
        return await act() if recorded is None else recorded


def test_a_call_in_flight_that_may_not_be_repeated_is_told_to_the_model(chat_tokenizer):
    executed = []

    def pay(amount: int) -> str:
        """Pay.

        Args:
            amount: how much
        """
        executed.append(amount)
        return "paid"

    texts = [f"{call('pay', amount=7)}{END}", f"x{END}"]
    for repeatable in (False, True):
        tool = FunctionTool(pay, limits=ToolLimits(repeatable=repeatable))
        Resumed.recorded = [INTERRUPTED]
        trajectory, _, _ = converse(chat_tokenizer, texts, tools=[tool], sampler=Resumed)
        text = chat_tokenizer.decode(trajectory.ids)
        assert ("Error: pay was interrupted; whether it took effect is unknown." in text) != repeatable
        assert trajectory.info["tools"]["failed"] == int(not repeatable)
        assert executed == ([7] if repeatable else [])


def test_calls_of_the_journal_are_counted_and_not_executed(chat_tokenizer):
    """Metrics of a resumed run are those of one that was never killed."""
    texts = [f"{call(a=2, b=3)}{END}", f"{call(a=5, b=4)}{END}", f"9{END}"]
    Resumed.recorded = [{"text": "5", "reward": 0.5, "metrics": {"hits": 2.0}, "truncated": True, "seconds": 3.0}]
    trajectory, _, _ = converse(chat_tokenizer, texts, sampler=Resumed)
    counts = trajectory.info["tools"]
    assert (counts["calls"], counts["failed"], counts["truncated"], counts["metrics"]) == (2, 0, 1, {"hits": 2.0})
    assert counts["seconds"] >= 3.0 and trajectory.turns[0].reward == 0.5


class Says:
    """An engine that answers with these texts in turn."""

    capabilities = Capabilities("token", invariant=True, sessions=True)

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.expected = tokenizer, list(texts), []

    def generate(self, requests):
        futures = [Future() for _ in requests]
        for future in futures:
            ids = list(self.tokenizer(self.texts.pop(0), add_special_tokens=False)["input_ids"])
            future.set_running_or_notify_cancel()
            future.set_result(Completion(ids, [-0.5] * len(ids), [3] * len(ids), "stop"))
        return futures

    def expect_return(self, session, seconds):
        self.expected.append((session, seconds))

    def end_session(self, session):
        pass

    def step(self):
        return False


def test_counts_of_a_resumed_run(chat_tokenizer, tmp_path):
    """What tools did before the run was killed is counted, and the engine learns how long they take."""

    def long(a: int) -> str:
        """Answer at length.

        Args:
            a: a number
        """
        if a > 1:
            raise ValueError("too large")
        return "a" * 99

    texts = [f"{call('long', a=1)}{END}", f"{call('long', a=2)}{END}", f"2{END}"]
    toolbox = Toolbox([FunctionTool(long)])
    template = ChatTemplate(chat_tokenizer, [chat_tokenizer.eos_token_id], toolbox.schemas())
    decode = lambda ids: chat_tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    limit = ResponseLimit(10, "middle")
    agent = ToolAgent(AgentContext(chat_tokenizer, template, HermesParser(), toolbox, decode, response_limit=limit))
    prompt = Prompt(ModelInput(tuple(template.encode(template.render(MESSAGES)))), Sampling(2000), 7)

    def run(texts):
        engine, journal = Says(chat_tokenizer, texts), FileJournal(tmp_path / "1.jsonl")
        runner = EpisodeRunner(engine, agent, journal=journal)
        (trajectory,) = asyncio.run(runner.run(prompt))
        journal.close()
        return trajectory, engine

    first, engine = run(texts)
    again, _ = run([])
    counts, resumed = ({**t.info["tools"], "scores": {}} for t in (first, again))  # only tools in use give scores
    assert (counts["calls"], counts["failed"], counts["truncated"]) == (2, 1, 2) and counts["seconds"] > 0
    assert resumed == counts and again.ids == first.ids
    assert [session for session, _ in engine.expected] == ["7"]  # nothing was known before the first call
    assert 0 < engine.expected[0][1] <= counts["seconds"]


class Streams(Says):
    """The same, but a turn ends only when `gate` is open; until then its text so far is reported."""

    capabilities = Capabilities("token", invariant=True, sessions=True, watch=True)

    def __init__(self, tokenizer, texts, gate, *, finish="stop", final=None):
        super().__init__(tokenizer, texts)
        self.gate, self.finish, self.final, self.reported = gate, finish, final, 0

    def generate(self, requests):
        (request,), future = requests, Future()
        future.set_running_or_notify_cancel()
        text = self.texts.pop(0)
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        completion = Completion(ids, [-0.5] * len(ids), [3] * len(ids), "stop")
        if request.watch is None or "<tool_call>" not in text:
            future.set_result(completion)
            return [future]
        if self.final is not None:
            ids = list(self.tokenizer(self.final, add_special_tokens=False)["input_ids"])
            completion = replace(completion, ids=ids, log_probs=[-0.5] * len(ids), versions=[3] * len(ids))
        partial = completion.ids if self.final is None else list(self.tokenizer(text)["input_ids"])

        def decode():
            for number in range(1, len(partial)):
                request.watch.check(partial[number - 1 : number], partial[:number])
            assert self.gate.wait(60)
            future.set_result(replace(completion, finish_reason=self.finish))

        threading.Thread(target=decode).start()
        return [future]


def stream(tokenizer, engine, tools, limits=TurnLimits(max_parallel_calls=3)):  # noqa: B008
    toolbox = Toolbox(tools)
    template = ChatTemplate(tokenizer, [tokenizer.eos_token_id], toolbox.schemas())
    decode = lambda ids: tokenizer.decode(ids, skip_special_tokens=False)  # noqa: E731
    agent = ToolAgent(AgentContext(tokenizer, template, HermesParser(), toolbox, decode, limits))
    prompt = Prompt(ModelInput(tuple(template.encode(template.render(MESSAGES)))), Sampling(2000), 7)
    (trajectory,) = asyncio.run(EpisodeRunner(engine, agent).run(prompt))
    return trajectory


def counting(gate, calls, needed):
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        calls.append((a, b))
        if len(calls) == needed:
            gate.set()
        return a + b

    return add


def test_calls_start_while_the_turn_is_sampled(chat_tokenizer):
    """The turn ends only after both calls were executed, and its tokens are those of an engine that reports nothing."""
    texts = [f"{call(a=1, b=1)}{call(a=2, b=2)} I am waiting.{END}", f"2 and 4{END}"]
    gate, calls = threading.Event(), []
    tool = FunctionTool(counting(gate, calls, needed=2))
    early = stream(chat_tokenizer, Streams(chat_tokenizer, texts, gate), [tool])
    late = stream(chat_tokenizer, Says(chat_tokenizer, texts), [tool])
    assert early.ids == late.ids and early.info["tools"]["calls"] == 2
    assert sorted(calls[:2]) == [(1, 1), (2, 2)] and len(calls) == 4


def test_a_turn_that_is_cut_drops_what_it_started(chat_tokenizer):
    texts = [f"{call(a=1, b=1)} and then I never"]
    gate, calls = threading.Event(), []
    engine = Streams(chat_tokenizer, texts, gate, finish="length")
    trajectory = stream(chat_tokenizer, engine, [FunctionTool(counting(gate, calls, needed=1))])
    assert calls == [(1, 1)] and trajectory.finish_reason == "length"
    assert trajectory.info["tools"]["calls"] == 0 and all(trajectory.mask) and len(trajectory.turns) == 1


def test_a_turn_that_is_sampled_again_otherwise_is_what_counts(chat_tokenizer):
    """After a preemption, an engine that is not invariant may sample other tokens."""
    gate, calls = threading.Event(), []
    final = f"{call(a=5, b=5)}{END}"
    engine = Streams(chat_tokenizer, [f"{call(a=1, b=1)}{END}", f"x{END}"], gate, final=final)
    trajectory = stream(chat_tokenizer, engine, [FunctionTool(counting(gate, calls, needed=1))])
    assert calls == [(1, 1), (5, 5)] and trajectory.info["tools"]["calls"] == 1
    assert "\n10\n" in chat_tokenizer.decode(trajectory.ids)


def test_calls_that_must_wait_for_the_end_of_the_turn(chat_tokenizer):
    """Tools that cannot be called twice, calls beyond the limit, and turns that nobody answers."""
    calls, opened = [], threading.Event()
    opened.set()
    add = counting(threading.Event(), calls, needed=0)
    once = FunctionTool(add, limits=ToolLimits(repeatable=False))
    assert not once.starts_early and FunctionTool(add).starts_early
    texts = [f"{call(a=1, b=1)}{call(a=2, b=2)}{END}", f"x{END}"]
    for tool, limits, executed in (
        (once, TurnLimits(max_parallel_calls=1), [(1, 1)]),
        (FunctionTool(add), TurnLimits(max_parallel_calls=1), [(1, 1)]),
        (FunctionTool(add), TurnLimits(max_assistant_turns=1), []),
    ):
        calls.clear()
        trajectory = stream(chat_tokenizer, Streams(chat_tokenizer, texts, opened), [tool], limits)
        assert calls == executed and trajectory.info["tools"]["over_limit"] == len(executed)
