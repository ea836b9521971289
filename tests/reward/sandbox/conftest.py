"""Ways to run programs here, and a machine for each."""

import os

import pytest

from burnish.reward.sandbox import local, namespaces
from burnish.reward.sandbox.inside import ROOT, USER, WEAK
from burnish.reward.sandbox.local import Machine
from burnish.reward.sandbox.namespaces import Isolation
from burnish.reward.sandbox.settings import SandboxSettings


def forced(way):
    """What `isolation` would say if this were the only way."""
    strong = way != WEAK
    return Isolation(strong, strong, strong, strong, True, True, way, f"programs run the {way} way")


def works(way):
    seen, _ = namespaces._probe(way)
    return seen is not None and Isolation(**seen, way=way, sentence="").strong


# Root tries both, because what works for root differs from what works for an ordinary user.
STRONG = [way for way in ((ROOT, USER) if os.geteuid() == 0 else (USER,)) if works(way)]
# As parameters of tests: the second way takes as long as the first.
ISOLATED = [*STRONG[:1], *(pytest.param(way, marks=pytest.mark.long) for way in STRONG[1:])]
CONTAINED = ISOLATED or [WEAK]
WAYS = [*ISOLATED, WEAK]


@pytest.fixture
def use_way(monkeypatch):
    """use_way(way) makes programs run in that way."""

    def use(way):
        found = forced(way)
        monkeypatch.setattr(namespaces, "isolation", lambda: found)
        monkeypatch.setattr(local, "isolation", lambda: found)

    return use


@pytest.fixture
def run_code(use_way):
    """run_code(code, stdin, way=..., language=..., **settings) -> Ran."""

    def run(code, stdin="", *, way=None, language="python", **settings):
        if way is not None:
            use_way(way)
        with Machine(SandboxSettings(**{"timeout": 5.0, "memory_mb": 256} | settings)).prepared(code, language) as run:
            return run(stdin)

    return run


def processes_with(mark):
    """Ids of processes on this machine that have this text on their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if mark.encode() in file.read():
                    found.append(int(name))
        except OSError:
            continue
    return found
