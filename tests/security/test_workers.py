"""Reward workers with reward.isolate=true, and the scores that they send. Each attack fails its own sample only."""

import os
import re
import socket
import uuid
from pathlib import Path

import pytest

from burnish.errors import UserError
from burnish.isolation.probe import worker_mode
from burnish.reward.sample import Sample
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings

from .attacks import attack

KIND = "reward workers"
FALLBACK = -7.0
SUPPORTED = worker_mode(network=True, read_only=True)[0] is not None
FILE = str(Path(__file__).with_name("hostile_reward.py"))

# Attack -> what the problem of its sample says; None: the attack did nothing, and the sample has its score.
ISOLATION = {
    "use devices": None,
    "connect to a unix socket by its path": None,
    "connect to an abstract unix socket": None,
    "send a datagram to a unix socket": None,
    "use pairs of sockets": None,
    "hold memory that no limit counts": None,
    "hold memory in children": "used more than reward.memory_mb",
    "hold memory in its folder": "used more than reward.memory_mb|ran out of memory|No space|too large",
    "change settings of the kernel": None,
    "write outside its folder": None,
    "read secrets of the environment": None,
    "kill every process": "the worker died|ProcessLookupError",
    "kill its process group": "the worker died",
    "signal the init process": None,
}
SCORES = {
    "return a huge integer": "returned inf instead of a finite number",
    "return a number that overflows float32": r"returned 1e\+300; a score is at most",
    "return infinity": "returned inf",
    "return NaN": "returned nan",
    "return extras nested 10,000 times": "returned extras nested more than 16 times",
    "return extras of 100 MB": "MiB of extras|ran out of memory|timed out",
    "return endless extras": "timed out|ran out of memory",
    "return an object with a hostile __repr__ and __reduce__": "raised RuntimeError: no text",
    "return a hostile object as the score": "returned Hostile instead of a number",
    "return an integer of 200 digits as an extra": None,
    "answer, then hang": "timed out",
    "answer, then hold the interpreter": "timed out|^$",
    "forge a huge number": "the worker died|timed out",
    "forge deep extras": "the worker died|timed out",
    "forge a pickle as the answer": "the worker died|timed out",
    "announce a message of 1 GiB": "the worker died|timed out",
}
HANG = {name for name in SCORES if "forge" in name or "then" in name or "endless" in name or "1 GiB" in name}


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Sockets that accept connections, and a secret in the environment of this process."""
    token = f"token-{uuid.uuid4()}"
    os.environ["HOSTILE_REWARD_API_KEY"] = token
    abstract, path = f"burnish-{uuid.uuid4()}", f"/tmp/{uuid.uuid4().hex}"  # a socket's path has to be short
    listeners = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    for listener, address in zip(listeners, ("\0" + abstract, path), strict=True):
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
    folder = str(tmp_path_factory.mktemp("outside"))
    yield {"token": token, "abstract": abstract, "socket": path, "folder": folder}, listeners
    for listener in listeners:
        listener.close()
    os.unlink(path)
    del os.environ["HOSTILE_REWARD_API_KEY"]


@pytest.fixture(scope="module")
def scorer(targets):
    settings = RewardSettings(
        path=FILE, num_workers=1, timeout=2.0, memory_mb=300, isolate=True if SUPPORTED else None,
        fallback_score=FALLBACK,
    )  # fmt: skip
    with Scorer(settings) as one:
        yield one


def check(scorer, targets, name, expected):
    """Run the attack between two harmless samples, which must not be affected."""
    samples = [Sample("x", response, "", targets[0], name, number) for number, response in enumerate(("a", name, "b"))]
    before, attacked, after = scorer.score(samples)
    assert (before.value, before.problem) == (after.value, after.problem) == (1.0, None)
    if expected is None:
        assert (attacked.value, attacked.problem) == (1.0, None), attacked
    elif attacked.problem is None:
        assert "" in expected.split("|") or "^$" in expected, attacked
    else:
        assert attacked.value == FALLBACK and re.search(expected, attacked.problem), attacked
    for listener in targets[1]:
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=attack(KIND, name), id=name) for name in ISOLATION] if SUPPORTED else []
)
def test_an_isolated_worker_cannot(name, scorer, targets):
    check(scorer, targets, name, ISOLATION[name])
    assert os.listdir(targets[0]["folder"]) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[attack(KIND, name), *([pytest.mark.long] if name in HANG else [])], id=name)
        for name in SCORES
    ],
)
def test_a_score_fails_only_its_sample(name, scorer, targets):
    check(scorer, targets, name, SCORES[name])


FIRST_MESSAGES = {
    "a pickle": "pickle.dumps(Evil())",
    "nonsense": "b'[' * 100000",
    "no JSON object": "b'7'",
    "an error that is no error": 'b\'{"problem": 3, "unsupported": 1}\'',
}
FORGING_FILE = """
import os, pickle, stat, struct, time
class Evil:
    def __reduce__(self): return os.mkdir, ({folder!r},)
data = {message}
for number in range(3, 100):
    try:
        if stat.S_ISSOCK(os.fstat(number).st_mode): os.write(number, struct.pack("!i", len(data)) + data)
    except OSError: pass
time.sleep(60)
"""


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(message, marks=attack(KIND, f"send {name} as the first message"), id=name)
        for name, message in FIRST_MESSAGES.items()
    ],
)
def test_the_first_message_is_not_believed(message, tmp_path):
    file, folder = tmp_path / "forging.py", tmp_path / "escaped"
    file.write_text(FORGING_FILE.format(folder=str(folder), message=message))
    with pytest.raises(UserError, match="invalid first message"):
        Scorer(RewardSettings(path=str(file), num_workers=1))
    assert not folder.exists()
