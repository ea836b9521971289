"""Isolation modes that work on this machine, as test parameters."""

import os

import pytest

from burnish.isolation import probe
from burnish.isolation.plan import ROOT, USER, WEAK
from burnish.isolation.probe import Isolation


def works(mode):
    layers, _ = probe._probe(mode)
    return layers is not None and Isolation(**layers, mode=mode).strong


IS_ROOT = os.geteuid() == 0
# Modes that work for this user. Root tries both, because what works for root differs from what works for others.
STRONG = [mode for mode in ((ROOT, USER) if IS_ROOT else (USER,)) if works(mode)]
# As test parameters; the second mode is tested only in the long run.
ISOLATED = [*STRONG[:1], *(pytest.param(mode, marks=pytest.mark.long) for mode in STRONG[1:])]
# Root gives up its rights without namespaces, which needs a Python that others can execute.
MODES = [*ISOLATED, *([WEAK] if probe._probe(WEAK)[0] is not None else [])]
# Modes of programs: those that root cannot use are run by a process of an ordinary user.
CONTAINED = [*STRONG[:1], *([pytest.param(USER, marks=pytest.mark.long)] if IS_ROOT else [])] if STRONG else [WEAK]
PROGRAM_MODES = [*CONTAINED, WEAK] if STRONG else [WEAK]


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
