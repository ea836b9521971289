"""RemotePool: the pool for `reward.remote_url=http://...`. Threads of this process send requests to reward servers."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from typing import Any

from burnish.errors import UserError
from burnish.reward.process import Job
from burnish.reward.protocol import parse_response
from burnish.reward.sample import INVALID, RAISED, TIMED_OUT, Outcome, Sample
from burnish.reward.settings import RewardSettings

_MAX_THREADS = 64
_MAX_RESPONSE_BYTES = 2**20  # of one response
_READ_BYTES = 2**16
_MAX_ERROR_TEXT = 200  # characters of a server's error message


class RemotePool:
    """Same interface as WorkerPool. Samples are distributed round-robin; a retry goes to the next server."""

    def __init__(self, settings: RewardSettings, finish: Callable[[Job, Outcome], None]) -> None:
        self.notices: list[str] = []
        self._settings = settings
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
            except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
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
        deadline = time.monotonic() + self._settings.remote_timeout
        payload = {"query": [sample.query], "prompts": [sample.prompt], "labels": [sample.ground_truth]}
        body = json.dumps(payload, default=_plain).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._settings.remote_timeout) as response:
                return json.loads(_read_body(response, deadline))
        except urllib.error.HTTPError as error:
            text = error.read(_MAX_ERROR_TEXT).decode("utf-8", "replace").strip()
            raise ValueError(f"HTTP {error.code} {text}") from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise error.reason from error
            raise OSError(str(error.reason)) from error


def _read_body(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """Read the whole body, but not past the deadline or the size limit."""
    body = b""
    while chunk := response.read1(_READ_BYTES):
        body += chunk
        if len(body) > _MAX_RESPONSE_BYTES:
            raise ValueError(f"the response exceeds {_MAX_RESPONSE_BYTES / 2**20:.0f} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError
    return body


def _plain(value: Any) -> Any:
    """Arrays from parquet files as lists; other objects as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def check_urls(urls: tuple[str, ...]) -> None:
    """Raise UserError unless all are http(s) URLs."""
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise UserError(
                "neither a Python file nor an http(s) URL",
                key="reward.remote_url",
                value=url,
                allowed="one Python file that defines reward_func, or http(s) URLs",
                hint="reward.remote_url=http://host:5000/get_reward",
            )
