"""LANGUAGES: how a program of each language is compiled and started."""

from __future__ import annotations

import functools
import shutil
import sysconfig
from dataclasses import dataclass

from burnish.errors import UserError
from burnish.registry import Registry
from burnish.reward.sandbox.namespaces import BARE_PYTHON

LANGUAGES = Registry("programming language", key="ground_truth.language")


@dataclass(frozen=True)
class Language:
    """The program stands in `file`. `compile` writes to {out}, a folder outside; `run` starts in the private folder."""

    file: str
    run: tuple[str, ...]
    compile: tuple[str, ...] | None = None


@LANGUAGES.register("python", fences=("python", "python3", "py"))
@functools.cache
def python() -> Language:
    """The Python that runs us, with its installed packages, but without its environment and start-up files."""
    paths = list(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
    start = f"import sys, runpy; sys.path += {paths!r}; sys.argv = ['main.py']; "
    return Language("main.py", (*BARE_PYTHON, "-c", start + "runpy.run_path('main.py', run_name='__main__')"))


@LANGUAGES.register("cpp", fences=("cpp", "c++", "cc"))
@functools.cache
def cpp() -> Language:
    """C++17 by g++, where there is one."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise UserError(
            "programs in C++ need g++, which is not installed here", key="ground_truth.language", value="cpp"
        )
    return Language(
        "main.cpp", ("{out}/main",), compile=(compiler, "-O2", "-std=c++17", "-o", "{out}/main", "main.cpp")
    )
