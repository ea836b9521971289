"""Client of SandboxFusion, a service that runs programs: one HTTP request per test case."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from burnish.errors import UserError
from burnish.http import Client, ResponseTooLong
from burnish.isolation.limits import OUTPUT, TIME
from burnish.reward.sandbox.result import RunResult
from burnish.reward.sandbox.runner import RunFn
from burnish.reward.sandbox.settings import SandboxSettings

_KEY = "reward_model.sandbox_fusion.url"
_ATTEMPTS = 4
_PAUSE = 1.0  # seconds before the second attempt; each further pause is one second longer
_QUEUE_SECONDS = 30.0  # in addition to compiling and running, for the service's queue
_COMPILE_SECONDS = 30.0
_GATEWAY_TIMEOUT = 504
_OTHER_BYTES = 65536  # of a response besides the program's output
_MAX_ESCAPE = 6  # JSON bytes per byte of program output, at most
_MAX_MESSAGE = 500


class FusionRunner:
    """A Runner that uses a service. Responses are validated: the service may be broken or hostile."""

    def __init__(
        self, settings: SandboxSettings, cancel_event: threading.Event | None = None, pause: float = _PAUSE
    ) -> None:
        self.settings = settings
        self.cancel_event = cancel_event or threading.Event()
        self.pause = pause
        try:
            self._client = Client(settings.url or "", use_proxy=True)
        except ValueError as error:
            raise UserError("not an http(s) URL", key=_KEY, value=settings.url, hint=f"{_KEY}=http://...") from error

    def check(self) -> str:
        """Run a test program, before training depends on the service."""
        with self.prepare("print(6 * 7)") as run:
            result = run("")
        if not result.ok or result.stdout.strip() != "42":
            reason = (
                result.problem or result.stderr.strip()[-_MAX_MESSAGE:] or f"print(6 * 7) gave {result.stdout[:80]!r}"
            )
            raise UserError(
                f"the sandbox service failed to run a test program: {reason}", key=_KEY, value=self.settings.url
            )
        return f"sandbox: programs run on {self.settings.url}, at most {self.settings.max_concurrent} concurrently"

    @contextlib.contextmanager
    def prepare(self, code: str, language: str = "python") -> Iterator[RunFn]:
        """Nothing to prepare: the service is stateless, so every run sends the code."""
        payload = {
            "code": code,
            "language": language,
            "compile_timeout": _COMPILE_SECONDS,
            "run_timeout": self.settings.timeout,
            "memory_limit_MB": self.settings.service_memory_mb,
            "files": {},
            "fetch_files": [],
        }
        yield lambda stdin: self._run(payload | {"stdin": stdin})

    def _run(self, payload: dict[str, Any]) -> RunResult:
        """Send the request, with retries and growing pauses while the service is busy or unreachable."""
        start = time.monotonic()
        problem = "cancelled"
        for attempt in range(_ATTEMPTS):
            if self.cancel_event.wait(attempt * self.pause):
                break
            try:
                return self._parse(self._post(payload), time.monotonic() - start)
            except _RetryableError as error:
                problem = f"{error}, {attempt + 1} times"
            except _ServiceError as error:
                problem = str(error)
                break
        return RunResult(seconds=time.monotonic() - start, problem=f"the sandbox service failed: {problem}")

    def _post(self, payload: dict[str, Any]) -> bytes:
        # JSON can escape lone surrogates, but the service could not decode them.
        clean = {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in payload.items()}
        body = json.dumps(clean).encode()
        timeout = _COMPILE_SECONDS + self.settings.timeout + _QUEUE_SECONDS
        limit = 2 * _MAX_ESCAPE * self.settings.output_kb * 1024 + _OTHER_BYTES  # of stdout and stderr
        try:
            response = self._client.call("POST", "", body, timeout=timeout, max_bytes=limit)
        except ResponseTooLong as error:
            raise _ServiceError("the response is longer than sandbox.output_kb allows") from error
        except TimeoutError as error:
            raise _RetryableError("the response was not complete in time") from error
        except (OSError, EOFError, ValueError) as error:
            raise _RetryableError(f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]) from error
        if not 200 <= response.status < 300:
            retryable = response.status == _GATEWAY_TIMEOUT
            raise (_RetryableError if retryable else _ServiceError)(f"HTTP status {response.status}")
        return response.body

    def _parse(self, body: bytes, seconds: float) -> RunResult:
        try:
            response = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _ServiceError("the response is not JSON") from error
        if not isinstance(response, Mapping):
            raise _ServiceError("the response is not a JSON object")
        if response.get("status") not in ("Success", "Failed"):
            raise _ServiceError(_text(response.get("message"))[:_MAX_MESSAGE] or "it reported SandboxError")
        compiled, run = (_parse_phase(response.get(name)) for name in ("compile_result", "run_result"))
        result = compiled if compiled is not None and not compiled.ok else run
        if result is None:
            raise _ServiceError("the response has no run_result")
        limit = self.settings.output_kb * 1024
        if len(result.stdout) > limit or len(result.stderr) > limit:
            return RunResult(result.stdout[:limit], result.stderr[:limit], result.status, seconds, OUTPUT)
        return RunResult(result.stdout, result.stderr, result.status, seconds, result.killed)


def _parse_phase(result: Any) -> RunResult | None:
    """Parse the result of compiling or running. An unknown status counts as failure."""
    if not isinstance(result, Mapping):
        return None
    status = result.get("return_code")
    if result.get("status") != "Finished" or type(status) is not int:
        status = 1
    killed = TIME if result.get("status") == "TimeLimitExceeded" else None
    return RunResult(_text(result.get("stdout")), _text(result.get("stderr")), status, killed=killed)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


class _RetryableError(Exception):
    """The request failed; a retry may succeed."""


class _ServiceError(Exception):
    """The request failed, and a retry would fail too."""
