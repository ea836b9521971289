"""spawn_isolated: what a command sees, how its end is told, and that nothing outlives whoever started it."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from burnish.errors import UserError
from burnish.reward.sandbox import namespaces
from burnish.reward.sandbox.inside import SETUP_FAILED, WEAK
from burnish.reward.sandbox.limits import Limits
from burnish.reward.sandbox.namespaces import BARE_PYTHON, isolation, spawn_isolated

from .conftest import ISOLATED, STRONG, WAYS, forced, processes_with


@pytest.fixture
def spawn(tmp_path):
    """spawn(code, way, ...) -> (exit status, stdout, stderr, report)."""

    def run(code, way, *arguments, **how):
        reading, report = os.pipe()
        folder = str(tmp_path) if way == WEAK else None
        process = spawn_isolated(
            [*BARE_PYTHON, "-c", code, *arguments], way=way, folder=folder, report=report,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how,
        )  # fmt: skip
        os.close(report)
        with process, os.fdopen(reading) as told:
            out, err = process.communicate(timeout=30)
            return process.returncode, out.decode(), err.decode(), json.loads(told.read())

    return run


@pytest.mark.parametrize("way", WAYS)
def test_the_end_is_mirrored(way, spawn):
    assert spawn("raise SystemExit(7)", way)[0] == 7
    status, _, _, told = spawn("import os; os.abort()", way)
    # Without a pid namespace a program may not signal anyone, itself included; aborting then is a fault.
    assert status < 0 and told["status"] == status and told["killed"] is None
    assert spawn("print('out')", way)[1] == "out\n"


@pytest.mark.parametrize("way", WAYS)
def test_the_environment_is_exactly_what_is_given(way, spawn, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "x")
    seen = spawn("import os, json; print(json.dumps(dict(os.environ)))", way, env={"GIVEN": "1"})[1]
    assert {name for name in json.loads(seen) if name != "LC_CTYPE"} == {"GIVEN"}


@pytest.mark.parametrize("way", WAYS)
def test_files_are_there_before_it_starts(way, spawn):
    assert spawn("print(open('a.txt').read())", way, files={"a.txt": "text\ud800"})[1] == "text?\n"


@pytest.mark.parametrize("way", WAYS)
def test_open_files_are_passed_on_request(way, spawn):
    reading, writing = os.pipe()
    spawn(f"import os; os.write({writing}, b'through')", way, pass_fds=(writing,))
    os.close(writing)
    with os.fdopen(reading) as file:
        assert file.read() == "through"
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        assert "Bad file descriptor" in spawn(f"import os; os.fstat({descriptor})", way)[2]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("way", WAYS)
def test_limits_hold(way, spawn):
    kinds = "(resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)"
    code = f"import resource; print([resource.getrlimit(kind) for kind in {kinds}])"
    out = spawn(code, way, limits=Limits(file_mb=3, open_files=20))[1]
    assert out == f"[(0, 0), ({3 * 2**20}, {3 * 2**20}), (20, 20)]\n"
    assert "MemoryError" in spawn("bytearray(2**29)", way, limits=Limits(memory_mb=128))[2]
    assert spawn("while True: pass", way, limits=Limits(cpu_seconds=0.1))[0] == -signal.SIGXCPU


@pytest.mark.parametrize("way", ISOLATED)
def test_named_folders_are_seen_and_others_are_not(way, spawn, tmp_path):
    for name in ("shown", "open", "hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
        (tmp_path / name / "file").write_text(name)
    code = """
import sys
for path in sys.argv[1:]:
    try:
        print(open(path + '/file').read()); open(path + '/new', 'w'); print('written')
    except OSError as error:
        print(error.strerror)
"""
    shown, opened, hidden = (str(tmp_path / name) for name in ("shown", "open", "hidden"))
    _, out, _, _ = spawn(code, way, shown, opened, hidden, readable=[shown, "/no/such/folder"], writable=[opened])
    assert out.splitlines() == ["shown", "Read-only file system", "open", "written", "No such file or directory"]
    assert (tmp_path / "open" / "new").exists()


@pytest.mark.parametrize("way", ISOLATED)
def test_the_network_is_there_only_if_asked_for(way, spawn):
    code = "import os; print(os.readlink('/proc/self/ns/net'))"
    ours = os.readlink("/proc/self/ns/net")
    assert spawn(code, way, network=True)[1].strip() == ours
    assert spawn(code, way)[1].strip() not in ("", ours)


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_start_says_why(way, tmp_path):
    status, err, told = _missing(way, tmp_path)
    assert status == SETUP_FAILED
    assert "No such file" in err and "No such file" in told["problem"]


def _missing(way, tmp_path):
    reading, report = os.pipe()
    process = spawn_isolated(
        ["/no/such/program"], way=way, folder=str(tmp_path) if way == WEAK else None, report=report,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(report)
    with process, os.fdopen(reading) as told:
        _, err = process.communicate(timeout=30)
        return process.returncode, err.decode(), json.loads(told.read())


def test_an_unknown_command_is_refused():
    with pytest.raises(UserError, match="not installed"):
        spawn_isolated(["no-such-command-here"])


SLEEPER = """
import sys; sys.path.insert(0, {root!r})
from burnish.reward.sandbox.namespaces import BARE_PYTHON, spawn_isolated
code = "import time; print('up', flush=True); time.sleep(60)"
process = spawn_isolated([*BARE_PYTHON, "-c", code, {mark!r}], way={way!r}, folder={folder!r})
process.wait()
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_program_dies_with_whoever_started_it(way, tmp_path):
    mark = f"mark{uuid.uuid4().hex}"
    folder = str(tmp_path) if way == WEAK else None
    code = SLEEPER.format(root=namespaces._PACKAGES, mark=mark, way=way, folder=folder)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"up\n"
    assert len(processes_with(mark)) >= 2
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 5
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes_with(mark) == []
    parent.stdout.close()


@pytest.mark.parametrize("way", WAYS)
def test_killing_the_process_group_kills_the_program(way, tmp_path):
    mark = f"mark{uuid.uuid4().hex}"
    process = spawn_isolated(
        [*BARE_PYTHON, "-c", "import time; print('up', flush=True); time.sleep(60)", mark],
        way=way, folder=str(tmp_path) if way == WEAK else None, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == b"up\n"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(5) == -signal.SIGKILL
        assert process.stdout.read() == b""  # nobody holds the pipe any more
    assert processes_with(mark) == []


def test_isolation_says_what_was_tried():
    found = isolation()
    assert found is isolation()
    assert found.strong == bool(STRONG)
    assert found.rlimits
    assert ("namespaces of their own" in found.sentence) == found.strong


def test_where_nothing_works_the_reason_is_told(monkeypatch):
    """Here the kernel says no to every namespace."""
    real = namespaces._probe
    monkeypatch.setattr(
        namespaces,
        "_probe",
        lambda way: real(way) if way == WEAK else (None, "unshare(0x7c020000): Operation not permitted"),
    )
    found = isolation.__wrapped__()
    assert not found.strong and found.way == WEAK and found.rlimits
    assert "Operation not permitted" in found.sentence


def test_a_system_without_namespaces_is_weak(monkeypatch):
    monkeypatch.setattr(namespaces.sys, "platform", "darwin")
    found = isolation.__wrapped__()
    assert not found.strong and "darwin has no namespaces" in found.sentence


def test_a_leak_in_any_layer_is_no_isolation():
    whole = forced("user")
    assert whole.strong
    for layer in ("user", "pid", "net", "mount"):
        values = vars(whole) | {layer: False}
        assert not namespaces.Isolation(**values).strong
