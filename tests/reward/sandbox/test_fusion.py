"""The client of a sandbox service, against one that runs programs and against ones that misbehave."""

import threading
import time

import pytest

from burnish.errors import UserError
from burnish.reward.sandbox.fusion import Service
from burnish.reward.sandbox.settings import SandboxSettings

from .service import run_payload, serving

SUM = "print(sum(map(int, input().split())))"
FINE = {"status": "Success", "run_result": {"status": "Finished", "stdout": "3\n", "stderr": "", "return_code": 0}}


def ask(server, code=SUM, stdin="1 2", *, language="python", **settings):
    service = Service(SandboxSettings(url=server.url, **{"timeout": 2.0} | settings), pause=0.01)
    with service.prepared(code, language) as run:
        return run(stdin)


def answered(answer, **how):
    """How the client takes this one answer."""
    with serving(lambda payload, count: answer) as server:
        ran = ask(server, **how)
        return ran, len(server.payloads)


def test_a_program_is_run_there():
    with serving() as server:
        ran = ask(server, service_memory_mb=512)
    assert ran.ok and ran.stdout == "3\n"
    sent = server.payloads[0]
    assert {name: sent[name] for name in ("code", "stdin", "language", "run_timeout", "memory_limit_MB")} == {
        "code": SUM, "stdin": "1 2", "language": "python", "run_timeout": 2.0, "memory_limit_MB": 512,
    }  # fmt: skip
    assert sent["compile_timeout"] > 0


@pytest.mark.parametrize(
    ("code", "status", "killed"),
    [("raise SystemExit(3)", 3, None), ("while True: pass", 1, "time"), ("x = bytearray(2**31)", 1, None)],
)
def test_a_program_that_fails_there_fails_here(code, status, killed):
    with serving() as server:
        ran = ask(server, code, timeout=0.4)
    assert (ran.status, ran.killed, ran.problem) == (status, killed, None)


def test_text_that_no_encoding_has_is_sent():
    with serving() as server:
        assert ask(server, "print(len(input()))", "\ud800é").stdout == "2\n"


@pytest.mark.parametrize("first", [(504, b"", {}), None], ids=["gateway timeout", "hung up"])
def test_a_service_that_is_away_is_asked_again(first):
    with serving(lambda payload, count: first if count < 3 else run_payload(payload)) as server:
        assert ask(server).ok
        assert len(server.payloads) == 3


def test_a_service_that_stays_away_gives_a_problem():
    ran, asked = answered((504, b"", {}))
    assert asked == 4 and "HTTP status 504, 4 times" in ran.problem and not ran.ok


def test_a_port_that_nobody_listens_on_gives_a_problem():
    with serving() as server:
        pass
    assert "gave no answer" in ask(server).problem


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
    "a way elsewhere": (302, b"", {"Location": "http://127.0.0.1:9/"}),
    "binary": bytes(range(256)),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD.keys())
def test_a_bad_answer_is_a_problem_and_not_asked_for_again(answer):
    ran, asked = answered(answer)
    assert ran.problem.startswith("the sandbox service gave no answer") and len(ran.problem) < 700
    assert asked == 1 and not ran.ok


ODD = {
    "no status of the run": {"stdout": "3\n", "return_code": 0},
    "a return code that is a text": {"status": "Finished", "stdout": "3\n", "return_code": "0"},
    "true for a return code": {"status": "Finished", "stdout": "3\n", "return_code": False},
    "output that is a number": {"status": "Finished", "stdout": 3, "stderr": {}, "return_code": 1},
    "an error": {"status": "Error", "stdout": "3\n", "return_code": 0},
}


@pytest.mark.parametrize("result", ODD.values(), ids=ODD.keys())
def test_an_odd_result_is_a_failed_run(result):
    ran, _ = answered({"status": "Success", "run_result": result})
    assert ran.status == 1 and ran.problem is None and isinstance(ran.stdout, str)


def test_more_output_than_allowed_is_cut():
    ran, _ = answered({"status": "Success", "run_result": FINE["run_result"] | {"stdout": "x" * 3000}}, output_kb=1)
    assert ran.killed == "output" and len(ran.stdout) == 1024


def test_a_failed_compilation_counts():
    compiled = {"status": "Finished", "return_code": 1, "stdout": "", "stderr": "no such type"}
    ran, _ = answered({"status": "Failed", "compile_result": compiled, "run_result": None})
    assert ran.status == 1 and ran.stderr == "no such type"


def test_check_lets_it_compute():
    with serving() as server:
        assert server.url in Service(SandboxSettings(url=server.url)).check()
    with serving(lambda payload, count: FINE) as server, pytest.raises(UserError, match="6 \\* 7 gave '3"):
        Service(SandboxSettings(url=server.url)).check()


@pytest.mark.parametrize("url", ["ftp://host/run", "host:8080", "http://", "file:///etc/passwd"])
def test_an_address_must_be_one(url):
    with pytest.raises(UserError, match=r"sandbox_fusion\.url"):
        Service(SandboxSettings(url=url))


def test_waiting_ends_when_the_run_is_given_up():
    abandon = threading.Event()
    threading.Timer(0.2, abandon.set).start()
    with serving(lambda payload, count: (504, b"", {})) as server:
        started = time.monotonic()
        with Service(SandboxSettings(url=server.url), abandon, pause=30).prepared(SUM) as run:
            assert run("1 2").problem is not None
    assert time.monotonic() - started < 5
