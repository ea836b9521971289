"""MLflow: MLFLOW_TRACKING_URI, or a database mlflow.db in the run folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from burnish.log.folder import persistent_id
from burnish.log.jsonl import plain

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from burnish.log.logger import RunInfo

# Limits of one MLflow request.
METRICS_PER_REQUEST = 1000
PARAMS_PER_REQUEST = 100
MAX_PARAM_LENGTH = 6000


class MlflowLogger:
    """The project is the experiment. Uses its own client, so that an active run of a notebook is not affected."""

    def __init__(self) -> None:
        self.client: MlflowClient | None = None
        self.run_id = ""
        self._notes: list[str] = []

    def start(self, run: RunInfo, resume_step: int | None = None) -> None:
        from mlflow import MlflowClient

        run.folder.mkdir(parents=True, exist_ok=True)
        local = f"sqlite:///{run.folder.absolute() / 'mlflow.db'}"
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        self.client = MlflowClient(tracking_uri=uri or local)
        experiment = self.client.get_experiment_by_name(run.project)
        # Without a server, store artifacts next to the database; a server chooses the location.
        artifacts = None if uri else (run.folder.absolute() / "mlflow").as_uri()
        experiment_id = (
            experiment.experiment_id
            if experiment is not None
            else self.client.create_experiment(run.project, artifact_location=artifacts)
        )
        client, resume = self.client, resume_step is not None
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
