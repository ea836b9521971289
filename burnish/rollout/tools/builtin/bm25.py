"""bm25: offline search over a corpus on this machine, with the library bm25s."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from burnish.errors import UserError, install_extra
from burnish.rollout.tools.builtin.search import (
    SCHEMA,
    check_query_list,
    queries_of,
    search_result,
    show_passages,
)
from burnish.rollout.tools.entry import ToolEntry
from burnish.rollout.tools.execution import UserCode
from burnish.rollout.tools.tool import Tool, ToolLimits, ToolResult

TEXT_FIELDS = ("contents", "text", "content", "passage")


class Index:
    """A BM25 index in memory. Passages start with their title, as retrieval services return them."""

    def __init__(self, passages: list[str], stopwords: str) -> None:
        import bm25s

        self._library = bm25s
        self.passages = passages
        self.stopwords = stopwords
        self._bm25 = bm25s.BM25()
        self._bm25.index(self._tokens(passages), show_progress=False)

    def search(self, queries: list[str], topk: int) -> list[list[str]]:
        """The best passages of each query. Those that share no word with it are left out."""
        found, scores = self._bm25.retrieve(self._tokens(queries), k=min(topk, len(self.passages)), show_progress=False)
        return [
            [self.passages[number] for number, score in zip(numbers, row, strict=True) if score > 0]
            for numbers, row in zip(found.tolist(), scores.tolist(), strict=True)
        ]

    def _tokens(self, texts: list[str]) -> Any:
        return self._library.tokenize(texts, stopwords=self.stopwords, show_progress=False)


class Bm25Tool(Tool):
    """The same argument and the same text as the search tool over HTTP."""

    def __init__(self, schema: dict[str, Any], limits: ToolLimits, index: Index, topk: int) -> None:
        super().__init__(schema, limits)
        self.index = index
        self.topk = topk
        self.code = UserCode(self.name)

    async def call(self, state: Any, arguments: dict[str, Any]) -> ToolResult:
        queries = queries_of(arguments)
        passages = await self.code.run(self.index.search, queries, self.topk)
        found = sum(map(len, passages))
        text = "\n---\n".join(map(show_passages, passages)) if found else "No search results found."
        return search_result(text, queries=len(queries), results=found)

    def shut_down(self) -> None:
        self.code.close()


def build(entry: ToolEntry) -> list[Tool]:
    entry.check_options("corpus_path", "topk", "stopwords")
    try:
        import bm25s  # noqa: F401
    except ImportError as error:
        raise entry.error("bm25s is not installed", "class_name", "bm25", hint=install_extra("bm25")) from error
    index = Index(read_corpus(entry), entry.option("stopwords", "english"))
    return [Bm25Tool(check_query_list(entry) or SCHEMA, entry.read_limits(), index, entry.option("topk", 3))]


def read_corpus(entry: ToolEntry) -> list[str]:
    """The passages of a JSON Lines file: {"title": ..., "text": ...}, or {"contents": "title\\ntext"}."""
    path = entry.option("corpus_path", "")
    file = next((file for file in (Path(path).expanduser(), Path(entry.folder, path)) if file.is_file()), None)
    if file is None:
        raise entry.error(
            "no such file",
            "config.corpus_path",
            path,
            allowed='a JSON Lines file with {"title": ..., "text": ...} per line',
        )
    passages = list(_passages(file, entry))
    if not passages:
        raise entry.error("the corpus is empty", "config.corpus_path", path)
    return passages


def _passages(file: Path, entry: ToolEntry) -> Iterator[str]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                text = next(record[name] for name in TEXT_FIELDS if isinstance(record.get(name), str))
            except (ValueError, AttributeError, StopIteration) as error:
                raise _bad_line(entry, number) from error
            yield text if record.get("title") is None else f"{record['title']}\n{text}"


def _bad_line(entry: ToolEntry, number: int) -> UserError:
    return entry.error(
        f"line {number} is not a passage",
        "config.corpus_path",
        entry.config.get("corpus_path"),
        allowed=f'{{"title": ..., "text": ...}}; the text may also be called {", ".join(TEXT_FIELDS)}',
    )
