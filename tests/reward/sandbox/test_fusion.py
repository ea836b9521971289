"""FusionRunner against a stand-in service that runs programs, and against services that misbehave."""

import threading
import time

import pytest

from burnish.errors import UserError
from burnish.reward.sandbox.fusion import FusionRunner
from burnish.reward.sandbox.settings import SandboxSettings

from .service import run_payload, serving

SUM = "print(sum(map(int, input().split())))"
FINE = {"status": "Success", "run_result": {"status": "Finished", "stdout": "3\n", "stderr": "", "return_code": 0}}


def run_remotely(server, code=SUM, stdin="1 2", *, language="python", **settings):
    runner = FusionRunner(SandboxSettings(url=server.url, **{"timeout": 2.0} | settings), pause=0.01)
    with runner.prepare(code, language) as run:
        return run(stdin)


def respond(response, **options):
    """The client's result for this response, and the number of requests."""
    with serving(lambda payload, count: response) as server:
        result = run_remotely(server, **options)
        return result, len(server.payloads)


def test_a_program_runs_on_the_service():
    with serving() as server:
        result = run_remotely(server, service_memory_mb=512)
    assert result.ok and result.stdout == "3\n"
    sent = server.payloads[0]
    assert {name: sent[name] for name in ("code", "stdin", "language", "run_timeout", "memory_limit_MB")} == {
        "code": SUM, "stdin": "1 2", "language": "python", "run_timeout": 2.0, "memory_limit_MB": 512,
    }  # fmt: skip
    assert sent["compile_timeout"] > 0


@pytest.mark.parametrize(
    ("code", "status", "killed"),
    [("raise SystemExit(3)", 3, None), ("while True: pass", 1, "time"), ("x = bytearray(2**31)", 1, None)],
)
def test_a_failing_program(code, status, killed):
    with serving() as server:
        result = run_remotely(server, code, timeout=0.4)
    assert (result.status, result.killed, result.problem) == (status, killed, None)


def test_lone_surrogates_are_replaced():
    with serving() as server:
        assert run_remotely(server, "print(len(input()))", "\ud800é").stdout == "2\n"


@pytest.mark.parametrize("first", [(504, b"", {}), None], ids=["gateway timeout", "hung up"])
def test_retries(first):
    with serving(lambda payload, count: first if count < 3 else run_payload(payload)) as server:
        assert run_remotely(server).ok
        assert len(server.payloads) == 3


def test_retries_are_limited():
    result, num_requests = respond((504, b"", {}))
    assert num_requests == 4 and "HTTP status 504, 4 times" in result.problem and not result.ok


def test_connection_refused():
    with serving() as server:
        pass
    assert "the sandbox service failed" in run_remotely(server).problem


BAD = {
    "an error of its own": (500, b"", {}),
    "a wrong address": (404, b"", {}),
    "not JSON": b"<html>",
    "half of it": b'{"status": "Succ',
    "no object": [1, 2],
    "too deep": b"[" * 100_000,
    "a huge number": b'{"status": ' + b"9" * 5000 + b"}",
    "no status": {"run_result": FINE["run_result"]},
    "a strange status": FINE | {"status": ["Success"]},
    "its own failure": {"status": "SandboxError", "message": "x" * 5000},
    "no result": {"status": "Success", "run_result": None},
    "a list for a result": {"status": "Success", "run_result": [1]},
    "far too long": FINE | {"message": "x" * 3_000_000},
    "a redirect": (302, b"", {"Location": "http://127.0.0.1:9/"}),
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("response", BAD.values(), ids=BAD.keys())
def test_an_invalid_response_is_not_retried(response):
    result, num_requests = respond(response)
    assert result.problem.startswith("the sandbox service failed") and len(result.problem) < 700
    assert num_requests == 1 and not result.ok


ODD = {
    "no status of the run": {"stdout": "3\n", "return_code": 0},
    "a return code that is a text": {"status": "Finished", "stdout": "3\n", "return_code": "0"},
    "true for a return code": {"status": "Finished", "stdout": "3\n", "return_code": False},
    "output that is a number": {"status": "Finished", "stdout": 3, "stderr": {}, "return_code": 1},
    "an error": {"status": "Error", "stdout": "3\n", "return_code": 0},
}


@pytest.mark.parametrize("result", ODD.values(), ids=ODD.keys())
def test_an_invalid_run_result_is_a_failed_run(result):
    result, _ = respond({"status": "Success", "run_result": result})
    assert result.status == 1 and result.problem is None and isinstance(result.stdout, str)


def test_output_is_truncated():
    result, _ = respond({"status": "Success", "run_result": FINE["run_result"] | {"stdout": "x" * 3000}}, output_kb=1)
    assert result.killed == "output" and len(result.stdout) == 1024


def test_a_failed_compilation_counts():
    compiled = {"status": "Finished", "return_code": 1, "stdout": "", "stderr": "no such type"}
    result, _ = respond({"status": "Failed", "compile_result": compiled, "run_result": None})
    assert result.status == 1 and result.stderr == "no such type"


def test_check_runs_a_test_program():
    with serving() as server:
        assert server.url in FusionRunner(SandboxSettings(url=server.url)).check()
    with serving(lambda payload, count: FINE) as server, pytest.raises(UserError, match="6 \\* 7\\) gave '3"):
        FusionRunner(SandboxSettings(url=server.url)).check()


@pytest.mark.parametrize("url", ["ftp://host/run", "host:8080", "http://", "file:///etc/passwd"])
def test_the_url_is_validated(url):
    with pytest.raises(UserError, match=r"sandbox_fusion\.url"):
        FusionRunner(SandboxSettings(url=url))


def test_cancelling_stops_the_retries():
    cancel_event = threading.Event()
    threading.Timer(0.2, cancel_event.set).start()
    with serving(lambda payload, count: (504, b"", {})) as server:
        started = time.monotonic()
        with FusionRunner(SandboxSettings(url=server.url), cancel_event, pause=30).prepare(SUM) as run:
            assert run("1 2").problem is not None
    assert time.monotonic() - started < 5
