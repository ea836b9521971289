"""Rows of traces and of the endpoint for metrics."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import Any

import pytest

from burnish.log.opentelemetry import OpenTelemetryTraces
from burnish.log.prometheus import ScrapeConfig
from burnish.log.traces import TRACE_BACKENDS
from burnish.loop.api import start
from burnish.loop.finish import Result
from burnish.loop.fit import _one_step
from burnish.loop.step import produce
from burnish.registry import Entry

from .kit import Case
from .row import Row, Text

TRACE = "actor_rollout_ref.rollout.trace"
PROMETHEUS = "actor_rollout_ref.rollout.prometheus"


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


PORT, OTHER_PORT = _free_port(), _free_port()


def _spans(case: Case) -> list[Any]:
    """The spans of one batch, in the memory of OpenTelemetry's exporter."""
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    entry = TRACE_BACKENDS["opentelemetry"]
    with pytest.MonkeyPatch.context() as patch:
        in_memory = Entry(entry.name, lambda: OpenTelemetryTraces(exporter), metadata=entry.metadata)
        patch.setitem(TRACE_BACKENDS.entries, "opentelemetry", in_memory)
        case.run.sync_weights()
        produce(case.run.rollout, 1)
        if case.run.rollout.tracer is not None:
            case.run.rollout.tracer.close()
    return list(exporter.get_finished_spans())


def span_names(case: Case) -> set[str]:
    return {span.name for span in _spans(case)}


def num_episodes(case: Case) -> int:
    return sum(span.name == "episode" for span in _spans(case))


def outputs_of_turns(case: Case) -> set[str]:
    """What a trace has of a turn."""
    turns = [span for span in _spans(case) if span.name == "generate"]
    return {name for turn in turns for name in json.loads(turn.attributes["output.value"])}


def _get(host: str, port: int) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


def served(host: str, port: int) -> Any:
    """Whether metrics of a run are there while it runs."""

    def observe(case: Case) -> bool:
        return "burnish_actor_pg_loss{" in _texts(case, host, port)

    return observe


def _texts(case: Case, host: str, port: int | None) -> str:
    """What the endpoint says after a step of the run."""
    run = case.resumed()
    start(run, case.loaded)
    run.sync_weights()
    _one_step(run, Result(run.recorder.folder.path, run.step))
    endpoint = run.recorder.loggers.loggers.get("metrics")
    return _get(host, port or (endpoint.port if endpoint is not None else 1))


def engine_line(case: Case) -> str:
    """The labels of a metric of the engine."""
    lines = _texts(case, "127.0.0.1", None).splitlines()
    name = next((line for line in lines if line.startswith("burnish_engine_decode_steps{")), "")
    return name.partition("}")[0].replace(str(case.kit.model), "model")


def scrape_files(case: Case) -> list[str]:
    """The configuration that Prometheus gets."""
    _texts(case, "127.0.0.1", None)
    return sorted(path.name for path in case.folder.glob("*.yml"))


class _Server(threading.Thread):
    """Stands for a Prometheus server on PORT: counts requests to reload."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listening = socket.create_server(("127.0.0.1", OTHER_PORT))
        self.first_line = ""
        self.start()

    def run(self) -> None:
        connection, _ = self.listening.accept()
        with connection:
            self.first_line = connection.recv(4096).decode().partition("\r\n")[0]
            if self.first_line:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def reload_request(case: Case) -> str:
    """What a stand-in for Prometheus on OTHER_PORT is asked when the run starts."""
    server = _Server()
    config = case.cfg.actor_rollout_ref.rollout.prometheus
    ScrapeConfig(case.folder / config.file, config.port, "model").announce("127.0.0.1:1")
    socket.create_connection(("127.0.0.1", OTHER_PORT)).close()  # where nobody has asked, the stand-in ends now
    server.join()
    server.listening.close()
    return server.first_line


ON: tuple[Text, ...] = (f"{PROMETHEUS}.enable=true",)
TRACED: tuple[Text, ...] = (f"{TRACE}.backend=opentelemetry",)
SPANS = {"episode", "generate", "reward"}

ROWS = [
    Row(f"{TRACE}.backend", "opentelemetry", span_names, expected=SPANS),
    Row(f"{TRACE}.token2text", "true", outputs_of_turns, TRACED),
    Row(f"{TRACE}.max_samples_per_step_per_worker", "3", num_episodes, TRACED, expected=3),
    Row("trainer.metrics_port", str(PORT), served("127.0.0.1", PORT), expected=True),
    Row(
        "trainer.metrics_host",
        "127.0.0.2",
        served("127.0.0.2", PORT),
        (f"trainer.metrics_port={PORT}",),
        expected=True,
        long=True,
    ),
    Row(f"{PROMETHEUS}.enable", "true", scrape_files, expected=["prometheus.yml"]),
    Row(f"{PROMETHEUS}.file", "mine.yml", scrape_files, ON, expected=["mine.yml"], long=True),
    Row(f"{PROMETHEUS}.served_model_name", "mine", engine_line, ON, long=True),
    Row(f"{PROMETHEUS}.port", str(OTHER_PORT), reload_request, ON, expected="POST /-/reload HTTP/1.1"),
]
