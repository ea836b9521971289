"""OpenTelemetry: spans by OTLP over HTTP. Its variables (OTEL_EXPORTER_OTLP_ENDPOINT, ...) work as usual."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from burnish.log.traces import Span, nanoseconds

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from burnish.log.logger import RunInfo


class OpenTelemetryTraces:
    """Uses its own provider, so that one of the program is not affected."""

    def __init__(self, exporter: SpanExporter | None = None) -> None:
        self.exporter = exporter  # None: OTLP
        self.provider: TracerProvider | None = None

    def start(self, run: RunInfo) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if self.exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            self.exporter = OTLPSpanExporter()
        resource = Resource.create({"service.name": "burnish", "project": run.project, "run": run.name})
        self.provider = TracerProvider(resource=resource)
        self.provider.add_span_processor(BatchSpanProcessor(self.exporter))

    def write(self, episodes: Sequence[Span]) -> None:
        for episode in episodes:
            self._write(episode, None)

    def close(self) -> None:
        if self.provider is not None:
            self.provider.shutdown()
            self.provider = None

    def _write(self, span: Span, parent: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        assert self.provider is not None
        context = Context() if parent is None else trace.set_span_in_context(parent, Context())
        opened = self.provider.get_tracer("burnish").start_span(
            span.name, context, attributes=_attributes(span), start_time=nanoseconds(span.start)
        )
        for child in span.children:
            self._write(child, opened)
        opened.end(nanoseconds(span.end))


def _attributes(span: Span) -> dict[str, Any]:
    """Values of attributes are scalars: inputs and outputs are JSON texts."""
    return {
        "kind": span.kind,
        "input.value": json.dumps(span.inputs),
        "output.value": json.dumps(span.outputs),
        **span.attributes,
    }
