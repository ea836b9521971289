"""The conversations of a step that is not over: its journal (loop/journal.py), read as it grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.view.json_lines import GrowingFile
from burnish.view.samples import listed
from burnish.view.token_file import TokenTexts

MAX_CONVERSATIONS = 20_000
MAX_LAST = 200  # characters
MAX_TOKENS = 400  # at the end of a turn, to decode


@dataclass
class Conversation:
    """What is known about one so far."""

    id: str
    turns: set[str] = field(default_factory=set)  # keys of sampled turns
    acts: dict[str, bool] = field(default_factory=dict)  # key of a call or step -> whether it was answered
    tokens: int = 0  # sampled
    failed: int = 0  # calls
    last: str = ""  # the end of what was sampled or answered last
    place: int = 0  # of its last event in the file

    @property
    def is_waiting(self) -> bool:
        """Whether a tool or environment has not answered yet."""
        return not all(self.acts.values())


class StepInProgress:
    """The newest state of every conversation that has sampled something."""

    def __init__(self, path: Path, texts: TokenTexts) -> None:
        self.path = path
        self.conversations: dict[str, Conversation] = {}
        self._file = GrowingFile(path)
        self._texts = texts
        self._count = 0

    def refresh(self) -> None:
        replaced, lines = self._file.read()
        if replaced:
            self.conversations = {}
        for line in lines:
            key = line.get("key")
            if isinstance(key, str):
                self._add(key[:500], line)

    def _add(self, key: str, line: Mapping[str, Any]) -> None:
        id, _, event = key.partition(".")
        if id not in self.conversations and len(self.conversations) >= MAX_CONVERSATIONS:
            return
        known = self.conversations.setdefault(id, Conversation(id))
        self._count, known.place = self._count + 1, self._count + 1
        value = line.get("value")
        if not event.startswith("turn"):
            self._add_act(known, key, value)
        elif isinstance(value, Mapping) and key not in known.turns:  # the last line is read again
            ids = [token for token in listed(value.get("ids")) if type(token) is int]
            known.turns.add(key)
            known.tokens += len(ids)
            known.last = "".join(self._texts.texts(ids[-MAX_TOKENS:]))[-MAX_LAST:]

    def _add_act(self, known: Conversation, key: str, value: Any) -> None:
        is_new = not known.acts.get(key, False)
        known.acts[key] = not is_new or value is not None
        answer = value.get("value") if isinstance(value, Mapping) else None
        if isinstance(answer, Mapping) and is_new:
            known.failed += answer.get("failed") is True
            text = answer.get("text")
            known.last = text[:MAX_LAST] if isinstance(text, str) else known.last
