"""sandbox_fusion: code that a SandboxFusion service runs. Every call is a new program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.rollout.tools.builtin.http import ServiceError, post_json
from burnish.rollout.tools.builtin.search import service_concurrency
from burnish.rollout.tools.entry import ToolEntry
from burnish.rollout.tools.execution import UserCode
from burnish.rollout.tools.schema import normalize_schema
from burnish.rollout.tools.tool import Tool, ToolLimits, ToolResult

_QUEUE_SECONDS = 30.0  # beyond the program's own time: compiling, and the service's queue

SCHEMA = normalize_schema(
    {
        "name": "code_interpreter",
        "description": "Runs a program and returns what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The program; it must print its results."}},
            "required": ["code"],
        },
    },
    "code_interpreter",
)


class SandboxFusionTool(Tool):
    """The model's arguments: `code`, and where the schema has them, `language` and `timeout`."""

    def __init__(
        self, schema: dict[str, Any], limits: ToolLimits, url: str, timeout: float, language: str, memory_mb: int
    ) -> None:
        super().__init__(schema, limits)
        self.url = url
        self.timeout = timeout
        self.language = language
        self.memory_mb = memory_mb
        self.code = UserCode(self.name)

    async def call(self, state: Any, arguments: dict[str, Any]) -> ToolResult:
        seconds = min(float(arguments.get("timeout") or self.timeout), self.timeout)
        payload = {
            "code": str(arguments.get("code", "")),
            "language": str(arguments.get("language") or self.language),
            "compile_timeout": seconds,
            "run_timeout": seconds,
            "memory_limit_MB": self.memory_mb,
            "files": {},
            "fetch_files": [],
        }
        try:
            return _result(await self.code.run(post_json, self.url, payload, seconds + _QUEUE_SECONDS), seconds)
        except ServiceError as error:
            return ToolResult(f"Error: the sandbox service failed: {error}", failed=True)

    def shut_down(self) -> None:
        self.code.close()


def build(entry: ToolEntry) -> list[Tool]:
    entry.check_options(
        *("sandbox_fusion_url", "default_timeout", "default_language", "memory_limit_mb"),
        *("num_workers", "rate_limit", "enable_global_rate_limit"),
    )
    timeout = entry.option("default_timeout", 30.0)
    limits = entry.read_limits(timeout=timeout + _QUEUE_SECONDS + 5, max_concurrency=service_concurrency(entry, 10))
    return [
        SandboxFusionTool(
            entry.schema or SCHEMA,
            limits,
            entry.url("sandbox_fusion_url"),
            timeout,
            entry.option("default_language", "python"),
            entry.option("memory_limit_mb", 1024),
        )
    ]


def _result(answer: Any, seconds: float) -> ToolResult:
    """What the program printed. A program that fails is an answer; a service that fails is not."""
    if not isinstance(answer, Mapping) or answer.get("status") not in ("Success", "Failed"):
        message = answer.get("message") if isinstance(answer, Mapping) else None
        raise ServiceError(str(message or "it reported an error")[:500])
    compiled, run = answer.get("compile_result"), answer.get("run_result")
    phase = run if isinstance(run, Mapping) else compiled
    if not isinstance(phase, Mapping):
        raise ServiceError("the answer has no run_result")
    text = "".join(value for name in ("stdout", "stderr") if isinstance(value := phase.get(name), str))
    if phase.get("status") == "TimeLimitExceeded":
        return ToolResult(f"{text}Error: the program did not end within {seconds:g} s", failed=True)
    return ToolResult(text, metrics={"code_errors": float(phase.get("return_code") not in (0, None))})
