"""Rules: known mistakes that a config shows, each with what to type instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from burnish.config import TrainConfig
from burnish.doctor.memory import Shapes

REFUSED = "refused"  # the run would not start, or would stop
WARNING = "warning"  # it would run, but most likely not as intended
NOTE = "note"  # worth knowing
SEVERITIES = (REFUSED, WARNING, NOTE)  # worst first


@dataclass(frozen=True)
class Finding:
    """One problem: its rule, how severe it is, a description, and what to type."""

    rule: str
    severity: str
    text: str
    type: str = ""
    keys: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `doctor --json` prints it."""
        return {"rule": self.rule, "severity": self.severity, "text": self.text, "type": self.type}


@dataclass
class Case:
    """The input of the rules."""

    cfg: TrainConfig
    shapes: Shapes | None = None
    user_keys: frozenset[str] = frozenset()  # keys that the user set
    families: dict[str, str] = field(default_factory=dict)  # role -> model_type, where its config.json is local

    def was_set(self, section: str) -> bool:
        """Whether the user set this key, or one inside it."""
        return any(key == section or key.startswith(f"{section}.") for key in self.user_keys)


# A finding's text and what to type; None where the rule does not apply.
RuleResult = tuple[str, str] | None


@dataclass(frozen=True)
class Rule:
    """A named check. `symptom` is what users see when they run into it."""

    name: str
    severity: str
    symptom: str
    check: Callable[[Case], RuleResult]
    keys: tuple[str, ...] = ()

    def find(self, case: Case) -> Finding | None:
        result = self.check(case)
        return None if result is None else Finding(self.name, self.severity, *result, keys=self.keys)


def find_all(case: Case) -> list[Finding]:
    """The findings of all rules, worst first."""
    from burnish.doctor.advice import ADVICE
    from burnish.doctor.picture_rules import PICTURE_RULES
    from burnish.doctor.troubleshooting import TROUBLESHOOTING
    from burnish.doctor.turns import TURN_RULES

    rules = (*TROUBLESHOOTING, *ADVICE, *TURN_RULES, *PICTURE_RULES)
    findings = [finding for rule in rules if (finding := rule.find(case)) is not None]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
