"""Isolation of workers. On systems without namespaces: a notice, or an error if isolation is required."""

import json
import os
import subprocess
import sys
import time

import pytest

from burnish.errors import UserError
from burnish.isolation.limits import Limits
from burnish.isolation.plan import HOST, READ_ONLY_HOST
from burnish.isolation.probe import worker_mode
from burnish.isolation.spawn import spawn_isolated
from burnish.reward import pool
from burnish.reward.pool import worker_isolation
from burnish.reward.process import WorkerIsolation
from burnish.reward.settings import RewardSettings
from burnish.reward.source import FromCallable, FromRules

ISOLATED = worker_mode(network=False, read_only=True)[0] is not None
USER_FUNCTION = FromCallable(len)


HEAD = "import os, signal, socket, subprocess, sys, time\n"


def start(code, folder, *, network=True, read_only=False, memory_mb=None, **streams):
    """Start code as a worker is started."""
    mode, problem = worker_mode(network=network, read_only=read_only)
    assert mode is not None, problem
    return spawn_isolated(
        [sys.executable, "-u", "-c", HEAD + code],
        mode=mode,
        view=READ_ONLY_HOST if read_only else HOST,
        network=network,
        folder=os.getcwd(),
        env=dict(os.environ) | {"TMPDIR": str(folder)},
        limits=Limits(memory_mb=memory_mb, processes=512, open_files=None),
        **streams,
    )


def run(code, folder, **options):
    """Run code and wait for it: status, stdout and stderr together, and the limit that it exceeded."""
    reading, report = os.pipe()
    process = start(code, folder, report=report, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    os.close(report)
    with process, os.fdopen(reading) as file:
        out, _ = process.communicate(timeout=30)
        return process.returncode, out.decode(), json.loads(file.read())["killed"]


# Code, options, exit status, output or limit.
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
        "processes",
    ),
    "has memory for all its processes": (
        "for _ in range(4):\n  if os.fork() == 0:\n    hog = bytearray(2**26); time.sleep(30)\ntime.sleep(30)",
        {"memory_mb": 128},
        -9,
        "memory",
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
    returned, out, killed = run(code, folder, **options)
    if killed is None and name == "has few processes":  # the kernel counts those of ordinary users
        killed, returned = "processes" if "BlockingIOError" in out else None, -9
    assert text in (out if killed is None else killed)
    assert returned == status, out
    assert os.listdir(tmp_path) == ["own"]
    assert os.listdir(folder) == [] or not options.get("read_only")


@pytest.mark.parametrize("victim", ["launcher", "lifeline"] if ISOLATED else [])
def test_everything_dies_with_the_launcher_and_with_the_run(victim, tmp_path):
    alive = tmp_path / "alive"
    code = f"if os.fork() == 0: os.setsid()\nwhile True: open({str(alive)!r}, 'a').write('x'); time.sleep(0.01)"
    process = start(code, tmp_path)
    with process:
        until = time.monotonic() + 10
        while not alive.exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert alive.exists()
        if victim == "launcher":
            process.kill()
        else:
            process.lifeline.close()
        process.wait(timeout=10)
    time.sleep(0.1)
    size = alive.stat().st_size
    time.sleep(0.1)
    assert alive.stat().st_size == size


def test_built_in_rules_get_the_strictest_isolation():
    options = worker_isolation(FromRules(), RewardSettings())
    assert (options is not None) == (worker_mode(network=True, read_only=False)[0] is not None)
    if ISOLATED:
        assert options == WorkerIsolation(options.mode, network=False, read_only=True, memory_mb=4096)
        by_default = worker_isolation(USER_FUNCTION, RewardSettings())
        assert by_default == WorkerIsolation(by_default.mode, network=True, read_only=False, memory_mb=4096)
        assert worker_isolation(USER_FUNCTION, RewardSettings(isolate=True)).read_only


def test_isolation_can_be_disabled():
    assert worker_isolation(USER_FUNCTION, RewardSettings(isolate=False)) is None
    with pytest.raises(UserError, match=r"reward.network=False: workers without isolation always have network access"):
        worker_isolation(USER_FUNCTION, RewardSettings(isolate=False, network=False))


def test_a_system_without_namespaces(monkeypatch, scorer, sample):
    monkeypatch.setattr(pool, "worker_mode", lambda **_: (None, "no namespaces here"))
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
