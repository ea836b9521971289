"""Rehearsal: the result of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from burnish.errors import ExitStatus
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

PASSED, BROKEN, UNREADABLE = ExitStatus.OK, ExitStatus.ERROR, ExitStatus.USAGE
REFUSED, UNSUPPORTED = ExitStatus.REFUSED, ExitStatus.UNSUPPORTED
VERDICTS = {
    PASSED: "passed",
    BROKEN: "would break",
    UNREADABLE: "not readable",
    REFUSED: "refused: `burnish run` does not start with these settings",
    UNSUPPORTED: "not supported yet: `burnish run` does not start with these settings",
}


@dataclass
class Rehearsal:
    """The verdict, the findings, and every change to the command."""

    dialect: str
    job: str
    steps: int
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)  # `burnish run` refuses them; the rehearsal left them out
    stand_ins: list[str] = field(default_factory=list)
    scaled: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    inert: list[str] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)
    ran: bool = False

    @property
    def exit_status(self) -> ExitStatus:
        if self.refused:
            return REFUSED
        if self.unsupported:
            return UNSUPPORTED
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
            "unsupported": self.unsupported,
            "stand_ins": self.stand_ins,
            "scaled": self.scaled,
            "folded": self.folded,
            "dropped": self.dropped,
            "left_out": self.left_out,
            "inert": self.inert,
            "not_tested": self.not_tested,
        }
