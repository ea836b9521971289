"""Limits of tools: time, concurrency, rate, retries, sizes; hung calls are abandoned or killed."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from burnish.rollout.tools import execution
from burnish.rollout.tools.execution import ThreadPool, UserCode, threads
from burnish.rollout.tools.functions import FunctionTool, python_tools
from burnish.rollout.tools.gate import CallGate
from burnish.rollout.tools.tool import Tool, ToolLimits
from burnish.rollout.tools.toolbox import MAX_ERROR, Toolbox
from burnish.rollout.tools.truncation import ResponseLimit

from .conftest import use

MEGABYTE = 2**20


def tool(function, name="tool", **limits):
    schema = {"name": name, "parameters": {"type": "object", "properties": {}}}
    return FunctionTool(function, schema, ToolLimits(**limits))


@pytest.fixture
def release():
    """An event for which hung functions wait, and which ends them after the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("blocks", ["a thread", "a loop", "nothing"])
def test_a_hung_tool_is_cut_and_the_conversation_goes_on(release, blocks):
    async def hang():
        release.wait()

    async def sleep():
        await asyncio.sleep(1000)

    functions = {"a thread": lambda: release.wait(), "a loop": hang, "nothing": sleep}
    hung = tool(functions[blocks], f"hung in {blocks}", timeout=0.05)
    used = use([hung, tool(lambda: "fine", "other")], (hung.name, {}), ("other", {}))
    assert used.texts == [f"Error: {hung.name} did not answer within 0.05 s", "fine"]
    assert used.counts.failed == used.counts.timed_out == 1


def test_calls_of_a_tool_that_always_hangs_are_refused(release):
    hung = tool(release.wait, "always hung", timeout=0.02)
    while threads().stuck["always hung"] < execution.MAX_STUCK:  # a call whose thread has not begun is taken back
        assert use([hung], ("always hung", {})).counts.timed_out == 1
    (result,) = use([hung], ("always hung", {})).results
    assert result.text == "Error: ToolHangs: always hung is not called: 8 earlier calls still hang"
    release.set()
    while threads().stuck["always hung"]:
        time.sleep(0.001)
    assert not use([hung], ("always hung", {})).results[0].failed


def test_a_coroutine_that_blocks_its_loop_gets_another(monkeypatch, release):
    monkeypatch.setattr(execution, "BLOCKED_SECONDS", -1.0)
    first = threading.Event()

    async def blocks_once():
        if not first.is_set():
            first.set()
            release.wait()
        return threading.current_thread().name

    blocking = tool(blocks_once, "blocking", timeout=2.0)
    blocking.limits = ToolLimits(timeout=0.05)
    assert use([blocking], ("blocking", {})).counts.timed_out == 1
    blocking.limits = ToolLimits(timeout=30)
    assert use([blocking], ("blocking", {})).texts == ["tool-blocking"]
    assert threads().stuck["blocking"] == 1


def test_one_event_loop_serves_all_steps():
    """What a tool keeps, for example an HTTP session, belongs to one loop."""
    loops = set()

    async def remember():
        loops.add(asyncio.get_running_loop())
        return "ok"

    kept = tool(remember)
    assert use([kept], ("tool", {})).texts == use([kept], ("tool", {})).texts == ["ok"]
    assert len(loops) == 1
    kept.shut_down()


def test_threads_are_bounded_and_waiting_calls_are_not_lost(release):
    pool = ThreadPool(max_threads=2)
    jobs = [pool.submit("tool", lambda: release.wait() and threading.current_thread()) for _ in range(5)]
    started = [job for job in jobs if job.running]
    assert len(started) <= 2
    pool.abandon(jobs[4])  # it waits, so it is taken back
    assert not jobs[4].abandoned
    release.set()
    assert len({job.future.result(30) for job in jobs[:4]}) <= 2


def test_a_thread_takes_the_place_of_one_that_is_stuck(release):
    pool = ThreadPool(max_threads=1)
    running = threading.Event()
    stuck = pool.submit("tool", lambda: running.set() or release.wait())
    running.wait()
    waiting = pool.submit("tool", lambda: "done")
    pool.abandon(stuck)
    assert pool.stuck["tool"] == 1 and waiting.future.result(30) == "done"


@pytest.mark.parametrize(("retries", "text"), [(1, "Error: ValueError: failed 2"), (2, "3")])
def test_retries(monkeypatch, retries, text):
    attempts = []

    def flaky():
        attempts.append(1)
        if len(attempts) < 3:
            raise ValueError(f"failed {len(attempts)}")
        return len(attempts)

    monkeypatch.setattr("burnish.rollout.tools.toolbox.RETRY_SECONDS", 0.0)
    assert use([tool(flaky, retries=retries)], ("tool", {})).texts == [text]


def test_concurrency_is_bounded_over_all_event_loops():
    running, most, lock = [0], [0], threading.Lock()

    def count():
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.002)
        with lock:
            running[0] -= 1
        return "done"

    limited = tool(count, max_concurrency=3)
    box = Toolbox([limited])
    calls = [("tool", {})] * 10
    steps = [threading.Thread(target=use, args=(box, *calls), kwargs={"together": True}) for _ in range(3)]
    for step in steps:
        step.start()
    for step in steps:
        step.join()
    assert 1 <= most[0] <= 3


def test_a_canceled_call_gives_its_place_back():
    async def run():
        gate = CallGate(ToolLimits(max_concurrency=1))
        async with gate:
            waiting = asyncio.create_task(gate.__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(30), gate:
            return True

    assert asyncio.run(run())


def test_calls_start_at_the_rate_limit(monkeypatch):
    now, slept = [100.0], []

    async def sleep(seconds):
        slept.append(round(seconds, 6))

    async def run():
        gate = CallGate(ToolLimits(rate_limit=4))
        for _ in range(3):
            async with gate:
                pass
        now[0] += 10
        async with gate:
            pass

    monkeypatch.setattr("burnish.rollout.tools.gate.time.monotonic", lambda: now[0])
    monkeypatch.setattr("burnish.rollout.tools.gate.asyncio.sleep", sleep)
    asyncio.run(run())
    assert slept == [0.0, 0.25, 0.5, 0.0]


def test_results_of_100_megabytes_are_cut_before_anything_else():
    text = "x" * (100 * MEGABYTE)

    def fail():
        raise ValueError(text)

    tools = [tool(lambda: text, "text"), tool(lambda: {"a": [text] * 50}, "structure"), tool(fail, "failing")]
    limit = ResponseLimit(100, "right")
    used = use(tools, *[(entry.name, {}) for entry in tools], limit=limit)
    assert [len(result.text) for result in used.results] == [100 + len("...(truncated)")] * 3
    assert used.counts.truncated == 3
    whole = use(tools, ("structure", {}), ("failing", {}))
    assert len(whole.texts[0]) < 2 * MEGABYTE and len(whole.texts[1]) < MAX_ERROR + 100


@pytest.mark.parametrize(
    ("side", "text"),
    [("left", "(truncated)...6789"), ("right", "0123...(truncated)"), ("middle", "01...(truncated)...89")],
)
def test_which_side_is_truncated(side, text):
    assert ResponseLimit(4, side).cut("0123456789") == text
    assert ResponseLimit(10, side).cut("0123456789") == "0123456789"


def test_a_reward_that_is_no_number_is_a_failure(write, load):
    source = """
        from verl.tools.base_tool import BaseTool

        class Nan(BaseTool):
            async def execute(self, instance_id, parameters, **kwargs):
                return "text", float("nan"), {}

            async def calc_reward(self, instance_id, **kwargs):
                raise RuntimeError("no score")
    """
    schema = "{name: t, parameters: {type: object, properties: {}}}"
    tools = load(f"tools: [{{class_name: '{write('nan.py', source)}:Nan', tool_schema: {schema}}}]")
    used = use(tools, ("t", {}))
    assert used.texts == ["Error: ValueError: the tool returned the reward nan"]
    assert used.reward == 0.0 and used.counts.failed == 2


class Unopenable(Tool):
    def __init__(self):
        super().__init__({"function": {"name": "closed", "parameters": {}}})
        self.attempts = 0

    async def open(self, conversation, options):
        self.attempts += 1
        if self.attempts < 3:
            raise OSError("not ready")
        return "state"

    async def call(self, state, arguments):
        raise AssertionError(state)


def test_a_tool_that_cannot_be_opened_is_tried_again_at_each_call():
    used = use([Unopenable()], ("closed", {}), ("closed", {}), options={"closed": {}})
    assert used.texts == ["Error: OSError: not ready", "Error: AssertionError: state"]


def test_selected_tools_are_the_only_ones(release):
    tools = [tool(lambda: "1", "one"), tool(lambda: "2", "two")]
    used = use(tools, ("one", {}), ("two", {}), names=["two"])
    assert used.texts == ["Error: there is no tool 'one'. Available: two.", "2"]


# processes


KIND = {"name": "slow_or_fast", "parameters": {"type": "object", "properties": {"kind": {"type": "string"}}}}


def slow_or_fast(kind):
    if kind == "hang":
        time.sleep(1000)
    if kind == "die":
        os._exit(3)
    if kind == "raise":
        raise ValueError("wrong")
    if kind == "large":
        return "x" * (10 * MEGABYTE)
    return f"{kind} in {os.getpid()}"


def test_an_isolated_tool_is_killed(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))  # the tool's process imports this module
    tools = python_tools([FunctionTool(slow_or_fast, KIND, ToolLimits(timeout=20.0, isolate=True))])
    try:
        calls = [("slow_or_fast", {"kind": kind}) for kind in ("a", "b", "raise", "die", "c", "large")]
        used = use(tools, *calls)
        one, two, raised, died, after, large = used.texts
        assert one.removeprefix("a") == two.removeprefix("b") and str(os.getpid()) not in one
        assert raised == "Error: RuntimeError: ValueError: wrong"
        assert died == "Error: RuntimeError: the tool's process died"
        assert "restarted" in after and "c in" in after and after.split()[-1] != one.split()[-1]
        assert 900_000 < len(large) < 2 * MEGABYTE
        tools[0].limits = ToolLimits(timeout=0.3)
        hung = use(tools, ("slow_or_fast", {"kind": "hang"}))
        assert hung.texts == ["Error: slow_or_fast did not answer within 0.3 s"] and hung.counts.timed_out == 1
        assert threads().stuck["slow_or_fast"] == 0  # nothing hangs here
    finally:
        tools[0].shut_down()


def test_an_isolated_class_keeps_its_state(write, load):
    source = """
        import os
        from verl.tools.base_tool import BaseTool

        class Counter(BaseTool):
            async def create(self, instance_id=None, **kwargs):
                self.count = kwargs["create_kwargs"]["start"]
                return instance_id

            async def execute(self, instance_id, parameters, **kwargs):
                self.count += 1
                return f"{self.count} {os.getpid()}", 0.5, {}

            async def calc_reward(self, instance_id, **kwargs):
                return self.count
    """
    schema = "{name: t, parameters: {type: object, properties: {}}}"
    entry = f"class_name: '{write('count.py', source)}:Counter', limits: {{isolate: true}}, tool_schema: {schema}"
    tools = load(f"tools: [{{{entry}}}]")
    options = {"t": {"create_kwargs": {"start": 5}}}
    used = use(tools, ("t", {}), ("t", {}), options=options)
    (one, process), (two, same) = (text.split() for text in used.texts)
    assert (one, two) == ("6", "7") and process == same != str(os.getpid())
    assert used.reward == 7.0 and used.results[0].reward == 0.5
    assert use(tools, ("t", {}), options=options).texts[0].split()[0] == "6"  # a new process per conversation


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration("x")])
def test_no_exception_of_a_tool_ends_the_run(error):
    def plain():
        raise error

    async def coroutine():
        raise error

    used = use(
        [tool(plain, "plain"), tool(coroutine, "coroutine"), tool(lambda: "fine")],
        ("plain", {}),
        ("coroutine", {}),
        ("tool", {}),
    )
    assert used.counts.failed == 2 and used.texts[2] == "fine" and type(error).__name__ in used.texts[0]


def test_user_code_runs_awaitables_of_plain_functions():
    async def inner():
        return "awaited"

    assert asyncio.run(UserCode("x").run(lambda: inner())) == "awaited"
