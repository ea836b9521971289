"""search: passages from a retrieval service over HTTP, as Search-R1 and verl's SearchTool have it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from burnish.rollout.tools.builtin.http import ServiceError, post_json
from burnish.rollout.tools.entry import ToolEntry
from burnish.rollout.tools.execution import UserCode
from burnish.rollout.tools.schema import normalize_schema
from burnish.rollout.tools.tool import Tool, ToolLimits, ToolResult

MAX_QUERIES = 16  # of one call

SCHEMA = normalize_schema(
    {
        "name": "search",
        "description": "Searches for passages that answer the queries.",
        "parameters": {
            "type": "object",
            "properties": {
                "query_list": {"type": "array", "items": {"type": "string"}, "description": "One or more queries."}
            },
            "required": ["query_list"],
        },
    },
    "search",
)


class SearchTool(Tool):
    """Sends the queries of a call in one request: {"queries", "topk", "return_scores"}."""

    def __init__(self, schema: dict[str, Any], limits: ToolLimits, url: str, topk: int, timeout: float) -> None:
        super().__init__(schema, limits)
        self.url = url
        self.topk = topk
        self.timeout = timeout  # of the requests of a call together
        self.code = UserCode(self.name)

    async def call(self, state: Any, arguments: dict[str, Any]) -> ToolResult:
        queries = queries_of(arguments)
        payload = {"queries": queries, "topk": self.topk, "return_scores": True}
        try:
            answer = await self.code.run(post_json, self.url, payload, self.timeout)
            passages = _passages(answer)
        except ServiceError as error:
            return search_result(f"Search error: {error}", failed=True)
        found = sum(map(len, passages))
        text = "\n---\n".join(map(show_passages, passages)) if found else "No search results found."
        return search_result(text, queries=len(queries), results=found)

    def shut_down(self) -> None:
        self.code.close()


def build(entry: ToolEntry) -> list[Tool]:
    entry.check_options(*_OPTIONS)
    url, timeout = entry.url("retrieval_service_url"), entry.option("timeout", entry.option("default_timeout", 30.0))
    limits = entry.read_limits(timeout=timeout + _MARGIN, max_concurrency=service_concurrency(entry, 120))
    return [SearchTool(check_query_list(entry) or SCHEMA, limits, url, entry.option("topk", 3), timeout)]


_OPTIONS = ("retrieval_service_url", "topk", "timeout", "default_timeout", "num_workers", "rate_limit")
_OPTIONS += ("enable_global_rate_limit",)
_MARGIN = 5.0  # seconds for waiting threads, beyond the service's own time


def service_concurrency(entry: ToolEntry, default: int) -> int:
    """Requests at the same time. In verl's tools for services, rate_limit is a second bound of that number."""
    workers, rate_limit = entry.option("num_workers", default), entry.option("rate_limit", default)
    return min(workers, rate_limit) if entry.option("enable_global_rate_limit", True) else workers


def check_query_list(entry: ToolEntry) -> dict[str, Any] | None:
    """The entry's schema, which must have the argument that search tools read."""
    if entry.schema is not None and "query_list" not in entry.schema["function"]["parameters"].get("properties", {}):
        raise entry.error(
            "a search tool has the argument query_list",
            "tool_schema.function.parameters",
            list(entry.schema["function"]["parameters"].get("properties", {})),
            allowed="query_list: {type: array, items: {type: string}}",
        )
    return entry.schema


def queries_of(arguments: Mapping[str, Any]) -> list[str]:
    """The queries of a call; a model may also give a single text."""
    queries = arguments.get("query_list")
    queries = [queries] if isinstance(queries, str) else queries
    if not isinstance(queries, list) or not queries or not all(isinstance(query, str) for query in queries):
        raise ValueError("query_list must be a list of texts")
    if len(queries) > MAX_QUERIES:
        raise ValueError(f"at most {MAX_QUERIES} queries per call")
    return queries


def search_result(text: str, *, failed: bool = False, queries: int = 0, results: int = 0) -> ToolResult:
    metrics = {} if failed else {"search_queries": float(queries), "search_results": float(results)}
    return ToolResult(json.dumps({"result": text}, ensure_ascii=False), metrics=metrics, failed=failed)


def show_passages(passages: list[str]) -> str:
    """Numbered passages; the first line of each is its title."""
    parts = []
    for number, passage in enumerate(passages, 1):
        title, _, text = passage.partition("\n")
        parts.append(f"Doc {number} (Title: {title})\n{text}")
    return "\n\n".join(parts).strip()


def _passages(answer: Any) -> list[list[str]]:
    """The passages of each query: {"result": [[{"document": {"contents": ...}, "score": ...}]]}."""
    results = answer.get("result") if isinstance(answer, Mapping) else None
    if not isinstance(results, list):
        raise ServiceError("the answer has no list 'result'")
    return [[_contents(item) for item in result] for result in results if isinstance(result, list)]


def _contents(item: Any) -> str:
    document = item.get("document", item) if isinstance(item, Mapping) else item
    contents = document.get("contents", document.get("text")) if isinstance(document, Mapping) else document
    return contents if isinstance(contents, str) else json.dumps(document, ensure_ascii=False)
