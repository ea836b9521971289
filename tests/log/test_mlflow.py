from __future__ import annotations

import pytest

from burnish.log.logger import RunInfo
from burnish.log.mlflow import MlflowLogger, legal_name


def test_names_mlflow_allows():
    assert legal_name("val-core/a b/acc/best@4/mean") == "val-core/a b/acc/best_at_4/mean"
    assert legal_name("x:y(漢)") == "x_y___"


@pytest.mark.long
def test_config_becomes_parameters_and_a_resume_is_the_same_run(tmp_path, monkeypatch):
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = {"trainer": {"n": 1}, "long": "x" * 7000, "many": {str(i): i for i in range(250)}}
    for resume_step in (None, 2):
        logger = MlflowLogger()
        logger.start(RunInfo("p", "n", tmp_path, config, 3), resume_step=resume_step)
        logger.log(3, {f"m{i}": float(i) for i in range(1500)})
        logger.close()
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "n"
    assert run.data.params["trainer.n"] == "1" and len(run.data.params) == 251
    assert len(run.data.metrics) == 1500
    assert "x" * 7000 in next((tmp_path / "mlflow").rglob("config.json")).read_text()
