"""python: code in the sandbox that keeps its variables, and cannot do more than print."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.isolation import probe
from burnish.rollout.tools.builtin import interpreter, python
from burnish.rollout.tools.builtin.interpreter import BoundedOutput

from .conftest import use


def code(*programs):
    return [("python", {"code": program}) for program in programs]


@pytest.fixture
def tools(load):
    if not probe.isolation().strong:
        return load("tools: [{class_name: python, limits: {timeout: 20}}]", allow_weak=True)
    return load("tools: [{class_name: python, limits: {timeout: 20}}]")


def test_variables_stay_from_call_to_call(tools):
    programs = (
        "import math\nx = [1, 2]\nprint('set')",
        "x.append(3)\nsum(x)",
        "def f(a):\n    return a / 0\nf(1)",
        "x, math.pi > 3",
        "raise SystemExit('bye')",
        "if True:\n  y = (",
        "input()",
        "len(x)",
    )
    used = use(tools, *code(*programs))
    set_, total, error, pair, left, syntax, no_input, length = used.texts
    assert (set_, total, pair, left, length) == ("set\n", "6\n", "([1, 2, 3], True)\n", "bye\n", "3\n")
    assert 'File "<call 3>", line 2, in f' in error and error.endswith("ZeroDivisionError: division by zero\n")
    assert "<string>" not in error and "SyntaxError" in syntax and "EOFError" in no_input
    assert used.counts.failed == 0 and used.counts.metrics["code_errors"] == 4  # the tool itself worked


def test_conversations_do_not_share_variables(tools):
    assert use(tools, *code("x = 1")).texts == [""]
    assert "NameError" in use(tools, *code("x")).texts[0]


def test_code_that_takes_too_long_is_interrupted(monkeypatch, load):
    monkeypatch.setattr(interpreter, "_GRACE_SECONDS", 100.0)
    tools = load("tools: [{class_name: python, limits: {timeout: 2}}]", allow_weak=True)
    used = use(tools, *code("x = 1\nwhile True:\n    pass", "x"))
    assert "TimeoutError: the code was interrupted" in used.texts[0] and used.texts[1] == "1\n"


def test_code_that_cannot_be_interrupted_is_killed(monkeypatch, load):
    monkeypatch.setattr(interpreter, "_GRACE_SECONDS", 0.1)
    tools = load("tools: [{class_name: python, limits: {timeout: 0.2}}]", allow_weak=True)
    used = use(tools, *code("import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True:\n    pass"))
    assert used.texts == ["Error: the code did not end within 0.2 s and was killed; its variables are lost"]
    assert used.counts.failed == 1


def test_what_code_breaks_is_its_own(monkeypatch, tools):
    monkeypatch.setenv("SECRET", "x")
    programs = (
        "print('a' * 10_000_000)",
        "import os\nprint('before', flush=True)\nos._exit(3)",
        "import sys\nsys.stdout.close()",
        "import socket\nsocket.socket(socket.AF_INET)",
        "open('/etc/passwd').read()",
        "x = bytearray(10 ** 11)",
        "import os\nsorted(os.environ)",
        "'fine'",
    )
    used = use(tools, *code(*programs))
    flood, died, _, network, file, memory, environment, fine = used.texts
    assert len(flood) < 2**17 and "bytes omitted" in flood
    assert died == "before\nError: the interpreter died; its variables are lost"
    assert "PermissionError" in network and "MemoryError" in memory and fine.endswith("'fine'\n")
    assert "SECRET" not in environment
    if probe.isolation().strong:
        assert "FileNotFoundError" in file


def running(command):
    """Processes of this machine with these arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found += [process] if process.read_bytes().split(b"\0")[:-1] == [word.encode() for word in command] else []
    return found


def test_processes_end_with_the_conversation(tools):
    command = ["sleep", f"100{os.getpid()}"]
    start = f"import subprocess\np = subprocess.Popen({command!r})\np.poll() is None"
    assert use(tools, *code(start)).texts == ["True\n"]
    assert not probe.isolation().strong or not running(command)


def test_interpreters_are_bounded(monkeypatch, load):
    monkeypatch.setattr(python, "_WAIT_SECONDS", 0.01)
    (tool,) = load("tools: [{class_name: python, config: {max_interpreters: 1}}]", allow_weak=True)
    with tool.places:
        assert "no interpreter was free" in use([tool], *code("1")).texts[0]
    assert use([tool], *code("1")).texts == ["1\n"]


def test_a_machine_without_isolation_is_refused(monkeypatch, load):
    weak = probe._without_namespaces("programs cannot be isolated here")
    monkeypatch.setattr(python, "isolation", lambda: weak)
    with pytest.raises(UserError, match=r"sandbox\.allow_weak=False: .*needs a sandbox"):
        load("tools: [{class_name: python}]")
    load("tools: [{class_name: python}]", allow_weak=True)
    assert "WEAK SANDBOX" in load.notices[0]


def test_the_beginning_and_the_end_of_output_are_kept():
    output = BoundedOutput(10)
    for number in range(10):
        output.add(f"{number}{number}".encode())
    assert output.text() == "00112\n... (10 bytes omitted)\n78899"
