"""MLflow: MLFLOW_TRACKING_URI, or a database mlflow.db in the run folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.log.folder import persistent_id
from burnish.log.jsonl import plain
from burnish.log.traces import Span, nanoseconds

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from burnish.log.logger import RunInfo

# Limits of one MLflow request.
METRICS_PER_REQUEST = 1000
PARAMS_PER_REQUEST = 100
MAX_PARAM_LENGTH = 6000
SPAN_TYPES = {"generation": "LLM", "tool": "TOOL", "reward": "EVALUATOR"}  # MLflow's names


class MlflowLogger:
    """The project is the experiment. Uses its own client, so that an active run of a notebook is not affected."""

    def __init__(self) -> None:
        self.client: MlflowClient | None = None
        self.run_id = ""
        self._notes: list[str] = []

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        client, experiment_id = open_experiment(run)
        self.client, resume = client, resume_step is not None
        self.run_id = persistent_id(
            run.folder, "mlflow", lambda: client.create_run(experiment_id, run_name=run.name).info.run_id, resume=resume
        )
        self.client.update_run(self.run_id, status="RUNNING")
        self._log_config(run.config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        numbers = [Metric(legal_name(name), value, now, step) for name, value in metrics.items()]
        for chunk in _chunks(numbers, METRICS_PER_REQUEST):
            self._client().log_batch(self.run_id, metrics=chunk)

    def table(self, name: str, step: int, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        data = {"columns": list(columns), "data": plain(rows)}
        self._client().log_dict(self.run_id, data, f"tables/{legal_name(name)}/{step}.json")

    def note(self, text: str) -> None:
        self._notes.append(text)
        self._client().log_text(self.run_id, "\n".join(self._notes), "notes.txt")

    def close(self) -> None:
        if self.client is not None and self.run_id:
            self.client.set_terminated(self.run_id)
        self.client = None

    def _log_config(self, config: dict[str, Any]) -> None:
        """Log the config as config.json, and short entries as parameters. A resumed run keeps its parameters."""
        from mlflow.entities import Param

        client = self._client()
        client.log_dict(self.run_id, plain(config), "config.json")
        known = client.get_run(self.run_id).data.params
        entries = [(legal_name(name), str(value)) for name, value in _flat(config)]
        params = [Param(name, text) for name, text in entries if name not in known and len(text) <= MAX_PARAM_LENGTH]
        for chunk in _chunks(params, PARAMS_PER_REQUEST):
            client.log_batch(self.run_id, params=chunk)

    def _client(self) -> MlflowClient:
        if self.client is None:
            raise RuntimeError("the mlflow logger is not started")
        return self.client


class MlflowTraces:
    """Conversations as traces of the same experiment.

    MLflow sends traces to the tracking URI of the process, whatever the client's: it is set until the run ends.
    """

    def __init__(self) -> None:
        self.client: MlflowClient | None = None
        self.experiment_id = ""
        self._uri_before = ""

    def start(self, run: RunInfo) -> None:
        import mlflow

        self.client, self.experiment_id = open_experiment(run)
        self._uri_before = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri(self.client.tracking_uri)

    def write(self, episodes: Sequence[Span]) -> None:
        for episode in episodes:
            self._write(episode)

    def close(self) -> None:
        import mlflow

        if self.client is not None:
            mlflow.flush_trace_async_logging()
            mlflow.set_tracking_uri(self._uri_before)
        self.client = None

    def _write(self, episode: Span) -> None:
        assert self.client is not None
        root = self.client.start_trace(
            episode.name,
            span_type="AGENT",
            inputs=episode.inputs,
            attributes=dict(episode.attributes),
            experiment_id=self.experiment_id,
            start_time_ns=nanoseconds(episode.start),
        )
        for child in episode.children:
            span = self.client.start_span(
                child.name,
                root.trace_id,
                root.span_id,
                span_type=SPAN_TYPES[child.kind],
                inputs=child.inputs,
                attributes=dict(child.attributes),
                start_time_ns=nanoseconds(child.start),
            )
            self.client.end_span(root.trace_id, span.span_id, child.outputs, end_time_ns=nanoseconds(child.end))
        self.client.end_trace(root.trace_id, episode.outputs, end_time_ns=nanoseconds(episode.end))


def open_experiment(run: RunInfo) -> tuple[MlflowClient, str]:
    """A client, and the id of the project's experiment."""
    from mlflow import MlflowClient

    run.folder.mkdir(parents=True, exist_ok=True)
    local = f"sqlite:///{run.folder.absolute() / 'mlflow.db'}"
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    client = MlflowClient(tracking_uri=uri or local)
    experiment = client.get_experiment_by_name(run.project)
    if experiment is not None:
        return client, experiment.experiment_id
    # Without a server, store artifacts next to the database; a server chooses the location.
    artifacts = None if uri else (run.folder.absolute() / "mlflow").as_uri()
    return client, client.create_experiment(run.project, artifact_location=artifacts)


def legal_name(name: str) -> str:
    """A name that MLflow accepts: no @ (mean@4 becomes mean_at_4) and few other special characters."""
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_"), flags=re.ASCII)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _chunks(entries: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(entries), size):
        yield entries[start : start + size]
