"""JSON over HTTP to a service that a user runs: bounded in time and size, with retries while it is busy."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

MAX_BYTES = 8 * 2**20  # of an answer
ATTEMPTS = 4
PAUSE = 1.0  # seconds before the second attempt; each further pause is one second longer
_CHUNK = 2**16
_RETRIED = (429, 500, 502, 503, 504)  # statuses that another attempt may not get
_MAX_MESSAGE = 500


class ServiceError(RuntimeError):
    """The service cannot be reached or does not answer as it should."""


class _RetryableError(ServiceError):
    """Another attempt may succeed."""


def post_json(url: str, payload: dict[str, Any], timeout: float) -> Any:
    """The answer of a service; ServiceError if it does not come within `timeout` seconds in all."""
    deadline = time.monotonic() + timeout
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _parse(_post(url, payload, deadline))
        except _RetryableError as error:
            wait = attempt * PAUSE
            if attempt == ATTEMPTS or time.monotonic() + wait >= deadline:
                raise ServiceError(f"{error} ({attempt} attempts)") from error
            time.sleep(wait)
    raise AssertionError("unreachable")


def _post(url: str, payload: dict[str, Any], deadline: float) -> bytes:
    # JSON can escape the lone surrogates of a model, but not every service can decode them.
    body = json.dumps(payload, ensure_ascii=False).encode("utf-8", "replace")
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with _OPENER.open(request, timeout=max(0.001, deadline - time.monotonic())) as response:
            return _body(response, deadline)
    except urllib.error.HTTPError as error:
        error.close()
        kind = _RetryableError if error.code in _RETRIED else ServiceError
        raise kind(f"HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
        reason = getattr(error, "reason", None) or error
        raise _RetryableError(f"{type(reason).__name__}: {reason}"[:_MAX_MESSAGE]) from error


def _body(response: http.client.HTTPResponse, deadline: float) -> bytes:
    body = bytearray()
    while chunk := response.read1(_CHUNK):
        body += chunk
        if len(body) > MAX_BYTES:
            raise ServiceError(f"the answer is longer than {MAX_BYTES / 2**20:g} MiB")
        if time.monotonic() > deadline:
            raise ServiceError("the answer was not complete in time")
    return bytes(body)


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ServiceError("the answer is not JSON") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Do not follow redirects: only the configured address may answer."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)
