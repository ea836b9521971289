"""Programs that try to escape the sandbox. Without isolation they must be refused instead."""

import json
import os
import socket
import time
import uuid
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.reward.sandbox.launcher import WEAK
from burnish.reward.sandbox.local import LocalRunner
from burnish.reward.sandbox.settings import SandboxSettings

from .conftest import CONTAINED, processes_with

# Each prints ESCAPED if it succeeds. `targets` describes what exists outside the sandbox.
HEAD = """
import ctypes, json, os, signal, socket, subprocess, sys, time
targets = json.loads(sys.stdin.read())
libc = ctypes.CDLL(None, use_errno=True)
def escaped(*what): print("ESCAPED", *what, flush=True)
def tries(action):
    try:
        return action()
    except (OSError, ValueError, KeyError, subprocess.SubprocessError):
        return None
"""

ATTACKS = {
    "read a file outside": """
if tries(lambda: open(targets["secret"]).read()): escaped("secret")
""",
    "read the system's accounts": """
for path in ("/etc/shadow", "/etc/passwd", "/etc/hostname"):
    if tries(lambda: open(path).read()): escaped(path)
""",
    "list home folders": """
for path in (targets["home"], "/home", "/root", "/var", "/run", "/srv", "/mnt", "/sys"):
    for name in tries(lambda: os.listdir(path)) or []:
        if name not in targets["python"]: escaped(path, name)
""",
    "write outside": """
for path in (targets["folder"] + "/x", "/usr/x", "/x", "/etc/x", "/dev/x", os.path.dirname(os.__file__) + "/x.py"):
    if tries(lambda: open(path, "w")): escaped(path)
""",
    "change the interpreter": """
if tries(lambda: open(os.__file__, "a")): escaped("library")
if tries(lambda: os.chmod(sys.executable, 0o777) or True): escaped("mode")
""",
    "connect to a local port": """
if tries(lambda: socket.create_connection(("127.0.0.1", targets["port"]), 1)): escaped()
""",
    "connect to an abstract socket": """
one = socket.socket(socket.AF_UNIX)
if one.connect_ex("\\0" + targets["abstract"]) == 0: escaped()
""",
    "connect to a socket in a folder": """
one = socket.socket(socket.AF_UNIX)
if one.connect_ex(targets["socket"]) == 0: escaped()
""",
    "reach the host of a virtual machine": """
if tries(lambda: socket.socket(40, socket.SOCK_STREAM)): escaped()
""",
    "see a network interface": """
if set(name for _, name in tries(socket.if_nameindex) or []) - {"lo"}: escaped()
""",
    "kill the parent": """
for pid in (targets["parent"], os.getppid(), 1):
    tries(lambda: os.kill(pid, signal.SIGKILL))
if pid_gone := not os.path.exists("/proc/1"): escaped()
""",
    "trace the watcher": """
for pid in (1, targets["parent"]):
    if libc.ptrace(16, pid, 0, 0) == 0: escaped("attach", pid)
    if libc.ptrace(0x4206, pid, 0, 0) == 0: escaped("seize", pid)
""",
    "read the watcher's memory": """
for pid in (1, targets["parent"]):
    for name in ("mem", "environ", "maps", "fd/0", "root/etc", "cwd"):
        path = f"/proc/{pid}/{name}"
        if tries(lambda: open(path, "rb").read(1)) or tries(lambda: os.listdir(path)): escaped(path)
""",
    "read the environment": """
if targets["token"] in str(os.environ): escaped("environ")
for pid in filter(str.isdigit, tries(lambda: os.listdir("/proc")) or []):
    if targets["token"].encode() in (tries(lambda: open(f"/proc/{pid}/environ", "rb").read()) or b""): escaped(pid)
""",
    "see other processes": """
pids = [int(name) for name in tries(lambda: os.listdir("/proc")) or [] if name.isdigit()]
if max(pids, default=0) > 20 or targets["parent"] in pids and targets["parent"] > 20: escaped(pids)
""",
    "find open files": """
for name in tries(lambda: os.listdir("/proc/self/fd")) or []:
    target = tries(lambda: os.readlink(f"/proc/self/fd/{name}"))
    if target and int(name) > 2 and "/proc/" not in target: escaped(name, target)
""",
    "leave by a link": """
for target in (targets["secret"], "/proc/1/root" + targets["secret"], "/proc/self/root/.." + targets["secret"]):
    tries(lambda: os.unlink("link"))
    os.symlink(target, "link")
    if tries(lambda: open("link").read()): escaped(target)
""",
    "leave by a folder that stays open": """
os.mkdir("deep")
if libc.chroot(b"deep") == 0: escaped("chroot")
for _ in range(40): os.chdir("..")
if tries(lambda: open(targets["secret"].lstrip("/")).read()): escaped("climbed out")
""",
    "become root": """
for call in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([])):
    if tries(lambda: call() or True): escaped()
""",
    "set a set-user-id bit": """
import shutil
shutil.copy("/bin/sh", "sh"); os.chmod("sh", 0o6755)
if subprocess.run(["./sh", "-c", "id -u"], capture_output=True, text=True).stdout.strip() == "0": escaped()
""",
    "make namespaces of its own": """
if libc.unshare(0x10000000) == 0: escaped("user")
if libc.unshare(0x00020000) == 0: escaped("mount")
""",
    "mount": """
if libc.mount(b"none", b"/", None, ctypes.c_ulong(32 | 4096), None) == 0: escaped("writable root")
if libc.umount2(b"/usr", 2) == 0: escaped("unmounted")
""",
    "make a device": """
import stat
made = tries(lambda: os.mknod("disk", 0o666 | stat.S_IFBLK, os.makedev(254, 0)) or True)
if made and tries(lambda: open("disk", "rb").read(1)): escaped()
if set(os.listdir("/dev")) & {"sda", "vda", "nvme0n1", "mem", "kmsg", "fuse", "nvidia0"}: escaped(os.listdir("/dev"))
""",
    "hold memory that no limit counts": """
for call in (lambda: os.memfd_create("x"),):
    if tries(call) is not None: escaped()
if libc.shmget(0, ctypes.c_size_t(2**20), 0o1600) >= 0: escaped("shared memory")
""",
    "raise its limits": """
import resource
for kind in (resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_CPU):
    if tries(lambda: resource.setrlimit(kind, (resource.RLIM_INFINITY,) * 2) or True): escaped(kind)
""",
    "load what the user installed for himself": """
if targets["folder"] in str(sys.path) or sys.flags.isolated != 1: escaped(sys.path)
""",
}


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A secret file and environment variable, and sockets that accept connections, outside the sandbox."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the answer")
    secret.chmod(0o644)
    token = f"token-{uuid.uuid4()}"
    monkeypatch.setenv("SECRET_OF_THE_TEST", token)
    abstract = f"burnish-{uuid.uuid4()}"
    short = f"/tmp/{uuid.uuid4().hex}"  # a socket's path has to be short
    listeners = [socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    for listener, address in zip(listeners, (("127.0.0.1", 0), "\0" + abstract, short), strict=True):
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
    targets = {
        "secret": str(secret), "folder": str(tmp_path), "home": str(Path.home()), "token": token, "abstract": abstract,
        "socket": short, "port": listeners[0].getsockname()[1], "parent": os.getpid(),
        "python": [part for path in _python_folders() for part in path.split("/")],
    }  # fmt: skip
    yield targets, listeners
    for listener in listeners:
        listener.close()
    os.unlink(short)


def _python_folders():
    from burnish.reward.sandbox.namespaces import interpreter_folders

    return interpreter_folders()


def refused_or(run, mode):
    """Run the program, or check that it is refused in weak mode."""
    if mode != WEAK:
        return run()
    with pytest.raises(UserError, match=r"sandbox\.allow_weak"):
        LocalRunner(SandboxSettings()).check()
    return None


@pytest.mark.parametrize("mode", CONTAINED)
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_fails(attack, mode, outside, run_code):
    targets, listeners = outside
    result = refused_or(lambda: run_code(HEAD + attack + "\nprint('finished')", json.dumps(targets), mode=mode), mode)
    if result is not None:
        assert "ESCAPED" not in result.stdout, result.stdout
        # The program must have run to its end.
        assert "finished" in result.stdout, result
    assert not list(Path(targets["folder"]).glob("x*"))
    for listener in listeners:
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("mode", CONTAINED)
def test_kill_everything_kills_only_itself(mode, run_code):
    mark = f"mark{uuid.uuid4().hex}"
    other = os.fork()
    if other == 0:
        time.sleep(30)
        os._exit(0)
    try:
        result = refused_or(lambda: run_code(f"import os\n# {mark}\nos.kill(-1, 9)\nprint('alive')", mode=mode), mode)
        assert os.waitpid(other, os.WNOHANG) == (0, 0)
        assert result is None or result.problem is None
    finally:
        os.kill(other, 9)
        os.waitpid(other, 0)


FORK_BOMB = """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0:
            while True:
                time.sleep(0.2)
                try:
                    os.fork()
                except OSError:
                    pass
        count += 1
except OSError:
    print(count, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("mode", CONTAINED)
def test_a_fork_bomb_runs_out_of_processes(mode, run_code):
    before = len(os.listdir("/proc"))
    result = refused_or(lambda: run_code(FORK_BOMB, mode=mode, timeout=1.5), mode)
    if result is not None:
        # The kernel does not count root's processes; then the watcher does.
        assert result.killed == "processes" or (result.killed == "time" and 0 < int(result.stdout) <= 64), result
        assert len(os.listdir("/proc")) < before + 30  # none is left; others may have started something meanwhile


DAEMON = """
import os, subprocess, sys
mark = input()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(60)", mark])
        os._exit(0)
    os._exit(0)
import time; time.sleep(0.4)
print("left behind")
"""


@pytest.mark.parametrize("mode", CONTAINED)
def test_a_daemon_dies_with_its_program(mode, run_code):
    mark = f"mark{uuid.uuid4().hex}"
    result = refused_or(lambda: run_code(DAEMON, mark, mode=mode), mode)
    assert result is None or result.stdout == "left behind\n"
    assert processes_with(mark) == []


MEMORY_BOMBS = {
    "at once": "x = bytearray(2**31)",
    "by and by": "x = []\nwhile True: x.append(bytearray(2**20))",
    "by children": """
import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(100 * 2**20); time.sleep(30)
time.sleep(30)
""",
    "shared": "import mmap\nm = mmap.mmap(-1, 2**30)\nfor i in range(0, 2**30, 4096): m[i] = 1",
}


@pytest.mark.parametrize("mode", CONTAINED)
@pytest.mark.parametrize("bomb", MEMORY_BOMBS.values(), ids=MEMORY_BOMBS.keys())
def test_a_memory_bomb_hits_the_limit(bomb, mode, run_code):
    result = refused_or(lambda: run_code(bomb, mode=mode, memory_mb=256, timeout=10), mode)
    assert result is None or result.killed == "memory"


@pytest.mark.parametrize("mode", CONTAINED)
def test_the_disk_cannot_be_filled(mode, run_code):
    fill = """
total, number = 0, 0
try:
    while True:
        with open(f"file{number}", "wb") as file:
            total += file.write(bytes(2**20))
        number += 1
except OSError as error:
    print(total // 2**20, error)
"""
    result = refused_or(lambda: run_code(fill, mode=mode), mode)
    if result is not None:
        assert "No space" in result.stdout
        assert int(result.stdout.split()[0]) <= 64


@pytest.mark.parametrize("mode", CONTAINED)
def test_what_one_program_leaves_the_next_does_not_find(mode, run_code):
    # /tmp is the private folder, unless the Python that runs us lies below it; then it is read-only.
    leave = "import os\nprint(os.listdir('.'), 'left' in os.listdir('/tmp'))\nopen('left', 'w').write('x')"
    first, second = (refused_or(lambda: run_code(leave, mode=mode), mode) for _ in range(2))
    if first is not None:
        assert first.stdout == second.stdout == "['main.py'] False\n"
