"""Isolation of workers. On systems without namespaces: a notice, or an error if isolation is required."""

import os
import subprocess
import sys
import time

import pytest

from burnish.errors import UserError
from burnish.reward import pool
from burnish.reward.isolation import WorkerIsolation, isolation_problem
from burnish.reward.pool import worker_isolation
from burnish.reward.settings import RewardSettings
from burnish.reward.source import FromCallable, FromRules

ISOLATED = isolation_problem(network=False, read_only=True) is None
USER_FUNCTION = FromCallable(len)


def run(code, folder, **options):
    """Run code in an isolated worker and wait for it."""
    lifeline, lifeline_writer = os.pipe()
    text = str(WorkerIsolation(**options, lifeline=lifeline, folder=str(folder)))
    lines = [
        f"import sys; sys.path[:] = {sys.path!r}",
        "from burnish.reward.isolation import run_isolated",
        "import os, signal, socket, subprocess, time",
        "def body():",
        *(f"    {line}" for line in code.splitlines()),
        f"run_isolated({text!r}, body)",
    ]
    command = [sys.executable, "-u", "-c", "\n".join(lines)]
    try:
        return subprocess.run(
            command, pass_fds=(lifeline,), capture_output=True, text=True, timeout=30, start_new_session=True
        )
    finally:
        os.close(lifeline)
        os.close(lifeline_writer)


# Code, options, exit status, output.
CASES = {
    "sees itself only": ("print(sorted(n for n in os.listdir('/proc') if n.isdigit()))", {}, 0, "['1', '2']"),
    "cannot end the watcher": ("os.kill(1, 9)\nprint('still here')", {}, 0, "still here"),
    "ends with its status": ("os._exit(7)", {}, 7, ""),
    "ends with its signal": ("os.kill(os.getpid(), signal.SIGTERM)", {}, -15, ""),
    "says what it raised": ("raise ValueError('bad')", {}, 1, "ValueError: bad"),
    "reads": (f"print(len(open({__file__!r}).read()) > 100)", {"read_only": True}, 0, "True"),
    "writes in its folder": ("open({folder!r} + '/x', 'w').write('x')\nprint('ok')", {"read_only": True}, 0, "ok"),
    "writes nowhere else": ("open({beside!r}, 'w')", {"read_only": True}, 1, "Read-only file system"),
    "mounts nothing": (
        "subprocess.run(['mount', '-o', 'remount,rw', '/'], check=True)", {"read_only": True}, 1, "Error"
    ),
    "has no network": ("socket.create_connection(('127.0.0.1', 9), 1)", {"network": False}, 1, "unreachable"),
    "has the network": ("socket.create_connection(('127.0.0.1', 9), 1)", {}, 1, "refused"),
    "has few processes": (
        "for _ in range(600):\n  if os.fork() == 0:\n    time.sleep(30)\ntime.sleep(30)",
        {},
        -9,
        "more than 512 processes",
    ),
    "has memory for all its processes": (
        "for _ in range(4):\n  if os.fork() == 0:\n    hog = bytearray(2**26); time.sleep(30)\ntime.sleep(30)",
        {"memory_mb": 128},
        -9,
        "used more than reward.memory_mb",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES if ISOLATED else [])
def test_isolated_code(name, tmp_path):
    code, options, status, text = CASES[name]
    folder = tmp_path / "own"
    folder.mkdir()
    places = {"{folder!r}": repr(str(folder)), "{beside!r}": repr(str(tmp_path / "beside"))}
    for place, path in places.items():
        code = code.replace(place, path)
    process = run(code, folder, **options)
    assert text in process.stdout + process.stderr
    assert process.returncode == status, process.stderr
    assert os.listdir(tmp_path) == ["own"]
    assert os.listdir(folder) == [] or not options.get("read_only")


@pytest.mark.parametrize("victim", ["launcher", "run"] if ISOLATED else [])
def test_everything_dies_with_the_launcher_and_with_the_run(victim, tmp_path):
    lifeline, lifeline_writer = os.pipe()
    alive = tmp_path / "alive"
    text = str(WorkerIsolation(lifeline=lifeline, folder=str(tmp_path)))
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\nfrom burnish.reward.isolation import run_isolated\nimport os, time\n"
        "def body():\n    if os.fork() == 0: os.setsid()\n"
        f"    while True: open({str(alive)!r}, 'a').write('x'); time.sleep(0.01)\n"
        f"run_isolated({text!r}, body)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code], pass_fds=(lifeline,))
    os.close(lifeline)
    until = time.monotonic() + 10
    while not alive.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert alive.exists()
    if victim == "launcher":
        launcher.kill()
    else:
        os.close(lifeline_writer)
    launcher.wait(timeout=10)
    time.sleep(0.1)
    size = alive.stat().st_size
    time.sleep(0.1)
    assert alive.stat().st_size == size
    if victim == "launcher":
        os.close(lifeline_writer)


def test_built_in_rules_get_the_strictest_isolation():
    options = worker_isolation(FromRules(), RewardSettings())
    assert (options is not None) == (isolation_problem(network=True, read_only=False) is None)
    if ISOLATED:
        assert options == WorkerIsolation(network=False, read_only=True, memory_mb=2048)
        assert worker_isolation(USER_FUNCTION, RewardSettings()) == WorkerIsolation(
            network=True, read_only=False, memory_mb=2048
        )
        assert worker_isolation(USER_FUNCTION, RewardSettings(isolate=True)).read_only


def test_isolation_can_be_disabled():
    assert worker_isolation(USER_FUNCTION, RewardSettings(isolate=False)) is None
    with pytest.raises(UserError, match=r"reward.network=False: workers without isolation always have network access"):
        worker_isolation(USER_FUNCTION, RewardSettings(isolate=False, network=False))


def test_a_system_without_namespaces(monkeypatch, scorer, sample):
    monkeypatch.setattr(pool, "isolation_problem", lambda **_: "no namespaces here")
    one = scorer(lambda solution_str: 1.0)
    assert one.score([sample()])[0].value == 1.0
    assert one.notices == [
        "reward functions have time and memory limits, but are not isolated from other processes: no namespaces here"
    ]
    for settings in ({"isolate": True}, {"network": False}):
        with pytest.raises(UserError, match=r"not supported on this system .no namespaces here."):
            scorer(lambda solution_str: 1.0, **settings)


def test_each_worker_has_a_temporary_folder_that_is_removed(scorer, sample):
    def where(solution_str):
        import tempfile

        with tempfile.NamedTemporaryFile(delete=False) as file:
            return {"score": 1.0, "folder": os.path.dirname(file.name)}

    one = scorer(where)
    folder = one.score([sample()])[0].extras["folder"]
    assert folder != scorer(where).score([sample()])[0].extras["folder"]
    one.close()
    assert not os.path.exists(folder)
