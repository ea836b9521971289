"""A fresh clone: every make target but the tests, and every command of README.md and docs/start.md, as written."""

from __future__ import annotations

import re
import warnings

import pytest

from ..laws.source import ROOT
from .conftest import Sandbox
from .documented import documented_commands
from .test_documented import PAGES

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.search(r"^\.PHONY: (.+)$", MAKEFILE, flags=re.M)[1].split()
LAST = "clean"  # removes the environment that the others share
RUN = [target for target in TARGETS if not target.startswith("test") and target != LAST]
DOCUMENTED = [command for page in PAGES for command in documented_commands(page)]
LEFT_OUT = {
    str(command): f"needs {command.needs}" if command.needs else "is a test target"
    for command in DOCUMENTED
    if command.needs or command.text.startswith("make test")
}
COMMANDS = [command for command in DOCUMENTED if str(command) not in LEFT_OUT]


@pytest.mark.parametrize("target", RUN)
def test_make_targets_work(clone: Sandbox, target: str):
    clone.check(f"make {target}")
    assert clone.run("git status --porcelain").stdout == "", f"`make {target}` changes files of the clone"


def test_the_environment_has_the_cpu_build_and_no_cuda(clone: Sandbox):
    installed = clone.check("make docs > /dev/null && python -m pip list --format freeze").split()
    assert [name for name in installed if re.match(r"torch==", name)]
    assert [name for name in installed if name.startswith("nvidia")] == []
    assert clone.check("python -c 'import torch; print(torch.version.cuda)'").split()[-1] == "None"


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_documented_commands_work(clone: Sandbox, command):
    if not command.shown:
        clone.check(command.text)
        return
    done = clone.run(command.text)
    assert plain(command.shown) in plain(done.stdout), done.stdout


def test_what_was_left_out_is_listed():
    assert 0 < len(LEFT_OUT) < len(COMMANDS) + 1
    for command, reason in LEFT_OUT.items():
        warnings.warn(f"not run: {command} ({reason})", stacklevel=1)


def plain(text: str) -> str:
    """However it is wrapped."""
    return " ".join(text.split())


def test_clean_removes_what_the_targets_made(clone: Sandbox):
    clone.check(f"make {LAST}")
    left = clone.check("git status --porcelain --ignored").splitlines()
    made_by_commands = re.compile(r"!! (.*__pycache__/|burnish\.egg-info/|runs/|data/|outputs/)$")
    documented = re.compile(r"\?\? (mine\.(jsonl|parquet)|my_reward\.py|page\.py)$")
    assert [line for line in left if not made_by_commands.search(line) and not documented.search(line)] == []
