"""Weave: traces of conversations in the project of the run. Its environment variables (WANDB_API_KEY, ...) apply."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from burnish.log.traces import Span

if TYPE_CHECKING:
    from burnish.log.logger import RunInfo


class WeaveTraces:
    def __init__(self) -> None:
        self.client: Any = None

    def start(self, run: RunInfo) -> None:
        import weave

        self.client = weave.init(run.project, global_attributes={"experiment": run.name})

    def write(self, episodes: Sequence[Span]) -> None:
        for episode in episodes:
            self._write(episode, None)

    def close(self) -> None:
        if self.client is not None:
            self.client.finish()
            self.client = None

    def _write(self, span: Span, parent: Any) -> None:
        call = self.client.create_call(
            span.name,
            span.inputs,
            parent,
            attributes={"kind": span.kind, **span.attributes},
            use_stack=False,
            started_at=datetime.fromtimestamp(span.start, UTC),
        )
        for child in span.children:
            self._write(child, call)
        self.client.finish_call(call, span.outputs, ended_at=datetime.fromtimestamp(span.end, UTC))
