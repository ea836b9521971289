"""Code answers: the share of test cases that a program passes. It runs in a sandbox, never in a process of ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from burnish.reward.cases import Case, extract_code, read_cases
from burnish.reward.sandbox.ran import MEMORY, OUTPUT, PROCESSES, TIME, Ran
from burnish.reward.sandbox.runner import choose_runner
from burnish.reward.sandbox.settings import SandboxSettings

# What became of a case, one letter each; `cases` among the extras strings them together.
PASSED, WRONG, FAILED, NO_ANSWER = "P", "W", "E", "S"
_LIMITS = {TIME: "T", MEMORY: "M", OUTPUT: "O", PROCESSES: FAILED}


def code(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    """The share of the first ten cases that the response's last Python block passes, run one after the other."""
    settings = SandboxSettings()
    runner = choose_runner(settings)
    runner.check()
    language, cases = read_cases(ground_truth, settings.max_cases)
    program = extract_code(solution_str, language)
    if program is None:
        return result_of([])
    with runner.prepared(cases[0].around(program), language) as run:
        return result_of(letter_of(case, run(case.stdin)) for case in cases)


def letter_of(case: Case, ran: Ran) -> str:
    """What became of one run."""
    if ran.problem is not None:
        return NO_ANSWER
    if ran.killed is not None:
        return _LIMITS[ran.killed]
    if not ran.ok:
        return FAILED
    return PASSED if case.is_right(ran.stdout) else WRONG


def result_of(letters: Iterable[str]) -> dict[str, Any]:
    """Score, `acc` (all passed) and the letters; no case at all is no code at all, and scores 0."""
    found = "".join(letters)
    passed = found.count(PASSED)
    return {"score": passed / len(found) if found else 0.0, "acc": bool(found) and passed == len(found), "cases": found}
