"""Rehearsal: the result of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from burnish.rehearsal.plan import Finding

# What no rehearsal tests.
ALWAYS = {
    "train": (
        "the real weights and their responses",
        "speed and memory on the real machines",
        "several processes and their communication",
    ),
    "sft": ("the real weights", "speed and memory on the real machines", "several processes and their communication"),
    "generate": ("the real weights and their responses", "speed and memory on the real machines"),
    "eval": ("the rows after the first few",),
}
ENGINE = "the configured engine"
LENGTHS = "prompt lengths (the real tokenizer is not local)"

PASSED, BROKEN, UNREADABLE, REFUSED = 0, 1, 2, 3
VERDICTS = {PASSED: "passed", BROKEN: "would break", UNREADABLE: "not readable", REFUSED: "refused"}


@dataclass
class Rehearsal:
    """The verdict, the findings, and every change to the command."""

    dialect: str
    job: str
    steps: int
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)
    scaled: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    inert: list[str] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)
    ran: bool = False

    @property
    def exit_status(self) -> int:
        if self.refused:
            return REFUSED
        return BROKEN if any(finding.breaks for finding in self.findings) else PASSED

    @property
    def passed(self) -> bool:
        return self.exit_status == PASSED

    @property
    def verdict(self) -> str:
        return VERDICTS[self.exit_status]

    def to_json(self) -> dict[str, Any]:
        """As `rehearse --json` prints it."""
        return {
            "dialect": self.dialect,
            "job": self.job,
            "steps": self.steps,
            "passed": self.passed,
            "seconds": round(self.seconds, 2),
            "findings": [
                {"where": finding.where, "text": finding.text, "breaks": finding.breaks} for finding in self.findings
            ],
            "refused": self.refused,
            "stand_ins": self.stand_ins,
            "scaled": self.scaled,
            "folded": self.folded,
            "dropped": self.dropped,
            "inert": self.inert,
            "not_tested": self.not_tested,
        }
