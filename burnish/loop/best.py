"""Best: the step with the best validation so far, by one metric. Its checkpoint is always kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from burnish.errors import UserError

KEY = "trainer.best_metric_key"
AUTO = "auto"


@dataclass
class Best:
    """`metric` None tracks nothing, but keeps the best step of an earlier start."""

    metric: str | None = None
    step: int | None = None
    value: float = -math.inf
    by: str | None = None  # the metric that `value` is of

    def improves(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether this validation is the best so far (and note it). Of equal ones the first wins."""
        if self.metric is None:
            return False
        value = measure(self.metric, metrics)
        if not value > self.value:
            return False
        self.step, self.value, self.by = step, value, self.metric
        return True

    def check(self, metrics: Mapping[str, float]) -> None:
        """UserError if the validation does not have the metric."""
        if self.metric is not None:
            measure(self.metric, metrics)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.step is None else {"step": self.step, "value": self.value, "by": self.by}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Values of another metric are not comparable: the search restarts."""
        if state and self.metric in (None, state["by"]):
            self.step, self.value, self.by = state["step"], state["value"], state["by"]


def measure(metric: str, metrics: Mapping[str, float]) -> float:
    """The metric of a validation; `auto` is the mean of val-core/*/mean@N over data sources."""
    if metric == AUTO:
        return fmean(value for name, value in metrics.items() if name.startswith("val-core/") and "/mean@" in name)
    if metric not in metrics:
        raise UserError("no such validation metric", key=KEY, value=metric, allowed=[AUTO, *sorted(metrics)])
    return metrics[metric]
