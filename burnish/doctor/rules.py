"""Rules: conditions of a config that go wrong in ways people know, each with what to type instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from burnish.config import TrainConfig
from burnish.doctor.memory import Shapes

REFUSED = "refused"  # the run would not start, or would stop
WARNING = "warning"  # it would run, and most likely not do what was meant
NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class Finding:
    """One thing found: what, how bad, and what to type."""

    rule: str
    severity: str
    text: str
    type: str = ""
    keys: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As `doctor --json` prints it."""
        return {"rule": self.rule, "severity": self.severity, "text": self.text, "type": self.type}


@dataclass
class Case:
    """What the rules look at."""

    cfg: TrainConfig
    shapes: Shapes | None = None
    given: frozenset[str] = frozenset()  # keys that the user set
    families: dict[str, str] = field(default_factory=dict)  # role -> model family, where its config.json is here

    def was_set(self, section: str) -> bool:
        """Was this key, or one inside it, set by the user?"""
        return any(key == section or key.startswith(f"{section}.") for key in self.given)


# The finding's text and what to type, or None.
Judgement = tuple[str, str] | None


@dataclass(frozen=True)
class Rule:
    """A named condition. `scene` is the situation in which people look it up."""

    name: str
    severity: str
    scene: str
    reward_model: Callable[[Case], Judgement]
    keys: tuple[str, ...] = ()

    def find(self, case: Case) -> Finding | None:
        judged = self.score(case)
        return None if judged is None else Finding(self.name, self.severity, *judged, keys=self.keys)


def find_all(case: Case) -> list[Finding]:
    """Every rule that fires, worst first."""
    from burnish.doctor.advice import ADVICE
    from burnish.doctor.troubles import TROUBLES

    found = [finding for rule in (*TROUBLES, *ADVICE) if (finding := rule.find(case)) is not None]
    return sorted(found, key=lambda finding: (REFUSED, WARNING, NOTE).index(finding.severity))
