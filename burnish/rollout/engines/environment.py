"""The Python environment of an engine's server: ours, or another one named by engine_kwargs.{vllm,sglang}.python.

Releases of vLLM and SGLang pin versions of torch and transformers that contradict each other's and ours. A server may
therefore run from an environment of its own, which is asked for its version and arguments by running its Python. It
sees the package burnish and nothing else of our environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.network import socket_folder
from burnish.untrusted import read_json_object

PACKAGES = Path(__file__).resolve().parents[3]  # the folder of the burnish package
DESCRIBE_TIMEOUT = 300.0  # seconds: a first import of vLLM or SGLang compiles thousands of files
PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")  # they describe our environment


@dataclass(frozen=True)
class Library:
    """What an environment says of the library it has."""

    version: str
    arguments: tuple[str, ...]  # names that its engine takes
    device: str | None = None  # the kind of device it is built for, where a build has one


def python_of(extra: Mapping[str, Any]) -> str | None:
    """The interpreter of another environment; None for ours."""
    python = extra.get("python")
    return None if python is None else os.path.expanduser(str(python))


def check_python(python: str, key: str) -> None:
    """Refuse what is not an executable file. Only the path is checked: a link to an interpreter is one."""
    if not os.path.isabs(python) or not os.path.isfile(python) or not os.access(python, os.X_OK):
        raise UserError(
            "not an executable Python interpreter",
            key=key,
            value=python,
            allowed="the absolute path of the `python` of an environment",
            hint=f"{key}=/path/to/venv/bin/python",
        )


@cache
def describe(name: str, python: str | None, key: str) -> Library:
    """Ask an environment for its library: `name` is vllm or sglang."""
    if python is not None:
        check_python(python, key)
    folder = socket_folder("burnish-describe-")
    answer = folder / "library.json"
    try:
        result = subprocess.run(
            [python or sys.executable, "-m", "burnish.rollout.engines.describe", name, str(answer)],
            env=variables_for(python, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=DESCRIBE_TIMEOUT,
        )
        if result.returncode or not answer.is_file():
            last = (result.stderr.decode(errors="replace").strip() or "no error message").splitlines()[-1]
            raise UserError(f"{name} cannot be imported there: {last}", key=key, value=python or sys.executable)
        fields = read_json_object(answer)
    except subprocess.TimeoutExpired as error:
        problem = f"importing {name} took more than {DESCRIBE_TIMEOUT:g} seconds"
        raise UserError(problem, key=key, value=python) from error
    except OSError as error:
        raise UserError(f"cannot be run: {error.strerror}", key=key, value=python) from error
    finally:
        shutil.rmtree(folder)  # what its link points to stays
    return Library(str(fields["version"]), tuple(map(str, fields["arguments"])), fields["device"])


def variables_for(python: str | None, folder: Path, variables: dict[str, str] | None = None) -> dict[str, str]:
    """The variables of a process in that environment; `folder` is private, and holds a link to burnish."""
    variables = dict(os.environ if variables is None else variables)
    if python is None:
        path = os.pathsep.join(filter(None, [str(PACKAGES), variables.get("PYTHONPATH", "")]))
        return variables | {"PYTHONPATH": path}
    for name in PYTHON_VARIABLES:
        variables.pop(name, None)
    # A link to burnish alone: the folder that holds it may hold all packages of our environment.
    packages = folder / "packages"
    packages.mkdir(mode=0o700)
    (packages / "burnish").symlink_to(PACKAGES / "burnish")
    path = os.pathsep.join(filter(None, [str(Path(python).parent), variables.get("PATH", "")]))
    return variables | {"PYTHONPATH": str(packages), "PATH": path}
