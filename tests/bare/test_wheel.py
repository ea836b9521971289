"""The wheel: it has every file of the package, and works where there is no checkout."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

import pytest

from ..laws.source import PACKAGE, ROOT, tracked_files
from .conftest import Sandbox

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def wheel(clone: Sandbox):
    clone.check("$PYTHON -m pip wheel --quiet --no-deps --wheel-dir dist .")
    (path,) = (clone.folder / "dist").glob("burnish-*.whl")
    return path


def test_the_wheel_has_every_file_of_the_package(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {str(path.relative_to(ROOT)) for path in tracked_files() if PACKAGE in path.parents}
    assert files - names == set()
    assert {name for name in names if not name.startswith("burnish")} == set()


def test_an_installed_wheel_trains(wheel, tmp_path):
    """A clean environment and a folder outside the checkout; the demo compiles the C kernels and learns."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    sandbox = Sandbox(tmp_path, tmp_path / "venv")
    torch = f"--no-deps -c {ROOT / 'constraints.txt'} torch"
    index = "--extra-index-url https://download.pytorch.org/whl/cpu"
    sandbox.check(f"python -m pip install -qqq {torch} || python -m pip install -qq {index} {torch}")
    sandbox.check(f"python -m pip install -qq -c {ROOT / 'constraints.txt'} {wheel}")
    where = sandbox.check("python -c 'import burnish; print(burnish.__file__)'")
    assert str(tmp_path / "venv") in where
    assert "grpo" in sandbox.check("burnish explain algorithm.adv_estimator")
    sandbox.check(f"burnish rehearse {ROOT / 'examples' / 'verl' / 'run_grpo.sh'}")
    last = json.loads(sandbox.check("burnish demo --json").splitlines()[-1])
    assert last["after"] > last["before"] + 0.3
