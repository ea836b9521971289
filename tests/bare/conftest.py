"""A clone of this checkout and environments of its own: nothing of the environment that runs the tests is visible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..laws.source import ROOT

# Variables that lead to the environment of the tests. HF_HUB_OFFLINE stays set: what needs the hub must fail.
OURS = ("PYTHON", "VIRTUAL_ENV", "COV_", "COVERAGE_", "PYTEST_", "TRITON_", "MAKE", "MFLAGS")


class Sandbox:
    """A folder in which shell commands run with an environment of its own first on the path."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder, self.python = folder, environment / "bin" / "python"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        outside = [one for one in kept["PATH"].split(os.pathsep) if not one.startswith(sys.prefix)]
        self.variables = {
            **kept,
            "PATH": os.pathsep.join([str(self.python.parent), *outside]),
            "PYTHON": str(Path(sys.base_prefix) / "bin" / "python3"),  # for make
            "COLUMNS": "80",
        }

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command as it would be typed; no terminal and no input."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def check(self, command: str) -> str:
        """Its output; the test fails with it if the command fails."""
        done = self.run(command)
        assert done.returncode == 0, f"{command}\nexit status {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """What `git clone` gives; its .venv is made by the make targets. A checkout without git is copied."""
    folder = tmp_path_factory.mktemp("bare") / "burnish"
    if (ROOT / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    else:
        from ..laws.source import tracked_files

        for path in tracked_files():
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
            copy.chmod(path.stat().st_mode)
        commands = ("git init --quiet", "git add .", "git -c user.name=t -c user.email=t commit --quiet -m copy")
        for command in commands:
            subprocess.run(command.split(), cwd=folder, check=True)
    return Sandbox(folder, folder / ".venv")
