"""Code reward: the fraction of test cases that a program passes. Programs run in the sandbox only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from burnish.isolation.limits import MEMORY, OUTPUT, PROCESSES, TIME
from burnish.reward.cases import Case, extract_code, read_cases
from burnish.reward.sandbox.result import RunResult
from burnish.reward.sandbox.runner import RunFn, Runner, choose_runner
from burnish.reward.sandbox.settings import SandboxSettings

# One letter per test case; the extra `cases` is their concatenation.
PASSED, WRONG, FAILED, NOT_RUN = "P", "W", "E", "S"
_LIMITS = {TIME: "T", MEMORY: "M", OUTPUT: "O", PROCESSES: FAILED}


def code(solution_str: str, ground_truth: Any) -> dict[str, Any]:
    """The fraction of the first ten cases that the last code block of the response passes, run sequentially."""
    settings = SandboxSettings()
    runner = choose_runner(settings)
    runner.check()
    language, cases = read_cases(ground_truth, settings.max_cases)
    program = extract_code(solution_str, language)
    if program is None:
        return result_of([])
    with prepare_all(runner, cases, program, language) as runs:
        return result_of(letter_of(case, run(case.stdin)) for case, run in zip(cases, runs, strict=True))


@contextlib.contextmanager
def prepare_all(runner: Runner, cases: Sequence[Case], code: str, language: str) -> Iterator[list[RunFn]]:
    """A function for each case that runs it; cases with the same wrapper share a compiled program."""
    with contextlib.ExitStack() as stack:
        wraps = dict.fromkeys(case.wrap for case in cases)
        runs = {wrap: stack.enter_context(runner.prepare(wrap(code), language)) for wrap in wraps}
        yield [runs[case.wrap] for case in cases]


def letter_of(case: Case, result: RunResult) -> str:
    """The letter for the result of one case."""
    if result.problem is not None:
        return NOT_RUN
    if result.killed is not None:
        return _LIMITS[result.killed]
    if not result.ok:
        return FAILED
    return PASSED if case.is_correct(result.stdout) else WRONG


def result_of(letters: Iterable[str]) -> dict[str, Any]:
    """Score, `acc` (all cases passed) and the letters. No letters, for a response without code, score 0."""
    cases = "".join(letters)
    passed = cases.count(PASSED)
    return {"score": passed / len(cases) if cases else 0.0, "acc": bool(cases) and passed == len(cases), "cases": cases}
