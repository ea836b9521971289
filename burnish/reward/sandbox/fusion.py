"""Client of SandboxFusion, a service that runs programs: one HTTP request per test case."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from burnish.errors import UserError
from burnish.reward.sandbox.result import OUTPUT, TIME, RunResult
from burnish.reward.sandbox.runner import RunFn
from burnish.reward.sandbox.settings import SandboxSettings

_KEY = "reward_model.sandbox_fusion.url"
_ATTEMPTS = 4
_PAUSE = 1.0  # seconds before the second attempt; each further pause is one second longer
_QUEUE_SECONDS = 30.0  # in addition to compiling and running, for the service's queue
_COMPILE_SECONDS = 30.0
_GATEWAY_TIMEOUT = 504
_CHUNK = 65536
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
        self._url = settings.url or ""
        if urlsplit(self._url).scheme not in ("http", "https") or not urlsplit(self._url).netloc:
            raise UserError("not an http(s) URL", key=_KEY, value=settings.url, hint=f"{_KEY}=http://...")
        self._opener = urllib.request.build_opener(_NoRedirect)

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
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(self._url, body, headers, method="POST")
        timeout = _COMPILE_SECONDS + self.settings.timeout + _QUEUE_SECONDS
        try:
            with self._opener.open(request, timeout=timeout) as response:
                return self._body(response, time.monotonic() + timeout)
        except urllib.error.HTTPError as error:
            error.close()
            raise (_RetryableError if error.code == _GATEWAY_TIMEOUT else _ServiceError)(
                f"HTTP status {error.code}"
            ) from error
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            raise _RetryableError(f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]) from error

    def _body(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        """Read the body, up to the maximum size of stdout and stderr and the deadline."""
        limit = 2 * _MAX_ESCAPE * self.settings.output_kb * 1024 + _CHUNK
        body = b""
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > limit:
                raise _ResponseTooLong
            if time.monotonic() > deadline:
                raise _RetryableError("the response was not complete in time")
        return body

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


class _ResponseTooLong(_ServiceError):
    def __init__(self) -> None:
        super().__init__("the response is longer than sandbox.output_kb allows")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Do not follow redirects: only the configured URL may respond."""

    def redirect_request(self, *arguments: Any) -> None:
        return None
