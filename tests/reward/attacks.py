"""Hostile reward functions; the response of a sample names the one to run. Imported by workers."""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

OUTSIDE = os.environ.get("ATTACKS_OUTSIDE", "")  # a folder that is none of its business


class Rude(BaseException):
    def __str__(self):
        raise RuntimeError("no text")


class Liar:
    __class__ = float

    def __float__(self):
        raise ValueError("no number")


class Slow(float):
    def __float__(self):
        time.sleep(60)


class Unspeakable:
    def __str__(self):
        raise RuntimeError("no name")


def compute_score(solution_str, ground_truth, extra_info):
    return ATTACKS[solution_str](ground_truth, extra_info) if solution_str in ATTACKS else 1.0


def raises(error):
    def attack(*_):
        raise error

    return attack


def returns(value):
    return lambda *_: value


def busy(*_):
    while True:
        with contextlib.suppress(BaseException):
            sum(range(1000))


def sleeps_and_ignores(*_):
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)


def holds_the_interpreter(*_):
    ctypes.PyDLL(None).sleep(60)


def deep(*_):
    return deep() + 1


def deeper(*_):
    sys.setrecursionlimit(10**9)
    return deep()


def cyclic(*_):
    loop = []
    loop.append(loop)
    return {"score": 1.0, "loop": loop}


def floods_stdout(*_):
    while True:
        os.write(1, b"x" * 2**20)


def memory(*_):
    return len(bytearray(2**40))


def memory_in_small_pieces(*_):
    return len([bytearray(2**20) for _ in range(2**20)])


def closes_files(*_):
    os.closerange(0, 1000)


def pipes():
    """The worker's end of the pipe to the run, from the open descriptors."""
    for descriptor in range(3, 50):
        with contextlib.suppress(OSError):
            if socket.socket(fileno=os.dup(descriptor)).family == socket.AF_UNIX:
                yield descriptor


def speaks_for_itself(*_):
    for descriptor in pipes():
        message = json.dumps([1, 0, "much", {}, None, "", ""]).encode()
        os.write(descriptor, len(message).to_bytes(4, "big") + message)
    time.sleep(60)


def half_a_message(*_):
    for descriptor in pipes():
        os.write(descriptor, (1000).to_bytes(4, "big") + b"half")
    time.sleep(60)


def endless_message(*_):
    for descriptor in pipes():
        os.write(descriptor, (2**31 - 1).to_bytes(4, "big") + b"x" * 1000)
    time.sleep(60)


def replaces_json(*_):
    json.dumps = lambda *_, **__: "nonsense"
    return 1.0


def empties_modules(*_):
    sys.modules.clear()
    return 1.0


def replaces_the_worker(*_):
    import burnish.reward.worker

    burnish.reward.worker.take_output = lambda: 1 / 0
    return 1.0


def goes_elsewhere(*_):
    os.chdir("/")
    return 1.0


def sets_handlers(*_):
    signal.signal(signal.SIGALRM, lambda *_: None)
    threading.setprofile(lambda *_: 1 / 0)
    return 1.0


def mutates(ground_truth, extra_info):
    extra_info.clear()
    return 1.0


def forks(*_):
    os.fork()
    return 1.0


def fork_bomb(*_):
    while True:
        with contextlib.suppress(OSError):
            os.fork()


def child_memory(*_):
    for _ in range(8):
        if os.fork() == 0:
            hog = bytearray(100 * 2**20)
            time.sleep(len(hog))
    time.sleep(60)


def kills_its_parent(*_):
    os.kill(os.getppid(), signal.SIGKILL)
    return 1.0


def kills_everybody(*_):
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    return 1.0


def kills_its_group(*_):
    os.killpg(0, signal.SIGKILL)


def leaves_a_child(*_):
    alive = os.path.join(OUTSIDE, "alive")
    subprocess.Popen(["sh", "-c", f"while true; do echo x >> {alive}; sleep 0.02; done"], start_new_session=True)
    while not os.path.exists(alive):
        time.sleep(0.01)
    os._exit(1)


def writes_outside(*_):
    with open(os.path.join(OUTSIDE, "written"), "w") as file:
        file.write("x")
    return 1.0


def deletes_outside(*_):
    os.unlink(os.path.join(OUTSIDE, "precious"))
    return 1.0


def writes_inside(*_):
    import tempfile

    with tempfile.NamedTemporaryFile("w") as file:
        file.write("x")
    return 1.0


def uses_the_network(*_):
    socket.create_connection(("127.0.0.1", int(os.environ["ATTACKS_PORT"])), timeout=1).close()
    return 1.0


def reads_secrets(*_):
    return 1.0 if os.environ["ATTACKS_TOKEN"] else 0.0


ATTACKS = {
    "raises": raises(ValueError("bad")),
    "raises exit": raises(SystemExit(0)),
    "raises interrupt": raises(KeyboardInterrupt()),
    "raises its own": raises(Rude()),
    "raises stop": raises(StopIteration(1)),
    "exits": lambda *_: os._exit(0),
    "aborts": lambda *_: os.abort(),
    "crashes": lambda *_: ctypes.string_at(0),
    "nan": returns(float("nan")),
    "infinity": returns(-float("inf")),
    "a list": returns([1.0]),
    "a text": returns("1.0"),
    "nothing": returns(None),
    "no score": returns({"acc": 1.0}),
    "no number": returns(Liar()),
    "a slow number": returns(Slow(1.0)),
    "unspeakable extras": returns({"score": 1.0, Unspeakable(): 1}),
    "cyclic extras": cyclic,
    "huge extras": lambda *_: {"score": 1.0, "blob": "x" * 20 * 2**20},
    "sleeps": lambda *_: time.sleep(60),
    "sleeps and ignores signals": sleeps_and_ignores,
    "is busy whatever happens": busy,
    "holds the interpreter": holds_the_interpreter,
    "never ends in C": lambda *_: re.fullmatch(r"(a+)+b", "a" * 60),
    "large power": lambda *_: len(str(9**9**9)),
    "recursion": deep,
    "recursion without a limit": deeper,
    "floods stdout": floods_stdout,
    "memory": memory,
    "memory in small pieces": memory_in_small_pieces,
    "closes files": closes_files,
    "speaks for itself": speaks_for_itself,
    "half a message": half_a_message,
    "endless message": endless_message,
    "replaces json": replaces_json,
    "empties sys.modules": empties_modules,
    "replaces the worker": replaces_the_worker,
    "goes elsewhere": goes_elsewhere,
    "sets handlers": sets_handlers,
    "mutates its arguments": mutates,
    "forks": forks,
    "fork bomb": fork_bomb,
    "memory of children": child_memory,
    "kills its parent": kills_its_parent,
    "kills everybody": kills_everybody,
    "kills its group": kills_its_group,
    "leaves a child": leaves_a_child,
    "writes outside": writes_outside,
    "deletes outside": deletes_outside,
    "writes inside": writes_inside,
    "uses the network": uses_the_network,
    "reads secrets": reads_secrets,
}
