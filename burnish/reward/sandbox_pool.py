"""SandboxPool: the pool for code rewards. Threads of this process run programs in the sandbox."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import InvalidStateError, ThreadPoolExecutor
from typing import Any

from burnish.errors import UserError
from burnish.reward.cases import Case, extract_code, read_cases
from burnish.reward.code import NOT_RUN, letter_of, prepare_all, result_of
from burnish.reward.process import Job
from burnish.reward.sample import DIED, INVALID, RAISED, Outcome
from burnish.reward.sandbox.runner import RunFn, choose_runner
from burnish.reward.sandbox.settings import SandboxSettings


class SandboxPool:
    """Same interface as WorkerPool. Test cases of all samples share the threads, so their number bounds parallelism.

    Programs do not run in reward workers: those are few, and their limits are meant for one function call.
    """

    def __init__(self, settings: SandboxSettings, finish: Callable[[Job, Outcome], None]) -> None:
        self._settings = settings
        self._finish = finish
        self._cancel_event = threading.Event()
        self._runner = choose_runner(settings, self._cancel_event)
        self.notice = self._runner.check()
        self._lock = threading.Lock()  # guards _open, and _cancel_event against a concurrent put
        self._open: set[Job] = set()
        self._threads = ThreadPoolExecutor(settings.num_parallel, thread_name_prefix="burnish-code")

    def put(self, job: Job) -> None:
        """Queue a job; returns at once."""
        with self._lock:
            if self._cancel_event.is_set():
                raise RuntimeError("the scorer is closed")
            self._open.add(job)
            self._threads.submit(self._start, job)

    def close(self) -> None:
        """Stop running programs and cancel pending jobs."""
        with self._lock:
            self._cancel_event.set()
        self._threads.shutdown(cancel_futures=True)
        for job in self._open:
            if not job.future.cancel():
                with contextlib.suppress(InvalidStateError):
                    job.future.set_exception(RuntimeError("the scorer was closed before this sample was scored"))
        self._open.clear()

    def _start(self, job: Job) -> None:
        """Parse the test cases, compile the program, and queue a run for each case."""
        if not job.future.set_running_or_notify_cancel():
            self._remove(job)
            return
        try:
            language, cases = read_cases(job.sample.ground_truth, self._settings.max_cases)
            code = extract_code(job.sample.solution_str, language)
            if code is None:
                return self._complete(job, _outcome(result_of([])))
            stack = contextlib.ExitStack()
            with stack:
                runs = stack.enter_context(prepare_all(self._runner, cases, code, language))
                evaluation = _CodeEvaluation(cases, runs, stack.pop_all())
        except UserError as error:
            return self._complete(job, Outcome(kind=INVALID, text=str(error)))
        except Exception as error:
            return self._complete(job, _sandbox_failure(error))
        for number in range(len(cases)):
            with contextlib.suppress(RuntimeError):  # closed meanwhile: `close` completes the job
                self._threads.submit(self._run_case, job, evaluation, number)

    def _run_case(self, job: Job, evaluation: _CodeEvaluation, number: int) -> None:
        try:
            outcome = evaluation.run_case(number)
        except Exception as error:
            outcome = _sandbox_failure(error)
        if outcome is not None:
            self._complete(job, outcome)

    def _complete(self, job: Job, outcome: Outcome) -> None:
        if self._remove(job) and not self._cancel_event.is_set():
            self._finish(job, outcome)
        elif self._cancel_event.is_set():
            with contextlib.suppress(InvalidStateError):
                job.future.set_exception(RuntimeError("the scorer was closed before this sample was scored"))

    def _remove(self, job: Job) -> bool:
        """Whether the job was still open: it is completed only once, even if several of its cases fail."""
        with self._lock:
            was_open = job in self._open
            self._open.discard(job)
            return was_open


class _CodeEvaluation:
    """The test cases of one sample and their results so far."""

    def __init__(self, cases: list[Case], runs: list[RunFn], resources: contextlib.ExitStack) -> None:
        self._cases = cases
        self._runs = runs
        self._resources = resources
        self._letters: list[str | None] = [None] * len(cases)
        self._problem = ""
        self._lock = threading.Lock()

    def run_case(self, number: int) -> Outcome | None:
        """Run one case; return the outcome of the sample if all cases are done."""
        result = self._runs[number](self._cases[number].stdin)
        letter = letter_of(self._cases[number], result)
        with self._lock:
            self._letters[number] = letter
            self._problem = self._problem or result.problem or ""
            if None in self._letters:
                return None
        self._resources.close()
        # A case that the sandbox could not run counts as failed; if it could run none, the response is not to blame.
        letters = [letter for letter in self._letters if letter is not None]
        if set(letters) == {NOT_RUN}:
            return Outcome(kind=DIED, text=self._problem)
        return _outcome(result_of(letters))


def _outcome(result: dict[str, Any]) -> Outcome:
    return Outcome(result["score"], {name: value for name, value in result.items() if name != "score"})


def _sandbox_failure(error: Exception) -> Outcome:
    return Outcome(kind=RAISED, text=f"the sandbox failed: {type(error).__name__}: {error}")
