"""Best: the step whose validation was best so far, by one metric. Its checkpoint outlives the others."""

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
    """`metric` None looks for none; a best step that an earlier start found is kept all the same."""

    metric: str | None = None
    step: int | None = None
    value: float = -math.inf
    by: str | None = None  # the metric that `value` is of

    def improves(self, step: int, found: Mapping[str, float]) -> bool:
        """Is this validation better than all before? Then it is the one to beat; of equal ones the first stays."""
        if self.metric is None:
            return False
        value = measure(self.metric, found)
        if not value > self.value:
            return False
        self.step, self.value, self.by = step, value, self.metric
        return True

    def check(self, found: Mapping[str, float]) -> None:
        """UserError where a validation does not give the metric."""
        if self.metric is not None:
            measure(self.metric, found)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.step is None else {"step": self.step, "value": self.value, "by": self.by}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Values of another metric cannot be compared: then the search begins anew."""
        if state and self.metric in (None, state["by"]):
            self.step, self.value, self.by = state["step"], state["value"], state["by"]


def measure(metric: str, found: Mapping[str, float]) -> float:
    """The metric of a validation; auto is the mean of val-core/*/mean@N, over data sources."""
    if metric == AUTO:
        return fmean(value for name, value in found.items() if name.startswith("val-core/") and "/mean@" in name)
    if metric not in found:
        raise UserError("the validation gives no such metric", key=KEY, value=metric, allowed=[AUTO, *sorted(found)])
    return found[metric]
