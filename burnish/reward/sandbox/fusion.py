"""A client of SandboxFusion, a service that runs programs: one HTTP request per test case."""

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
from burnish.reward.sandbox.ran import OUTPUT, TIME, Ran
from burnish.reward.sandbox.runner import Run
from burnish.reward.sandbox.settings import SandboxSettings

_KEY = "reward_model.sandbox_fusion.url"
_ATTEMPTS = 4
_PAUSE = 1.0  # seconds before the second attempt; one more before each further one
_SPARE = 30.0  # seconds beyond compiling and running: the service may have a queue
_COMPILE_SECONDS = 30.0
_GATEWAY_TIMEOUT = 504
_CHUNK = 65536
_ESCAPED = 6  # bytes that JSON may need for one of a program's output
_MESSAGE_MOST = 500


class Service:
    """The Runner that asks a service. What the service answers is read with care: it may be broken, or hostile."""

    def __init__(
        self, settings: SandboxSettings, abandon: threading.Event | None = None, pause: float = _PAUSE
    ) -> None:
        self.settings = settings
        self.abandon = abandon or threading.Event()
        self.pause = pause
        if urlsplit(settings.url).scheme not in ("http", "https") or not urlsplit(settings.url).netloc:
            raise UserError("this is no address of a service", key=_KEY, value=settings.url, hint=f"{_KEY}=http://...")
        self._opener = urllib.request.build_opener(_NoRedirect)

    def check(self) -> str:
        """Let it compute something before a run depends on it."""
        with self.prepared("print(6 * 7)") as run:
            ran = run("")
        if not ran.ok or ran.stdout.strip() != "42":
            why = ran.problem or ran.stderr.strip()[-_MESSAGE_MOST:] or f"6 * 7 gave {ran.stdout[:80]!r}"
            raise UserError(f"the sandbox service does not run programs: {why}", key=_KEY, value=self.settings.url)
        return f"sandbox: programs run at {self.settings.url}, at most {self.settings.max_concurrent} at once"

    @contextlib.contextmanager
    def prepared(self, code: str, language: str = "python") -> Iterator[Run]:
        """Every run sends the code anew: the service keeps nothing."""
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

    def _run(self, payload: dict[str, Any]) -> Ran:
        """Ask until there is an answer: a service that is busy or away is asked again, later and later."""
        began = time.monotonic()
        problem = "the run was given up"
        for attempt in range(_ATTEMPTS):
            if self.abandon.wait(attempt * self.pause):
                break
            try:
                return self._read(self._post(payload), time.monotonic() - began)
            except _Again as error:
                problem = f"{error}, {attempt + 1} times"
            except _NoAnswer as error:
                problem = str(error)
                break
        return Ran(seconds=time.monotonic() - began, problem=f"the sandbox service gave no answer: {problem}")

    def _post(self, payload: dict[str, Any]) -> bytes:
        # Half a surrogate pair is ASCII as JSON escapes it, but the service could not read it back.
        clean = {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in payload.items()}
        body = json.dumps(clean).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(self.settings.url, body, headers, method="POST")
        patience = _COMPILE_SECONDS + self.settings.timeout + _SPARE
        try:
            with self._opener.open(request, timeout=patience) as response:
                return self._body(response, time.monotonic() + patience)
        except urllib.error.HTTPError as error:
            error.close()
            raise (_Again if error.code == _GATEWAY_TIMEOUT else _NoAnswer)(f"HTTP status {error.code}") from error
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            raise _Again(f"{type(error).__name__}: {error}"[:_MESSAGE_MOST]) from error

    def _body(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        """All of it, unless it is longer than two outputs can be or comes too slowly."""
        most = 2 * _ESCAPED * self.settings.output_kb * 1024 + _CHUNK
        body = b""
        while chunk := response.read1(_CHUNK):
            body += chunk
            if len(body) > most:
                raise _TooLong
            if time.monotonic() > deadline:
                raise _Again("the answer did not end")
        return body

    def _read(self, body: bytes, seconds: float) -> Ran:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _NoAnswer("its answer is not JSON") from error
        if not isinstance(answer, Mapping):
            raise _NoAnswer("its answer is not a JSON object")
        if answer.get("status") not in ("Success", "Failed"):
            raise _NoAnswer(_text(answer.get("message"))[:_MESSAGE_MOST] or "it says SandboxError")
        compiled, run = (_part(answer.get(name)) for name in ("compile_result", "run_result"))
        ran = compiled if compiled is not None and not compiled.ok else run
        if ran is None:
            raise _NoAnswer("its answer has no run_result")
        most = self.settings.output_kb * 1024
        if len(ran.stdout) > most or len(ran.stderr) > most:
            return Ran(ran.stdout[:most], ran.stderr[:most], ran.status, seconds, OUTPUT)
        return Ran(ran.stdout, ran.stderr, ran.status, seconds, ran.killed)


def _part(result: Any) -> Ran | None:
    """One of the two phases. A status that we do not know is a failure."""
    if not isinstance(result, Mapping):
        return None
    status = result.get("return_code")
    if result.get("status") != "Finished" or type(status) is not int:
        status = 1
    killed = TIME if result.get("status") == "TimeLimitExceeded" else None
    return Ran(_text(result.get("stdout")), _text(result.get("stderr")), status, killed=killed)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


class _Again(Exception):
    """No answer, but there may be one later."""


class _NoAnswer(Exception):
    """No answer, and asking again would give none either."""


class _TooLong(_NoAnswer):
    def __init__(self) -> None:
        super().__init__("its answer is longer than sandbox.output_kb allows")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Answers come from the address that was given, or not at all."""

    def redirect_request(self, *arguments: Any) -> None:
        return None
