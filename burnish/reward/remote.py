"""Remote: the pool for `reward.remote_url=http://...`. Threads of this process ask the reward servers in turn."""

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
from burnish.reward.protocol import read_answer
from burnish.reward.sample import INVALID, RAISED, TIMED_OUT, Outcome, Sample
from burnish.reward.settings import RewardSettings

_THREADS = 64
_MOST_BYTES = 2**20  # of one answer
_READ_BYTES = 2**16
_SAID = 200  # characters of a server's error that are repeated


class Remote:
    """The same two methods as Pool. Samples go to the servers in turn; a server that fails is followed by the next."""

    def __init__(self, settings: RewardSettings, finish: Callable[[Job, Outcome], None]) -> None:
        self.notices: list[str] = []
        self._settings = settings
        self._finish = finish
        self._turns = itertools.count()
        self._queue: queue.SimpleQueue[tuple[int, Job]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _open and _threads
        self._open: set[Job] = set()
        self._closing = threading.Event()
        self._threads = 0

    def put(self, job: Job) -> None:
        """Queue a job; returns at once."""
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("the scorer is closed")
            self._open.add(job)
            self._queue.put((next(self._turns), job))
            if self._threads < min(_THREADS, len(self._open)):
                # Daemons: a server that does not answer must not keep the program from ending.
                threading.Thread(target=self._serve, name=f"burnish-remote-{self._threads}", daemon=True).start()
                self._threads += 1

    def close(self) -> None:
        """Jobs not done yet are cancelled; nobody waits for a server."""
        with self._lock:
            self._closing.set()
            left, self._open = self._open, set()
        for job in left:
            if not job.future.cancel():
                with contextlib.suppress(InvalidStateError):
                    job.future.set_exception(RuntimeError("the scorer was closed before this sample was scored"))

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                turn, job = self._queue.get(timeout=1.0)
            except queue.Empty:
                continue
            if not job.future.set_running_or_notify_cancel():
                outcome = None
            else:
                outcome = self._outcome(job.sample, turn)
            with self._lock:
                wanted = job in self._open
                self._open.discard(job)
            if wanted and outcome is not None:
                self._finish(job, outcome)

    def _outcome(self, sample: Sample, turn: int) -> Outcome:
        """The first good answer; after the last try, what went wrong with each server."""
        urls, problems, kind = self._settings.remote_url, {}, RAISED
        for attempt in range(self._settings.remote_retries):
            if attempt and self._closing.wait(self._settings.remote_wait):
                break
            url = urls[(turn + attempt) % len(urls)]
            try:
                outcome = read_answer(self._ask(url, sample), url)
            except TimeoutError:
                kind, text = TIMED_OUT, f"no answer within {self._settings.remote_timeout:g} s"
            except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
                kind, text = RAISED, f"{type(error).__name__}: {error}"
            else:
                if outcome.kind is None:
                    return outcome
                kind, text = INVALID, outcome.text.removesuffix(f" in {url}")
            problems[url] = text[:_SAID]
        told = "; ".join(f"{text} from {url}" for url, text in problems.items())
        return Outcome(kind=kind, text=f"{told} (after {self._settings.remote_retries} tries)")

    def _ask(self, url: str, sample: Sample) -> Any:
        """POST one sample, read one JSON answer, within the time limit as a whole."""
        until = time.monotonic() + self._settings.remote_timeout
        asked = {"query": [sample.query], "prompts": [sample.prompt], "labels": [sample.ground_truth]}
        body = json.dumps(asked, default=_plain).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._settings.remote_timeout) as answer:
                return json.loads(_read_within(answer, until))
        except urllib.error.HTTPError as error:
            said = error.read(_SAID).decode("utf-8", "replace").strip()
            raise ValueError(f"HTTP {error.code} {said}") from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise error.reason from error
            raise OSError(str(error.reason)) from error


def _read_within(answer: http.client.HTTPResponse, until: float) -> bytes:
    """All of it. A server that sends byte after byte for ever, or more than any answer has, is cut off."""
    read = b""
    while piece := answer.read1(_READ_BYTES):
        read += piece
        if len(read) > _MOST_BYTES:
            raise ValueError(f"an answer of more than {_MOST_BYTES / 2**20:.0f} MiB")
        if time.monotonic() > until:
            raise TimeoutError
    return read


def _plain(value: Any) -> Any:
    """Labels from parquet files may be arrays; other objects go as their text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def check_urls(urls: tuple[str, ...]) -> None:
    """UserError unless all are http(s) addresses."""
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise UserError(
                "is neither a Python file nor an address",
                key="reward.remote_url",
                value=url,
                allowed="one file.py with reward_func, or http(s) addresses",
                hint="reward.remote_url=http://host:5000/get_reward",
            )
