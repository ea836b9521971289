"""Programs on this machine: what comes back, and what the weak way still holds."""

import shutil
import threading
import time
import uuid

import pytest

from burnish.errors import UserError
from burnish.reward.sandbox.inside import WEAK
from burnish.reward.sandbox.local import Machine
from burnish.reward.sandbox.settings import SandboxSettings

from .conftest import WAYS, processes_with


@pytest.mark.parametrize("way", WAYS)
def test_stdin_stdout_stderr_and_status(way, run_code):
    code = "import sys\nprint(input()[::-1])\nsys.stderr.write('aside')\nsys.exit(3)"
    ran = run_code(code, "hello\n", way=way)
    assert (ran.stdout, ran.stderr, ran.status, ran.killed, ran.problem) == ("olleh\n", "aside", 3, None, None)
    assert not ran.ok and 0 < ran.seconds < 5


@pytest.mark.parametrize("way", WAYS)
def test_any_text_goes_in_and_any_bytes_come_out(way, run_code):
    ran = run_code("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read() + b'\\xff')", "é\ud800\0", way=way)
    assert ran.stdout == "é?\0\ufffd"
    assert "SyntaxError" in run_code("print(\ud800", way=way).stderr


def test_long_input_is_read_to_its_end(run_code):
    assert run_code("import sys\nprint(len(sys.stdin.read()))", "x" * 5_000_000).stdout == "5000000\n"


def test_installed_packages_can_be_imported(run_code):
    assert run_code("import numpy\nprint(numpy.arange(4).sum())").stdout == "6\n"


def test_a_program_is_the_main_module(run_code):
    assert run_code("if __name__ == '__main__': print(__file__)").stdout == "main.py\n"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
def test_time_is_limited(code, way, run_code):
    started = time.monotonic()
    ran = run_code(code, way=way, timeout=0.4)
    assert ran.killed == "time" and time.monotonic() - started < 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_is_limited(stream, way, run_code):
    ran = run_code(f"import sys\nwhile True: sys.{stream}.write('x' * 1000)", way=way, output_kb=2)
    assert ran.killed == "output" and len(getattr(ran, stream)) == 2048


@pytest.mark.parametrize("way", WAYS)
def test_memory_is_limited(way, run_code):
    assert run_code("x = bytearray(2**30)", way=way, memory_mb=128).killed == "memory"
    assert run_code("x = bytearray(2**26); print('fits')", way=way, memory_mb=128).ok


def test_a_program_that_is_given_up_comes_back_at_once():
    abandon = threading.Event()
    with Machine(SandboxSettings(timeout=30), abandon).prepared("import time; time.sleep(30)") as run:
        threading.Timer(0.3, abandon.set).start()
        started = time.monotonic()
        run("")
    assert time.monotonic() - started < 5


def test_cpp_is_compiled_once_and_run_often():
    machine = Machine(SandboxSettings())
    if shutil.which("g++") is None:
        with pytest.raises(UserError, match="need g\\+\\+"), machine.prepared("", "cpp"):
            raise AssertionError
        return
    code = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }"
    with machine.prepared(code, "cpp") as run:
        assert [run(text).stdout for text in ("1 2", "3 4")] == ["3", "7"]
    with machine.prepared("int main( {", "cpp") as run:
        assert not run("").ok and "error" in run("").stderr


def test_an_unknown_language_is_refused():
    with pytest.raises(UserError, match="programming language"), Machine(SandboxSettings()).prepared("", "cobol"):
        raise AssertionError


def test_a_missing_compiler_is_named(monkeypatch):
    from burnish.reward.sandbox import languages

    monkeypatch.setattr(languages.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="need g\\+\\+"):
        languages.cpp.__wrapped__()


# the weak way


def test_weak_is_refused_unless_allowed(use_way):
    use_way(WEAK)
    with pytest.raises(UserError, match=r"sandbox\.allow_weak=true") as refused:
        Machine(SandboxSettings()).check()
    assert "reward_model.sandbox_fusion.url" in str(refused.value)
    assert "WEAK SANDBOX" in Machine(SandboxSettings(allow_weak=True)).check()


def test_weak_keeps_the_environment_and_its_folder_to_itself(run_code, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "x")
    first = run_code("import os\nprint(sorted(os.environ), os.listdir())\nopen('left', 'w').write('x')", way=WEAK)
    second = run_code("import os\nprint(sorted(os.environ), os.listdir())", way=WEAK)
    assert "SECRET_OF_THE_TEST" not in first.stdout and "['main.py']" in first.stdout
    assert first.stdout == second.stdout


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import os; os.kill(-1, 9)",
        "import os; os.kill(os.getppid(), 9)",
        "import os; os.setsid()",
        "import os; os.memfd_create('x')",
    ],
)
def test_weak_refuses_calls_that_reach_others(code, run_code):
    ran = run_code(code, way=WEAK)
    assert ran.status == 1 and "PermissionError: [Errno 1]" in ran.stderr


def test_weak_leaves_no_child_behind(run_code):
    mark = f"mark{uuid.uuid4().hex}"
    child = "[sys.executable, '-c', 'import time; time.sleep(60)', input()]"
    code = f"import subprocess, sys\nsubprocess.Popen({child})\nprint(1)"
    assert run_code(code, mark, way=WEAK).stdout == "1\n"
    deadline = time.monotonic() + 2
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_with(mark) == []
