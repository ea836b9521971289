"""LANGUAGES: how a program of each language is compiled and started."""

from __future__ import annotations

import functools
import shutil
from dataclasses import dataclass

from burnish.errors import UserError
from burnish.isolation.spawn import BARE_PYTHON, package_folders
from burnish.registry import Registry

LANGUAGES = Registry("programming language", key="ground_truth.language")


@dataclass(frozen=True)
class Language:
    """The code is in `file`. `compile` writes to {out}, a folder outside; `run` starts in the private folder."""

    file: str
    run: tuple[str, ...]
    compile: tuple[str, ...] | None = None


@LANGUAGES.register("python", fences=("python", "python3", "py"))
@functools.cache
def python() -> Language:
    """This Python interpreter with its installed packages, but without its environment and start-up files."""
    # Not runpy, which takes longer to import than most programs to run.
    start = f"import sys; sys.path += {list(package_folders())!r}; sys.argv = ['main.py']; __file__ = 'main.py'; "
    run = "del sys; exec(compile(open(__file__, 'rb').read(), __file__, 'exec'))"
    return Language("main.py", (*BARE_PYTHON, "-c", start + run))


@LANGUAGES.register("cpp", fences=("cpp", "c++", "cc"))
@functools.cache
def cpp() -> Language:
    """C++17, compiled with g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise UserError("C++ programs require g++, which is not installed", key="ground_truth.language", value="cpp")
    return Language(
        "main.cpp", ("{out}/main",), compile=(compiler, "-O2", "-std=c++17", "-o", "{out}/main", "main.cpp")
    )
