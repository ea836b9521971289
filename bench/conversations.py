"""Conversations for bench/faults.py: a tiny model calls tools and acts in environments, and is killed meanwhile.

The model is untrained, so a parser takes its turns for calls, whatever their text. Every execution of a tool appends a
line to a log, which tells whether a resumed run calls one again that had answered.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from killing import Baseline, Commands, Task, differences

ROLLOUT = "actor_rollout_ref.rollout"
TURNS = f"{ROLLOUT}.multi_turn"
ACT_SECONDS = 0.03  # that a tool works, roughly
SECONDS = ("tools/seconds", "tools/wait_seconds")  # metrics that are times
PARSER = '''
from burnish.rollout.chat.tool_calls import ParsedTurn, ToolCall


class EveryTurnCalls:
    """Two calls per turn; a turn that ends with 9 has none."""

    stop_tokens = ()

    def __init__(self, schemas):
        self.names = [schema["function"]["name"] for schema in schemas]

    def parse(self, text):
        if text.endswith("9"):
            return ParsedTurn(text)
        return ParsedTurn(text, [ToolCall(self.names[0], {"query": f"{text}{n}"}) for n in range(2)])
'''
LOOKUP = '''
def look_up(query, log):
    """A number that depends on the query, after a while."""
    with open(log, "a") as file:
        file.write(f"{query}\\n")
    number = zlib.crc32(query.encode()) % 1000
    time.sleep(0.02 + number / 20_000)
    return str(number)
'''
NATIVE = (
    """import time
import zlib

"""
    + LOOKUP
    + '''

class Numbers:
    def __init__(self, log):
        self.log = log

    def lookup(self, query: str) -> str:
        """Look up a number.

        Args:
            query: which one
        """
        return look_up(query, self.log)
'''
)
MCP = (
    """import sys
import time
import zlib

try:
    from mcp.server import MCPServer  # 2.x
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer  # 1.x

"""
    + LOOKUP
    + '''

server = MCPServer("numbers")


@server.tool()
def lookup(query: str) -> str:
    """Look up a number."""
    return look_up(query, sys.argv[1])


server.run("stdio")
'''
)
OPENENV = '''
import random
import sys
import time

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Say(Action):
    message: str


class Said(Observation):
    text: str = ""


class Numbers(Environment):
    """Answers with numbers that depend on the seed and on all that was said."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.steps = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.random, self.steps = random.Random(seed), 0
        return Said(text=str(self.random.randrange(100)))

    def step(self, action, timeout_s=None, **kwargs):
        time.sleep(0.03)
        self.steps += 1
        self.random.seed(f"{self.random.random()} {action.message}")
        number = self.random.randrange(100)
        return Said(text=str(number), reward=number / 100, done=self.steps >= 3)

    @property
    def state(self):
        return State(episode_id=None, step_count=self.steps)


app = create_fastapi_app(Numbers, Say, Said, max_concurrent_envs=64)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
'''


@dataclass(frozen=True)
class Setting:
    """One kind of conversation: its settings, and where executions of its tools are logged (environments: nowhere)."""

    settings: tuple[str, ...]
    log: Path | None = None

    def num_executed(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log is not None and self.log.exists() else 0

    def clear(self) -> None:
        if self.log is not None:
            self.log.unlink(missing_ok=True)


def common(folder: Path) -> tuple[str, ...]:
    (folder / "parser.py").write_text(PARSER)
    return (
        "algorithm.adv_estimator=grpo",
        "data.max_response_length=96",
        f"{ROLLOUT}.stop_token_ids=[5,7,9,11]",  # an untrained model seldom samples EOS
        f"{TURNS}.max_turn_length=8",
        f"{TURNS}.max_assistant_turns=3",
        f"{TURNS}.max_parallel_calls=2",
        f"{TURNS}.format={folder / 'parser.py'}:EveryTurnCalls",
        f"{TURNS}.tokenization_sanity_check_mode=disable",
        "trainer.total_training_steps=2",
    )


@contextmanager
def native_tools(folder: Path) -> Iterator[Setting]:
    """A class in the run's process."""
    log = folder / "native.log"
    (folder / "numbers_tool.py").write_text(NATIVE)
    entry = {"class_name": f"{folder / 'numbers_tool.py'}:Numbers", "config": {"log": str(log)}}
    yield Setting((*common(folder), f"{TURNS}.enable=true", tool_file(folder / "native.yaml", entry)), log)


@contextmanager
def mcp_tools(folder: Path) -> Iterator[Setting]:
    """An MCP server over stdio, which ends with the run."""
    log, script = folder / "mcp.log", folder / "mcp_numbers.py"
    script.write_text(MCP)
    servers = {"mcpServers": {"numbers": {"command": sys.executable, "args": [str(script), str(log)]}}}
    (folder / "servers.json").write_text(json.dumps(servers))
    entry = {"class_name": "mcp", "mcp": {"mcp_servers_config_path": str(folder / "servers.json")}}
    yield Setting((*common(folder), f"{TURNS}.enable=true", tool_file(folder / "mcp.yaml", entry)), log)


@contextmanager
def openenv(folder: Path) -> Iterator[Setting]:
    """An OpenEnv server, which outlives the runs."""
    script = folder / "openenv_numbers.py"
    script.write_text(OPENENV)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # It reports every session that a killed run did not close.
    server = subprocess.Popen([sys.executable, str(script), str(port)], stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        agent = f"{ROLLOUT}.agent"
        keys = (f"{agent}.environment=openenv", f"{agent}.environment_kwargs.base_url=http://127.0.0.1:{port}")
        yield Setting((*common(folder), *keys, "data.max_prompt_length=32"))
    finally:
        server.terminate()
        server.wait()


def tool_file(path: Path, entry: dict) -> str:
    path.write_text(json.dumps({"tools": [entry]}))
    return f"{TURNS}.tool_config_path={path}"


def wait_for(port: int) -> None:
    for _ in range(600):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the OpenEnv server does not start: is openenv-core installed?")


KINDS: dict[str, Callable] = {"native tools": native_tools, "MCP": mcp_tools, "OpenEnv": openenv}


@dataclass
class Outcome:
    """Kills by phase, how many of them hit a running call, and what differs from the undisturbed run."""

    kills: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    lost: list[str] = field(default_factory=list)


def kill_conversations(commands: Commands, task: Task, folder: Path, kind: str, kills: int, seed: int) -> Outcome:
    """Kill runs with conversations, half of them while a tool works, and resume them until they are complete."""
    outcome, rng = Outcome(), random.Random(seed)
    with KINDS[kind](task.folder) as setting:
        setting.clear()
        baseline = Baseline(commands, task, folder, setting.settings)
        baseline.usual["act"] = ACT_SECONDS
        undisturbed, number = setting.num_executed(), 0
        while outcome.kills.total() < kills:
            number += 1
            run = folder.with_name(f"{folder.name}_killed_{number}")
            setting.clear()
            repeatable = kill_until_complete(baseline, run, outcome, kills, rng)
            repeated = setting.num_executed() - undisturbed
            if not 0 <= repeated <= repeatable:
                outcome.lost.append(f"{run.name}: {repeated} calls executed again, {repeatable} were in flight")
            outcome.lost += [f"{run.name}: {line}" for line in differences(baseline.folder, run, SECONDS)]
    return outcome


def kill_until_complete(baseline: Baseline, run: Path, outcome: Outcome, kills: int, rng: random.Random) -> int:
    """Returns how many calls were in flight when the run was killed: only those may be executed again."""
    total = 0
    while True:
        at = None
        if outcome.kills.total() < kills:
            at = baseline.random_instant(rng, rng.choice((("act",), ("act",), ("gen",), ())))
        result = baseline.run(run, at=at)
        if result.status == 0:
            return total
        assert at is not None and result.status == -signal.SIGKILL, result.printed
        outcome.kills[at.phase] += 1
        unanswered = in_flight(run)
        outcome.in_flight += unanswered > 0
        total += unanswered


def in_flight(run: Path) -> int:
    """Calls that a journal says began and that it has no answer to."""
    count = 0
    for path in (run / "journal").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        begun = {line["key"] for line in lines if "key" in line and "value" not in line}
        count += len(begun - {line["key"] for line in lines if "value" in line})
    return count
