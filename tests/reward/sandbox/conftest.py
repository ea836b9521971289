"""Isolation modes that work on this machine, and fixtures to run programs in them."""

import os

import pytest

from burnish.reward.sandbox import local, namespaces
from burnish.reward.sandbox.launcher import ROOT, USER, WEAK
from burnish.reward.sandbox.local import LocalRunner
from burnish.reward.sandbox.namespaces import Isolation
from burnish.reward.sandbox.settings import SandboxSettings


def forced(mode):
    """The result of `isolation` if only this mode worked."""
    strong = mode != WEAK
    return Isolation(strong, strong, strong, strong, True, True, mode, f"programs run in mode {mode}")


def works(mode):
    layers, _ = namespaces._probe(mode)
    return layers is not None and Isolation(**layers, mode=mode, description="").strong


# Root tries both, because what works for root differs from what works for an ordinary user.
STRONG = [mode for mode in ((ROOT, USER) if os.geteuid() == 0 else (USER,)) if works(mode)]
# As test parameters; the second mode is tested only in the long run.
ISOLATED = [*STRONG[:1], *(pytest.param(mode, marks=pytest.mark.long) for mode in STRONG[1:])]
CONTAINED = ISOLATED or [WEAK]
MODES = [*ISOLATED, WEAK]


@pytest.fixture
def use_mode(monkeypatch):
    """use_mode(mode) forces an isolation mode."""

    def use(mode):
        current = forced(mode)
        monkeypatch.setattr(namespaces, "isolation", lambda: current)
        monkeypatch.setattr(local, "isolation", lambda: current)

    return use


@pytest.fixture
def run_code(use_mode):
    """run_code(code, stdin, mode=..., language=..., **settings) -> RunResult."""

    def run(code, stdin="", *, mode=None, language="python", **settings):
        if mode is not None:
            use_mode(mode)
        with LocalRunner(SandboxSettings(**{"timeout": 5.0, "memory_mb": 256} | settings)).prepare(
            code, language
        ) as run:
            return run(stdin)

    return run


def processes_with(mark):
    """Ids of processes on this machine that have this text on their command line."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if mark.encode() in file.read():
                    pids.append(int(name))
        except OSError:
            continue
    return pids
