"""RemotePool: the pool for `reward.remote_url=http://...`. Threads of this process send requests to reward servers."""

from __future__ import annotations

import contextlib
import itertools
import json
import queue
import threading
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from typing import Any

from burnish.errors import UserError
from burnish.http import Client
from burnish.reward.call import Inputs
from burnish.reward.process import Job
from burnish.reward.protocol import parse_response
from burnish.reward.sample import INVALID, RAISED, TIMED_OUT, Outcome, Sample
from burnish.reward.settings import RewardSettings

_MAX_THREADS = 64
_MAX_RESPONSE_BYTES = 2**20  # of one response
_MAX_ERROR_TEXT = 200  # characters of a server's error message


class RemotePool:
    """Same interface as WorkerPool. Samples are distributed round-robin; a retry goes to the next server."""

    def __init__(self, settings: RewardSettings, finish: Callable[[Job, Outcome], None]) -> None:
        self.notices: list[str] = []
        self.inputs = Inputs(texts=True)
        self._settings = settings
        self._clients = {url: Client(url, use_proxy=True) for url in settings.remote_url}
        self._finish = finish
        self._counter = itertools.count()
        self._queue: queue.SimpleQueue[tuple[int, Job]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _open and _num_threads
        self._open: set[Job] = set()
        self._closing = threading.Event()
        self._num_threads = 0

    def put(self, job: Job) -> None:
        """Queue a job; returns at once."""
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("the scorer is closed")
            self._open.add(job)
            self._queue.put((next(self._counter), job))
            if self._num_threads < min(_MAX_THREADS, len(self._open)):
                # Daemons, so that a server that does not respond cannot keep the process alive.
                threading.Thread(target=self._serve, name=f"burnish-remote-{self._num_threads}", daemon=True).start()
                self._num_threads += 1

    def close(self) -> None:
        """Cancel pending jobs, without waiting for servers."""
        with self._lock:
            self._closing.set()
            pending, self._open = self._open, set()
        for job in pending:
            if not job.future.cancel():
                with contextlib.suppress(InvalidStateError):
                    job.future.set_exception(RuntimeError("the scorer was closed before this sample was scored"))

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                number, job = self._queue.get(timeout=1.0)
            except queue.Empty:
                continue
            if not job.future.set_running_or_notify_cancel():
                outcome = None
            else:
                outcome = self._outcome(job.sample, number)
            with self._lock:
                is_open = job in self._open
                self._open.discard(job)
            if is_open and outcome is not None:
                self._finish(job, outcome)

    def _outcome(self, sample: Sample, number: int) -> Outcome:
        """The first valid response; after the last attempt, the error of each server."""
        urls, problems, kind = self._settings.remote_url, {}, RAISED
        for attempt in range(self._settings.remote_retries):
            if attempt and self._closing.wait(self._settings.remote_wait):
                break
            url = urls[(number + attempt) % len(urls)]
            try:
                outcome = parse_response(self._request(url, sample), url)
            except TimeoutError:
                kind, text = TIMED_OUT, f"no response within {self._settings.remote_timeout:g} s"
            except (OSError, EOFError, ValueError, RecursionError) as error:
                kind, text = RAISED, f"{type(error).__name__}: {error}"
            else:
                if outcome.kind is None:
                    return outcome
                kind, text = INVALID, outcome.text.removesuffix(f" in {url}")
            problems[url] = text[:_MAX_ERROR_TEXT]
        summary = "; ".join(f"{text} from {url}" for url, text in problems.items())
        return Outcome(kind=kind, text=f"{summary} (after {self._settings.remote_retries} attempts)")

    def _request(self, url: str, sample: Sample) -> Any:
        """POST one sample and read the JSON response, all within the time limit."""
        payload = {"query": [sample.query], "prompts": [sample.prompt], "labels": [sample.ground_truth]}
        body = json.dumps(payload, default=_plain).encode()
        timeout = self._settings.remote_timeout
        response = self._clients[url].call("POST", "", body, timeout=timeout, max_bytes=_MAX_RESPONSE_BYTES)
        if not 200 <= response.status < 300:
            text = response.body[:_MAX_ERROR_TEXT].decode("utf-8", "replace").strip()
            raise ValueError(f"HTTP {response.status} {text}")
        return json.loads(response.body)


def _plain(value: Any) -> Any:
    """Arrays from parquet files as lists; other objects as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def check_urls(urls: tuple[str, ...]) -> None:
    """Raise UserError unless all are http(s) URLs."""
    for url in urls:
        try:
            Client(url)
        except ValueError as error:
            raise UserError(
                "neither a Python file nor an http(s) URL",
                key="reward.remote_url",
                value=url,
                allowed="one Python file that defines reward_func, or http(s) URLs",
                hint="reward.remote_url=http://host:5000/get_reward",
            ) from error
