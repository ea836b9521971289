"""The endpoint for metrics of a run, from its config."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from burnish.log.prometheus import MetricsEndpoint, ScrapeConfig

if TYPE_CHECKING:
    from burnish.config import TrainConfig


def build_endpoint(cfg: TrainConfig, folder: Path) -> MetricsEndpoint | None:
    """The run's /metrics; None where neither trainer.metrics_port nor rollout.prometheus asks for it."""
    prometheus, trainer = cfg.actor_rollout_ref.rollout.prometheus, cfg.trainer
    if trainer.metrics_port is None and not prometheus.enable:
        return None
    scrape = None
    if prometheus.enable:
        name = prometheus.served_model_name or str(cfg.actor_rollout_ref.model.path)
        scrape = ScrapeConfig(folder / prometheus.file, prometheus.port, name)
    return MetricsEndpoint(trainer.metrics_host, trainer.metrics_port or 0, scrape)
