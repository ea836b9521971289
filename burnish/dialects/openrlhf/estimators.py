"""OpenRLHF's advantage estimators and their Burnish equivalents."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from burnish.dialects.openrlhf.translator import Translator


@dataclass(frozen=True)
class Estimator:
    """`settings` are the keys that it needs besides algorithm.adv_estimator."""

    ours: str
    critic: bool = False
    grouped: bool = False  # compares the responses of a prompt: needs n > 1, and gamma is 1
    whitened: bool = False  # normalizes advantages over the batch
    discounts: bool = False  # uses gamma
    settings: dict[str, Any] = field(default_factory=dict)


ESTIMATORS = {
    "gae": Estimator("gae", critic=True, whitened=True, discounts=True),
    "reinforce": Estimator("reinforce_plus_plus", whitened=True, discounts=True),
    "reinforce_baseline": Estimator("reinforce_plus_plus_baseline", grouped=True, whitened=True),
    "group_norm": Estimator("grpo", grouped=True, settings={"algorithm.group_std_epsilon": 1e-9}),
    "rloo": Estimator("rloo", grouped=True),
    "dr_grpo": Estimator("grpo", grouped=True, settings={"algorithm.norm_adv_by_std_in_grpo": False}),
}


def get_estimator(t: Translator) -> Estimator:
    return ESTIMATORS[t.get("advantage_estimator")]
