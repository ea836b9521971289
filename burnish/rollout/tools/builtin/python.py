"""python: Python code in our sandbox. A conversation's calls share one interpreter."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from burnish.isolation.probe import isolation
from burnish.rollout.tools.builtin.interpreter import Interpreter, InterpreterDied, InterpreterLimits
from burnish.rollout.tools.entry import ToolEntry
from burnish.rollout.tools.execution import UserCode
from burnish.rollout.tools.schema import normalize_schema
from burnish.rollout.tools.tool import ConversationInfo, Tool, ToolLimits, ToolResult, ToolTimeout

MAX_INTERPRETERS = 256  # alive at the same time; each takes some 30 MB
_WAIT_SECONDS = 60.0  # for another conversation to end, where all interpreters are in use

SCHEMA = normalize_schema(
    {
        "name": "python",
        "description": "Runs Python code and returns what it prints, and the value of its last expression. Variables"
        " stay from call to call.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Python code"}},
            "required": ["code"],
        },
    },
    "python",
)


class _Session:
    """A conversation's interpreter, started at its first call and again after it was lost."""

    def __init__(self, limits: InterpreterLimits, places: threading.BoundedSemaphore) -> None:
        self.limits = limits
        self.places = places
        self._interpreter: Interpreter | None = None
        self._lock = threading.Lock()  # one call at a time
        self._closed = False

    def run(self, code: str) -> tuple[str, bool]:
        with self._lock:
            if self._interpreter is None:
                self._interpreter = self._start()
            try:
                return self._interpreter.run(code)
            except (ToolTimeout, InterpreterDied):
                self._stop()
                raise

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stop()

    def _start(self) -> Interpreter:
        if self._closed:
            raise RuntimeError("the conversation is over")
        if not self.places.acquire(timeout=_WAIT_SECONDS):
            raise RuntimeError(f"no interpreter was free within {_WAIT_SECONDS:g} s")
        try:
            return Interpreter(self.limits)
        except BaseException:
            self.places.release()
            raise

    def _stop(self) -> None:
        interpreter, self._interpreter = self._interpreter, None
        if interpreter is not None:
            interpreter.close()
            self.places.release()


class PythonTool(Tool):
    """The first argument of the schema is the code."""

    enforces_timeout = True  # the process is killed

    def __init__(
        self, schema: dict[str, Any], limits: ToolLimits, interpreter: InterpreterLimits, max_interpreters: int
    ) -> None:
        super().__init__(schema, limits)
        self.interpreter = interpreter
        self.places = threading.BoundedSemaphore(max_interpreters)
        self.code = UserCode(self.name)

    async def open(self, conversation: ConversationInfo, options: Mapping[str, Any]) -> _Session:
        return _Session(self.interpreter, self.places)

    async def call(self, state: _Session, arguments: dict[str, Any]) -> ToolResult:
        code = str(next(iter(arguments.values()), ""))
        try:
            text, failed = await self.code.run(state.run, code)
        except InterpreterDied as error:
            return ToolResult(f"{error.output}Error: {error}", failed=True)
        except ToolTimeout:
            seconds = self.interpreter.seconds
            text = f"Error: the code did not end within {seconds:g} s and was killed; its variables are lost"
            return ToolResult(text, failed=True, metrics={"code_timeouts": 1.0})
        return ToolResult(text, metrics={"code_errors": float(failed)})

    async def close(self, state: _Session) -> None:
        await self.code.run(state.close)

    def shut_down(self) -> None:
        self.code.close()


def build(entry: ToolEntry) -> list[Tool]:
    entry.check_options("memory_mb", "output_kb", "cpu_seconds", "max_interpreters", "allow_weak")
    current = isolation()
    if not current.strong and not (entry.allow_weak or entry.option("allow_weak", False)):
        raise entry.error(
            f"the model's code needs a sandbox, and {current.description}",
            "sandbox.allow_weak",
            False,
            allowed="true on a disposable machine, or the tool sandbox_fusion with a service",
            hint="sandbox.allow_weak=true",
        )
    prefix = "" if current.strong else "WEAK SANDBOX (allow_weak): "
    entry.notices.append(f"{entry.where}: {prefix}{current.description}")
    schema = entry.schema or SCHEMA
    if len(schema["function"]["parameters"].get("properties", {})) != 1:
        raise entry.error("the python tool has one argument, the code", "tool_schema.function.parameters")
    defaults = InterpreterLimits()
    limits = entry.read_limits(timeout=defaults.seconds)
    interpreter = InterpreterLimits(
        seconds=limits.timeout,
        memory_mb=entry.option("memory_mb", defaults.memory_mb),
        output_kb=entry.option("output_kb", defaults.output_kb),
        cpu_seconds=entry.option("cpu_seconds", defaults.cpu_seconds),
    )
    return [PythonTool(schema, limits, interpreter, entry.option("max_interpreters", MAX_INTERPRETERS))]
