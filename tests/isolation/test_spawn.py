"""spawn_isolated: what a program sees, how its exit is reported, and that it dies with its parent."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.isolation import probe
from burnish.isolation.limits import Limits
from burnish.isolation.plan import SETUP_FAILED, WEAK
from burnish.isolation.probe import PER_PROCESS, isolation
from burnish.isolation.spawn import BARE_PYTHON, spawn_isolated

from .modes import ISOLATED, MODES, STRONG, processes_with
from .programs import forced


@pytest.fixture
def spawn(tmp_path):
    """spawn(code, mode, ...) -> (exit status, stdout, stderr, report)."""

    def run(code, mode, *arguments, **options):
        reading, report = os.pipe()
        folder = str(tmp_path) if mode == WEAK else None
        process = spawn_isolated(
            [*BARE_PYTHON, "-c", code, *arguments], mode=mode, folder=folder, report=report,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
        )  # fmt: skip
        os.close(report)
        with process, os.fdopen(reading) as file:
            out, err = process.communicate(timeout=30)
            return process.returncode, out.decode(), err.decode(), json.loads(file.read())

    return run


@pytest.mark.parametrize("mode", MODES)
def test_exit_status_and_signal_are_propagated(mode, spawn):
    assert spawn("raise SystemExit(7)", mode)[0] == 7
    status, _, _, ended = spawn("import os; os.abort()", mode)
    # Without a pid namespace a program may not signal anyone, itself included; aborting then is a fault.
    assert status < 0 and ended["status"] == status and ended["killed"] is None
    assert spawn("print('out')", mode)[1] == "out\n"


@pytest.mark.parametrize("mode", MODES)
def test_the_environment_is_exactly_env(mode, spawn, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "x")
    seen = spawn("import os, json; print(json.dumps(dict(os.environ)))", mode, env={"GIVEN": "1"})[1]
    assert {name for name in json.loads(seen) if name != "LC_CTYPE"} == {"GIVEN"}


@pytest.mark.parametrize("mode", MODES)
def test_files_exist_before_the_program_starts(mode, spawn):
    assert spawn("print(open('a.txt').read())", mode, files={"a.txt": "text\ud800"})[1] == "text?\n"


@pytest.mark.parametrize("mode", MODES)
def test_only_listed_descriptors_are_passed(mode, spawn):
    reading, writing = os.pipe()
    spawn(f"import os; os.write({writing}, b'through')", mode, pass_fds=(writing,))
    os.close(writing)
    with os.fdopen(reading) as file:
        assert file.read() == "through"
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        assert "Bad file descriptor" in spawn(f"import os; os.fstat({descriptor})", mode)[2]
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("mode", MODES)
def test_limits_are_enforced(mode, spawn):
    kinds = "(resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)"
    code = f"import resource; print([resource.getrlimit(kind) for kind in {kinds}])"
    out = spawn(code, mode, limits=Limits(file_mb=3, open_files=20))[1]
    assert out == f"[(0, 0), ({3 * 2**20}, {3 * 2**20}), (20, 20)]\n"
    assert "MemoryError" in spawn("bytearray(2**29)", mode, limits=Limits(memory_mb=128))[2]
    assert spawn("while True: pass", mode, limits=Limits(cpu_seconds=0.1))[0] == -signal.SIGXCPU


@pytest.mark.parametrize("mode", ISOLATED)
def test_only_listed_folders_are_visible(mode, spawn, tmp_path):
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
    _, out, _, _ = spawn(code, mode, shown, opened, hidden, readable=[shown, "/no/such/folder"], writable=[opened])
    assert out.splitlines() == ["shown", "Read-only file system", "open", "written", "No such file or directory"]
    assert (tmp_path / "open" / "new").exists()


@pytest.mark.parametrize("mode", ISOLATED)
def test_the_network_is_shared_only_on_request(mode, spawn):
    code = "import os; print(os.readlink('/proc/self/ns/net'))"
    namespace = os.readlink("/proc/self/ns/net")
    assert spawn(code, mode, network=True)[1].strip() == namespace
    assert spawn(code, mode)[1].strip() not in ("", namespace)


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_start_is_reported(mode, tmp_path):
    status, err, ended = _missing(mode, tmp_path)
    assert status == SETUP_FAILED
    assert "No such file" in err and "No such file" in ended["problem"]


def _missing(mode, tmp_path):
    reading, report = os.pipe()
    process = spawn_isolated(
        ["/no/such/program"], mode=mode, folder=str(tmp_path) if mode == WEAK else None, report=report,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(report)
    with process, os.fdopen(reading) as file:
        _, err = process.communicate(timeout=30)
        return process.returncode, err.decode(), json.loads(file.read())


def test_an_unknown_command_is_refused():
    with pytest.raises(UserError, match="not installed"):
        spawn_isolated(["no-such-command-here"])


SLEEPER = """
import sys; sys.path.insert(0, {root!r})
from burnish.isolation.spawn import BARE_PYTHON, spawn_isolated
code = "import time; print('up', flush=True); time.sleep(60)"
process = spawn_isolated([*BARE_PYTHON, "-c", code, {mark!r}], mode={mode!r}, folder={folder!r})
process.wait()
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_program_dies_with_its_parent(mode, tmp_path):
    mark = f"mark{uuid.uuid4().hex}"
    folder = str(tmp_path) if mode == WEAK else None
    code = SLEEPER.format(root=str(Path(probe.__file__).parents[2]), mark=mark, mode=mode, folder=folder)
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


@pytest.mark.parametrize("mode", MODES)
def test_killing_the_process_group_kills_the_program(mode, tmp_path):
    mark = f"mark{uuid.uuid4().hex}"
    process = spawn_isolated(
        [*BARE_PYTHON, "-c", "import time; print('up', flush=True); time.sleep(60)", mark],
        mode=mode, folder=str(tmp_path) if mode == WEAK else None, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == b"up\n"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(5) == -signal.SIGKILL
        assert process.stdout.read() == b""  # no process holds the pipe
    assert processes_with(mark) == []


def test_isolation_reports_the_verified_layers():
    current = isolation()
    assert current is isolation()
    assert current.strong == bool(STRONG)
    assert current.rlimits
    assert ("in their own user, pid, network and mount namespaces" in current.description) == current.strong


def test_the_reason_is_reported_if_nothing_works(monkeypatch):
    weak = {"rlimits": True, "seccomp": True}
    problem = "unshare(0x7c020000): Operation not permitted"
    monkeypatch.setattr(probe, "_probe", lambda mode: (weak, "") if mode == WEAK else (None, problem))
    current = isolation.__wrapped__()
    assert not current.strong and current.mode == WEAK and current.rlimits
    assert "Operation not permitted" in current.description


def test_a_system_without_namespaces_is_weak(monkeypatch):
    monkeypatch.setattr(probe.sys, "platform", "darwin")
    current = isolation.__wrapped__()
    assert not current.strong and "no namespaces on darwin" in current.description


def test_a_leak_in_any_layer_is_no_isolation():
    complete = forced("user")
    assert complete.strong
    for layer, value in {"user": 0, "pid": 0, "net": 0, "mount": 0, "seccomp": 0, "memory": PER_PROCESS}.items():
        values = vars(complete) | {layer: value}
        assert not probe.Isolation(**values).strong
