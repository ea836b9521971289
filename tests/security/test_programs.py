"""Programs of a model that try to escape the sandbox, its limits or its verdict. Without isolation they are refused."""

import json
import os
import socket
import time
import uuid
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.isolation.plan import WEAK
from burnish.isolation.probe import isolation
from burnish.reward.code import code
from burnish.reward.sandbox.local import LocalRunner
from burnish.reward.sandbox.settings import SandboxSettings

from ..isolation.as_user import as_limited_root, as_user
from ..isolation.modes import CONTAINED, IS_ROOT, processes_with
from ..isolation.programs import UserPrograms
from .attacks import attack

KIND = "programs of the model"


def attacks(programs, prefix=""):
    """A test parameter for each attack, with its row of the table."""
    return [pytest.param(text, marks=attack(KIND, prefix + name), id=name) for name, text in programs.items()]


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
if tries(lambda: socket.socket(socket.AF_UNIX).connect("\\0" + targets["abstract"]) or True): escaped()
""",
    "connect to a socket in a folder": """
if tries(lambda: socket.socket(socket.AF_UNIX).connect(targets["socket"]) or True): escaped()
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
    from burnish.isolation.spawn import interpreter_folders

    return interpreter_folders()


def refused_or(run, mode):
    """Run the program, or check that it is refused in weak mode."""
    if mode != WEAK:
        return run()
    with pytest.raises(UserError, match=r"sandbox\.allow_weak"):
        LocalRunner(SandboxSettings()).check()
    return None


@pytest.mark.parametrize("mode", CONTAINED)
@pytest.mark.parametrize("program", attacks(ATTACKS))
def test_an_escape_fails(program, mode, outside, run_code):
    targets, listeners = outside
    result = refused_or(lambda: run_code(HEAD + program + "\nprint('finished')", json.dumps(targets), mode=mode), mode)
    if result is not None:
        assert "ESCAPED" not in result.stdout, result.stdout
        # The program must have run to its end.
        assert "finished" in result.stdout, result
    assert not list(Path(targets["folder"]).glob("x*"))
    for listener in listeners:
        with pytest.raises(BlockingIOError):
            listener.accept()


@attack(KIND, "kill every process")
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


@attack(KIND, "fork bomb")
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


@attack(KIND, "leave a daemon behind")
@pytest.mark.parametrize("mode", CONTAINED)
def test_a_daemon_dies_with_its_program(mode, run_code):
    mark = f"mark{uuid.uuid4().hex}"
    result = refused_or(lambda: run_code(DAEMON, mark, mode=mode), mode)
    assert result is None or result.stdout == "left behind\n"
    assert processes_with(mark) == []


# Each holds more than 256 MiB, no process by itself. `spread` starts children that do it.
SPREAD = """
def spread(action, count=5):
    for _ in range(count):
        if os.fork() == 0:
            kept = action()
            time.sleep(60)
    time.sleep(60)
"""
MEMORY_BOMBS = {
    "at once": "x = bytearray(2**31)",
    "in small pieces": "x = []\nwhile True: x.append(bytearray(2**20))",
    "by children": "spread(lambda: bytearray(100 * 2**20))",
    "by children that forbid inspection": "spread(lambda: (libc.prctl(4, 0, 0, 0, 0), bytearray(100 * 2**20)))",
    "by processes whose first thread has ended": """
def in_thread():
    import platform, threading
    def hold():
        kept = bytearray(100 * 2**20)
        time.sleep(60)
    threading.Thread(target=hold).start()
    time.sleep(0.3)
    libc.syscall(93 if platform.machine() == "aarch64" else 60, 0)
spread(in_thread)
""",
    "in files in memory": """
with open("large", "wb") as file:
    for _ in range(60): file.write(bytes(2**20))
x = bytearray(210 * 2**20)
time.sleep(60)
""",
    "in buffers of sockets": """
def fill():
    pairs = [socket.socketpair() for _ in range(50)]
    for one, _ in pairs:
        one.setblocking(False)
        try:
            while True: one.send(bytes(65536))
        except BlockingIOError:
            pass
    return pairs
spread(fill, 20)
""",
}


@pytest.mark.parametrize("mode", CONTAINED)
@pytest.mark.parametrize("bomb", attacks(MEMORY_BOMBS, "hold memory "))
def test_a_memory_bomb_hits_the_limit(bomb, mode, run_code):
    code = "import ctypes, os, socket, time\nlibc = ctypes.CDLL(None)\n" + SPREAD + bomb
    result = refused_or(lambda: run_code(code, mode=mode, memory_mb=256, timeout=20), mode)
    assert result is None or (result.killed == "memory" and result.problem is None), result


# Memory that would belong to no process. Each attempt prints ESCAPED unless the kernel refuses it.
UNCOUNTED = {
    "System V shared memory": "check(libc.shmget(0, ctypes.c_size_t(2**20), 0o1600))",
    "System V messages": "check(libc.msgget(0, 0o1600))",
    "System V semaphores": "check(libc.semget(0, 250, 0o1600))",
    "POSIX message queues": "check(getattr(libc, 'mq_open', lambda *_: -1)(b'/queue', os.O_CREAT | 2, 0o600, None))",
    "a memfd": "check(libc.memfd_create(b'x', 0))",
    "shared pages that leave the page table": "check(mapped(-1, 0x21))",
    "shared pages of /dev/zero": "check(-1 if not os.path.exists('/dev/zero') else mapped(os.open('/dev/zero', 2), 1))",
    "huge pages": "check(mapped(-1, 0x40022)); check(ctypes.get_errno() == 1 or -1)",
    "pages in pipes": "check(libc.vmsplice(os.pipe()[1], None, 0, 0)); check(libc.tee(0, 1, 1, 0))",
    "rings of asynchronous I/O": "check(libc.syscall(425, 8, None)); check(libc.syscall(IO_SETUP, 1 << 16, None))",
    "watches of inotify": "check(libc.inotify_init1(0))",
    "a system call newer than the filter": "check(libc.syscall(500)); check(-1 if ctypes.get_errno() == 38 else 1)",
    "POSIX shared memory": """
written = 0
try:
    with open("/dev/shm/x", "wb", buffering=0) as file:
        while True: written += file.write(bytes(2**20))
except OSError:
    check(-1 if written <= 16 * 2**20 else 1)
""",
}
UNCOUNTED_HEAD = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_ssize_t
IO_SETUP = 0 if platform.machine() == "aarch64" else 206
def mapped(descriptor, flags):
    return libc.mmap(None, ctypes.c_size_t(2**21), 3, flags, descriptor, ctypes.c_ssize_t(0))
def check(result):
    if result != -1 and result is not True: print("ESCAPED", result)
"""


@pytest.mark.parametrize("mode", CONTAINED)
@pytest.mark.parametrize("attempt", attacks(UNCOUNTED, "hold memory as "))
def test_memory_that_no_process_owns_is_refused(attempt, mode, run_code):
    result = refused_or(lambda: run_code(f"{UNCOUNTED_HEAD}{attempt}\nprint('finished')", mode=mode), mode)
    assert result is None or result.stdout == "finished\n", result


# What a program can try with the processes that watch it. None of it is a failure of the sandbox.
AGAINST_THE_WATCHER = {
    "signal the init process": """
for number in range(1, 65):
    try: os.kill(1, number)
    except OSError: pass
time.sleep(0.1)
""",
    "signal its process group": "os.kill(0, 9)",
    "stop all processes": "os.kill(-1, 19); os.kill(os.getpid(), 19)",
    "limit the init process's resources": """
import resource
for kind in range(16):
    try: resource.prlimit(1, kind, (0, 0))
    except (OSError, ValueError): pass
time.sleep(0.2)
""",
    "use up all descriptors": """
for _ in range(40): os.fork()
try:
    while True: os.pipe()
except OSError: time.sleep(0.3)
""",
    "use up all processes": """
try:
    while True: os.fork()
except OSError: time.sleep(0.3)
""",
    "write to all descriptors": """
for number in range(3, 300):
    try: os.write(number, b'{"problem": "broken"}')
    except OSError: pass
""",
    "exit like a failed start": "os.write(2, b'sandbox: OSError: no namespaces\\n'); os._exit(125)",
    "starve the watcher": """
os.nice(-20) if False else None
import threading
for _ in range(30): threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
time.sleep(0.3)
os._exit(3)
""",
    "close everything and hang": "os.closerange(0, 300); time.sleep(60)",
    "end by a signal": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("mode", CONTAINED)
@pytest.mark.parametrize("program", attacks(AGAINST_THE_WATCHER))
def test_what_a_program_does_to_its_watcher_is_its_own_failure(program, mode, run_code):
    result = refused_or(lambda: run_code(f"import os, time\n{program}", mode=mode, timeout=2.0), mode)
    assert result is None or result.problem is None, result


@attack(KIND, "make the kernel kill another process for its memory")
@pytest.mark.parametrize("mode", CONTAINED)
def test_a_program_is_the_first_victim_of_the_oom_killer(mode, run_code):
    code = """
try: open("/proc/self/oom_score_adj", "w").write("0")
except OSError: pass
print(open("/proc/self/oom_score_adj").read())
"""
    result = refused_or(lambda: run_code(code, mode=mode), mode)
    assert result is None or result.stdout.strip() == "1000"


@attack(KIND, "fill the disk")
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


@attack(KIND, "leave files for the next program")
@pytest.mark.parametrize("mode", CONTAINED)
def test_what_one_program_leaves_the_next_does_not_find(mode, run_code):
    # /tmp is the private folder, unless the Python that runs us lies below it; then it is read-only.
    leave = "import os\nprint(os.listdir('.'), 'left' in os.listdir('/tmp'))\nopen('left', 'w').write('x')"
    first, second = (refused_or(lambda: run_code(leave, mode=mode), mode) for _ in range(2))
    if first is not None:
        assert first.stdout == second.stdout == "['main.py'] False\n"


BY_CHILDREN = """
import os, time
for _ in range(5):
    if os.fork() == 0:
        x = bytearray(10**8)
        time.sleep(60)
time.sleep(60)
"""


@attack(KIND, "hold memory in a container that hides parts of /proc")
@pytest.mark.parametrize("mask_proc", [True] if IS_ROOT and isolation().strong else [])
def test_memory_is_limited_without_a_proc_of_its_own(mask_proc):
    with as_user(mask_proc=mask_proc) as options:
        programs = UserPrograms(options)
        try:
            result = programs.run("import os; print(os.path.exists('/proc/self'))")
            assert result.stdout == "False\n", result  # or this test tests nothing
            assert programs.run(BY_CHILDREN, memory_mb=256).killed == "memory"
        finally:
            programs.close()


@attack(KIND, "own the system's files because root trains without CAP_SYS_ADMIN")
@pytest.mark.parametrize("context", [as_limited_root] if IS_ROOT and isolation().strong else [])
def test_root_without_cap_sys_admin_runs_programs_as_an_ordinary_user(context):
    code = "print(open('/proc/self/uid_map').read(), isinstance(open('/proc/self/status').read(), str))"
    with context() as options:
        programs = UserPrograms(options)
        try:
            result = programs.run(code)
        finally:
            programs.close()
    inside, outside, count = result.stdout.split()[:3]
    assert (int(inside) > 0, int(outside) > 0, count) == (True, True, "1"), result


# assertions

ALWAYS = """
class Always(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __gt__ = __le__ = __ge__ = __contains__ = __lt__
    def __add__(self, other): return self
    __sub__ = __radd__ = __rsub__ = __mul__ = __abs__ = __neg__ = __round__ = lambda self, *other: self
    __hash__ = int.__hash__
class Odd:
    pass
for name, method in list(vars(Always).items()):
    if callable(method) and name != "__hash__": setattr(Odd, name, method)
def f(x): return RESULT
"""
AS_INT, AS_OBJECT = ALWAYS.replace("RESULT", "Always()"), ALWAYS.replace("RESULT", "Odd()")
FIND = """
import gc, glob, os, re, sys
def f(x):
    return 0
def search():
    texts = [str(sys._current_frames()), str(vars(sys.modules["__main__"]))[:10**6]]
    texts += [one for one in gc.get_objects() if isinstance(one, str)][:10**5]
    for path in glob.glob("/proc/[0-9]*/*") + glob.glob("/proc/[0-9]*/fd/*") + glob.glob("/box/*"):
        try:
            if not path.endswith(("kmsg", "mounts")): texts.append(open(path, "rb").read(10**6).decode("latin-1"))
        except OSError: pass
    for parent in (os.getppid(), 1):
        try: texts.append(os.pread(os.open(f"/proc/{parent}/mem", 0), 10**6, 0).decode("latin-1"))
        except OSError: pass
    return set(re.findall(r'"token": "([0-9a-f]{32})"|\\b([0-9a-f]{32})\\b', " ".join(map(str, texts))))
def tell(word):
    for number in range(1, 30):
        try: os.write(number, f"\\n{word}\\n".encode())
        except OSError: pass
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try: os.write(os.open(path, 1), f"\\n{word}\\n".encode())
        except OSError: pass
for words in search():
    for word in words:
        if word: tell(word)
"""
# Name -> program, and statements that it must not pass.
SEARCH = "steal the pass word"
CHEATS = {
    "return an object equal to everything": (AS_OBJECT, ["f(1) == 5", "f(1) == [5, sum([1])]", "5 == f(1)"]),
    "return a number equal to everything": (AS_INT, ["f(1) == 5", "f(1) == 5 + 1", "sorted([f(1)]) == sorted([5])"]),
    "return an object that compares as it likes": (AS_OBJECT, ["abs(f(1) - 2.5) < 1e-6", "f(1) > 3", "3 in f(1)"]),
    "return a container of everything": (
        "class C(list):\n  def __contains__(self, x): return True\ndef f(x): return C()",
        ["3 in f(1)", "{1, 2} <= set(f(1))"],
    ),
    SEARCH: (FIND, ["f(1) == int('5')", "len(str(f(1))) == 2"]),
    "exit with a good status": ("import os\nos._exit(0)", ["f(1) == 5", "f(1) > 3"]),
    "exit inside the function": ("import os\ndef f(x): os._exit(0)", ["f(1) == 5", "f(1) > 3"]),
    "raise SystemExit": ("def f(x): raise SystemExit(0)", ["f(1) == 5", "f(1) > 3"]),
    "print at exit": ("import atexit\natexit.register(print, 5)\ndef f(x): return 0", ["f(1) == 5", "f(1) > 3"]),
    "replace the built-in functions": (
        "import builtins\nfor name in ('sorted', 'abs', 'len', 'sum', 'set', 'all', 'any', 'isinstance'):\n"
        "  setattr(builtins, name, lambda *a, **k: 5)\ndef sorted(x): return 5\ndef f(x): return 0",
        ["abs(f(1)) > 3", "sorted([f(1)]) == sorted([5])"],
    ),
    "replace stdout": (
        "import sys, io\nsys.stdout = type('O', (io.StringIO,), {'write': lambda s, t: 5})()\ndef f(x): return 0",
        ["f(1) == 5", "f(1) > 3"],
    ),
    "forge replies to the grader": (
        "import os\ndef f(x):\n  for n in range(3, 20):\n    try: os.write(n, b'[\"result\", [\"mine\", 0]]\\n' * 9)\n"
        "    except OSError: pass\n  return 0",
        ["f(1) > 3", "f(1) == 5 + f(2)"],
    ),
    "send nonsense to the grader": (
        "import os\ndef f(x):\n  for n in range(3, 20):\n    try: os.write(n, b'[' * 100000 + b'\\n')\n"
        "    except OSError: pass\n  return 0",
        ["f(1) > 3"],
    ),
    "interrupt the grader": (
        "import os\ndef f(x):\n  for n in (2, 14, 10, 12, 1): os.kill(os.getppid(), n)\n  return 0",
        ["f(1) > 3", "[f(1)] == [5 + 0]"],
    ),
    "starve the grader of memory": (
        "import os, resource\ndef f(x):\n  for kind in (9, 2, 7):\n"
        "    try: resource.prlimit(os.getppid(), kind, (1000, 1000))\n    except OSError: pass\n  return 0",
        ["f(1) > 3"],
    ),
    "raise what the statement would catch": (
        "def f(x): raise AssertionError('no')", ["f(1) > 3", "any(f(n) for n in range(3)) or f(1) == 5"],
    ),
    "define only what the statement compares with": ("expected = 0\ndef f(x): return 0", ["f(1) == int('5')"]),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        # Searching all objects of the process for a word takes ten seconds.
        pytest.param(name, marks=[attack(KIND, f"pass assertions: {name}"), *[pytest.mark.long] * (name == SEARCH)])
        for name in CHEATS
    ],
)
def test_an_assertion_is_not_passed_by(name):
    program, tests = CHEATS[name]
    truth = {"assert_case": [f"assert {test}" for test in tests]}
    if not isolation().strong:
        with pytest.raises(UserError, match=r"sandbox\.allow_weak"):
            code(f"```python\n{program}\n```", truth)
        return
    result = code(f"```python\n{program}\n```", truth)
    assert set(result["cases"]) <= set("WETM") and len(result["cases"]) == len(tests), result


@attack(KIND, "pass assertions: define tests that nobody calls")
def test_test_functions_are_called():
    program = "```python\ndef f(x): return 2 * x\n```"
    tests = ["def test_one():\n    assert f(2) == 4", "class TestTwo:\n    def test(self):\n        assert f(2) == 4"]
    tests += ["import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(f(2), 4)"]
    wrong = [test.replace("4", "5") for test in tests]
    if isolation().strong:
        assert code(program, {"assert_case": [*tests, *wrong]})["cases"] == "PPPEEE"
    else:
        with pytest.raises(UserError, match=r"sandbox\.allow_weak"):
            code(program, {"assert_case": tests})
