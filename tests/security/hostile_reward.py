"""Hostile reward functions; the response of a sample names the one to run. Workers import this file."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import stat
import struct
import sys
import threading
import time
from pathlib import Path


def compute_score(solution_str, extra_info):
    return ATTACKS[solution_str](extra_info) if solution_str in ATTACKS else 1.0


class EscapedError(Exception):
    """An attack has succeeded."""


def tries(action):
    try:
        return action()
    except (OSError, ValueError, KeyError):
        return None


def use_devices(targets):
    names = set(os.listdir("/dev"))
    if names - {"null", "full", "random", "urandom", "fd", "stdin", "stdout", "stderr", "shm"}:
        raise EscapedError(names)
    node = os.path.join(os.environ["TMPDIR"], "disk")
    if tries(lambda: os.mknod(node, 0o600 | stat.S_IFBLK, os.makedev(254, 0)) or True):
        raise EscapedError("mknod")
    open("/dev/null", "w").close()
    return 1.0


def connect_by_path(targets):
    if tries(lambda: socket.socket(socket.AF_UNIX).connect(targets["socket"]) or True):
        raise EscapedError
    return 1.0


def connect_by_name(targets):
    if tries(lambda: socket.socket(socket.AF_UNIX).connect("\0" + targets["abstract"]) or True):
        raise EscapedError
    return 1.0


def send_by_datagram(targets):
    pair = tries(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
    if pair and tries(lambda: pair[0].sendto(b"x", targets["socket"])):
        raise EscapedError
    if pair:
        raise EscapedError("a pair of datagram sockets")
    return 1.0


def use_pairs(targets):
    """No attack: what asyncio and multiprocessing need works."""
    one, other = socket.socketpair()
    one.send(b"x")
    return float(other.recv(1) == b"x")


def hold_uncounted_memory(targets):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_ssize_t
    shared = libc.mmap(None, ctypes.c_size_t(2**20), 3, 0x21, -1, ctypes.c_ssize_t(0))
    found = [libc.memfd_create(b"x", 0), shared, libc.shmget(0, ctypes.c_size_t(2**20), 0o1600), libc.msgget(0, 0o1600)]
    if any(result != -1 for result in found):
        raise EscapedError(found)
    return 1.0


def hold_memory_in_children(targets):
    for _ in range(6):
        if os.fork() == 0:
            kept = bytearray(100 * 2**20)
            time.sleep(60)
            del kept
    time.sleep(60)


def fill_the_folder(targets):
    with open(os.path.join(os.environ["TMPDIR"], "large"), "wb") as file:
        for _ in range(400):
            file.write(bytes(2**20))
            if file.tell() > 2**30:
                raise EscapedError
    time.sleep(60)


def change_the_kernel(targets):
    for name in ("kernel/core_pattern", "kernel/panic", "vm/drop_caches"):
        if tries(lambda name=name: Path(f"/proc/sys/{name}").write_text("1")):
            raise EscapedError(name)
    if tries(lambda: Path("/proc/sysrq-trigger").write_text("h")):
        raise EscapedError("sysrq")
    return 1.0


def write_outside(targets):
    for path in (targets["folder"] + "/x", "/x", os.path.dirname(os.__file__) + "/x.py", __file__):
        if tries(lambda path=path: os.open(path, os.O_WRONLY | os.O_CREAT)):
            raise EscapedError(path)
    return 1.0


def read_other_environments(targets):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        text = tries(lambda pid=pid: Path(f"/proc/{pid}/environ").read_bytes()) or b""
        if targets["token"].encode() in text:
            raise EscapedError(pid)
    if targets["token"] in str(os.environ):
        raise EscapedError("environ")
    return 1.0


def kill_everything(targets):
    os.kill(-1, signal.SIGKILL)


def kill_the_group(targets):
    os.kill(0, signal.SIGKILL)


def signal_init(targets):
    for number in range(1, 65):
        tries(lambda number=number: os.kill(1, number))
    return 1.0


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


class Hostile:
    def __repr__(self):
        raise RuntimeError("no text")

    __str__ = __repr__

    def __reduce__(self):
        return os.system, ("touch escaped",)


class EndlessDict(dict):
    def items(self):
        number = 0
        while True:
            number += 1
            yield str(number), "x" * 1000


def channel():
    """The worker's end of the pipe to the run."""
    for number in range(3, 100):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
    raise EscapedError("no channel")


def send(message):
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    os.write(channel(), struct.pack("!i", len(data)) + data)


def current_sample():
    """The number of the chunk that is being evaluated and the index in it, from the frames above."""
    frame = sys._getframe()
    while frame is not None:
        if "chunk" in frame.f_locals:
            return frame.f_locals["chunk"].number, frame.f_locals["index"]
        frame = frame.f_back
    raise EscapedError("no chunk")


def forge(value, extras=None):
    send([*current_sample(), value, extras or {}, None, "", ""])


def answer_and_hang(targets):
    forge(1.0)
    time.sleep(60)


def answer_and_hold_the_interpreter(targets):
    """A thread that never gives up the interpreter, from when the answer is sent."""

    def hold():
        time.sleep(0.1)
        ctypes.PyDLL(None).sleep(60)

    threading.Thread(target=hold, daemon=True).start()
    return 1.0


def forge_a_huge_number(targets):
    number, index = current_sample()
    send(f"[{number}, {index}, 1{'0' * 400}, {{}}, null, '', '']".replace("'", '"').encode())
    time.sleep(60)


def forge_deep_extras(targets):
    extras = '{"a": ' + "[" * 3000 + "]" * 3000 + "}"
    number, index = current_sample()
    send(f'[{number}, {index}, 1.0, {extras}, null, "", ""]'.encode())
    time.sleep(60)


def forge_a_pickle(targets):
    import pickle

    send(pickle.dumps(Hostile()))
    time.sleep(60)


def forge_a_large_message(targets):
    os.write(channel(), struct.pack("!i", 2**30))
    time.sleep(60)


ATTACKS = {
    "use devices": use_devices,
    "connect to a unix socket by its path": connect_by_path,
    "connect to an abstract unix socket": connect_by_name,
    "send a datagram to a unix socket": send_by_datagram,
    "use pairs of sockets": use_pairs,
    "hold memory that no limit counts": hold_uncounted_memory,
    "hold memory in children": hold_memory_in_children,
    "hold memory in its folder": fill_the_folder,
    "change settings of the kernel": change_the_kernel,
    "write outside its folder": write_outside,
    "read secrets of the environment": read_other_environments,
    "kill every process": kill_everything,
    "kill its process group": kill_the_group,
    "signal the init process": signal_init,
    "return a huge integer": lambda targets: 10**400,
    "return a number that overflows float32": lambda targets: 1e300,
    "return infinity": lambda targets: float("inf"),
    "return NaN": lambda targets: {"score": float("nan")},
    "return extras nested 10,000 times": lambda targets: {"score": 1.0, "extra": nested(10_000)},
    "return extras of 100 MB": lambda targets: {"score": 1.0, "extra": "x" * 10**8},
    "return endless extras": lambda targets: {"score": 1.0, "extra": EndlessDict(a=1)},
    "return an object with a hostile __repr__ and __reduce__": lambda targets: {"score": 1.0, "extra": Hostile()},
    "return a hostile object as the score": lambda targets: Hostile(),
    "return an integer of 200 digits as an extra": lambda targets: {"score": 1.0, "extra": 10**200},
    "answer, then hang": answer_and_hang,
    "answer, then hold the interpreter": answer_and_hold_the_interpreter,
    "forge a huge number": forge_a_huge_number,
    "forge deep extras": forge_deep_extras,
    "forge a pickle as the answer": forge_a_pickle,
    "announce a message of 1 GiB": forge_a_large_message,
}
