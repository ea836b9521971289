"""LocalRunner: results, limits, and what the weak mode still enforces."""

import shutil
import threading
import time
import uuid

import pytest

from burnish.errors import UserError
from burnish.isolation.plan import WEAK
from burnish.reward.sandbox.local import LocalRunner
from burnish.reward.sandbox.settings import SandboxSettings

from ...isolation.modes import PROGRAM_MODES as MODES
from ...isolation.modes import processes_with


@pytest.mark.parametrize("mode", MODES)
def test_stdin_stdout_stderr_and_status(mode, run_code):
    code = "import sys\nprint(input()[::-1])\nsys.stderr.write('aside')\nsys.exit(3)"
    result = run_code(code, "hello\n", mode=mode)
    assert (result.stdout, result.stderr, result.status, result.killed, result.problem) == (
        "olleh\n",
        "aside",
        3,
        None,
        None,
    )
    assert not result.ok and 0 < result.seconds < 5


@pytest.mark.parametrize("mode", MODES)
def test_any_text_goes_in_and_any_bytes_come_out(mode, run_code):
    result = run_code("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read() + b'\\xff')", "é\ud800\0", mode=mode)
    assert result.stdout == "é?\0\ufffd"
    assert "SyntaxError" in run_code("print(\ud800", mode=mode).stderr


def test_long_input_is_read_to_its_end(run_code):
    assert run_code("import sys\nprint(len(sys.stdin.read()))", "x" * 5_000_000).stdout == "5000000\n"


def test_installed_packages_can_be_imported(run_code):
    assert run_code("import numpy\nprint(numpy.arange(4).sum())").stdout == "6\n"


def test_a_program_is_the_main_module(run_code):
    assert run_code("if __name__ == '__main__': print(__file__)").stdout == "main.py\n"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
def test_time_is_limited(code, mode, run_code):
    started = time.monotonic()
    result = run_code(code, mode=mode, timeout=0.4)
    assert result.killed == "time" and time.monotonic() - started < 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_is_limited(stream, mode, run_code):
    result = run_code(f"import sys\nwhile True: sys.{stream}.write('x' * 1000)", mode=mode, output_kb=2)
    assert result.killed == "output" and len(getattr(result, stream)) == 2048


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_limited(mode, run_code):
    assert run_code("x = bytearray(2**30)", mode=mode, memory_mb=128).killed == "memory"
    assert run_code("x = bytearray(2**26); print('fits')", mode=mode, memory_mb=128).ok


def test_a_cancelled_program_is_stopped():
    cancel_event = threading.Event()
    with LocalRunner(SandboxSettings(timeout=30), cancel_event).prepare("import time; time.sleep(30)") as run:
        threading.Timer(0.3, cancel_event.set).start()
        started = time.monotonic()
        run("")
    assert time.monotonic() - started < 5


def test_cpp_is_compiled_once_and_run_often():
    runner = LocalRunner(SandboxSettings())
    if shutil.which("g++") is None:
        with pytest.raises(UserError, match="require g\\+\\+"), runner.prepare("", "cpp"):
            raise AssertionError
        return
    code = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }"
    with runner.prepare(code, "cpp") as run:
        assert [run(text).stdout for text in ("1 2", "3 4")] == ["3", "7"]
    with runner.prepare("int main( {", "cpp") as run:
        assert not run("").ok and "error" in run("").stderr


def test_an_unknown_language_is_refused():
    with pytest.raises(UserError, match="programming language"), LocalRunner(SandboxSettings()).prepare("", "cobol"):
        raise AssertionError


def test_a_missing_compiler_is_named(monkeypatch):
    from burnish.reward.sandbox import languages

    monkeypatch.setattr(languages.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="require g\\+\\+"):
        languages.cpp.__wrapped__()


# the weak mode


def test_weak_is_refused_unless_allowed(use_mode):
    use_mode(WEAK)
    with pytest.raises(UserError, match=r"sandbox\.allow_weak=true") as refused:
        LocalRunner(SandboxSettings()).check()
    assert "reward_model.sandbox_fusion.url" in str(refused.value)
    assert "WEAK SANDBOX" in LocalRunner(SandboxSettings(allow_weak=True)).check()


def test_weak_hides_the_environment_and_starts_in_an_empty_folder(run_code, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "x")
    first = run_code("import os\nprint(sorted(os.environ), os.listdir())\nopen('left', 'w').write('x')", mode=WEAK)
    second = run_code("import os\nprint(sorted(os.environ), os.listdir())", mode=WEAK)
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
def test_weak_blocks_calls_that_affect_other_processes(code, run_code):
    result = run_code(code, mode=WEAK)
    assert result.status == 1 and "PermissionError: [Errno 1]" in result.stderr


def test_weak_leaves_no_child_behind(run_code):
    mark = f"mark{uuid.uuid4().hex}"
    child = "[sys.executable, '-c', 'import time; time.sleep(60)', input()]"
    code = f"import subprocess, sys\nsubprocess.Popen({child})\nprint(1)"
    assert run_code(code, mark, mode=WEAK).stdout == "1\n"
    deadline = time.monotonic() + 2
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_with(mark) == []
