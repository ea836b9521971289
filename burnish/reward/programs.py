"""Programs: the pool for code answers. Threads of this process that wait for programs in the sandbox."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import InvalidStateError, ThreadPoolExecutor
from typing import Any

from burnish.errors import UserError
from burnish.reward.cases import Case, extract_code, read_cases
from burnish.reward.code import NO_ANSWER, letter_of, result_of
from burnish.reward.process import Job
from burnish.reward.sample import DIED, INVALID, RAISED, Outcome
from burnish.reward.sandbox.runner import Run, choose_runner
from burnish.reward.sandbox.settings import SandboxSettings


class Programs:
    """The same two methods as Pool. Cases of all samples share the threads, so the limit holds for the whole run.

    Not in the reward workers: those are few, and have time and memory limits made for a function, not for ten programs.
    """

    def __init__(self, settings: SandboxSettings, finish: Callable[[Job, Outcome], None]) -> None:
        self._settings = settings
        self._finish = finish
        self._abandon = threading.Event()
        self._runner = choose_runner(settings, self._abandon)
        self.notice = self._runner.check()
        self._lock = threading.Lock()  # guards _open, and _abandon against a put at the same time
        self._open: set[Job] = set()
        self._threads = ThreadPoolExecutor(settings.at_once, thread_name_prefix="burnish-code")

    def put(self, job: Job) -> None:
        """Queue a job; returns at once."""
        with self._lock:
            if self._abandon.is_set():
                raise RuntimeError("the scorer is closed")
            self._open.add(job)
            self._threads.submit(self._begin, job)

    def close(self) -> None:
        """End the programs that run; jobs not done yet are cancelled."""
        with self._lock:
            self._abandon.set()
        self._threads.shutdown(cancel_futures=True)
        for job in self._open:
            if not job.future.cancel():
                with contextlib.suppress(InvalidStateError):
                    job.future.set_exception(RuntimeError("the scorer was closed before this sample was scored"))
        self._open.clear()

    def _begin(self, job: Job) -> None:
        """Read the cases, compile, and queue a run for each case."""
        if not job.future.set_running_or_notify_cancel():
            return self._forget(job)
        try:
            language, cases = read_cases(job.sample.ground_truth, self._settings.max_cases)
            code = extract_code(job.sample.solution_str, language)
            if code is None:
                return self._settle(job, _outcome(result_of([])))
            stack = contextlib.ExitStack()
            with stack:
                run = stack.enter_context(self._runner.prepared(cases[0].around(code), language))
                answer = _Answer(cases, run, stack.pop_all())
        except UserError as error:
            return self._settle(job, Outcome(kind=INVALID, text=str(error)))
        except Exception as error:
            return self._settle(job, _broken(error))
        for number in range(len(cases)):
            with contextlib.suppress(RuntimeError):  # closed meanwhile: `close` settles the job
                self._threads.submit(self._run_case, job, answer, number)

    def _run_case(self, job: Job, answer: _Answer, number: int) -> None:
        try:
            outcome = answer.run_case(number)
        except Exception as error:
            outcome = _broken(error)
        if outcome is not None:
            self._settle(job, outcome)

    def _settle(self, job: Job, outcome: Outcome) -> None:
        if self._forget(job) and not self._abandon.is_set():
            self._finish(job, outcome)
        elif self._abandon.is_set():
            with contextlib.suppress(InvalidStateError):
                job.future.set_exception(RuntimeError("the scorer was closed before this sample was scored"))

    def _forget(self, job: Job) -> bool:
        """True for the first to ask: a job is settled once, also where two of its cases break."""
        with self._lock:
            known = job in self._open
            self._open.discard(job)
            return known


class _Answer:
    """One sample's cases and what became of them so far."""

    def __init__(self, cases: list[Case], run: Run, resources: contextlib.ExitStack) -> None:
        self._cases = cases
        self._run = run
        self._resources = resources
        self._letters: list[str | None] = [None] * len(cases)
        self._problem = ""
        self._lock = threading.Lock()

    def run_case(self, number: int) -> Outcome | None:
        """Run one case; the outcome if it was the last one to be done."""
        ran = self._run(self._cases[number].stdin)
        letter = letter_of(self._cases[number], ran)
        with self._lock:
            self._letters[number] = letter
            self._problem = self._problem or ran.problem or ""
            if None in self._letters:
                return None
        self._resources.close()
        # A case without an answer counts as failed; but if no case has one, that is not the model's fault.
        if set(self._letters) == {NO_ANSWER}:
            return Outcome(kind=DIED, text=self._problem)
        return _outcome(result_of(self._letters))


def _outcome(result: dict[str, Any]) -> Outcome:
    return Outcome(result["score"], {name: value for name, value in result.items() if name != "score"})


def _broken(error: Exception) -> Outcome:
    return Outcome(kind=RAISED, text=f"the sandbox failed: {type(error).__name__}: {error}")
