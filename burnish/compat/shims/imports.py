"""The import statement of users' files: verl and OpenRLHF are found there, and nowhere else.

A user's file runs with builtins of its own, whose `__import__` knows the stand-ins. They never enter sys.modules, so
that `import verl` anywhere else fails as it should. What a user's file imports from beside it (not from the installed
packages) is a user's file too. A real package, where one is installed, wins.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from burnish.compat.shims.names import PACKAGES, ROOTS, STAND_INS
from burnish.errors import nearest

_importing = threading.local()  # .depth: how many users' files are importing something right now
_user_packages: set[str] = set()  # top-level names found beside users' files


def as_user_file(module: ModuleType) -> None:
    """Let this module, which has not run yet, import as users' files do."""
    module.__dict__["__builtins__"] = _user_builtins()


@contextmanager
def user_imports() -> Iterator[None]:
    """While this lasts, modules that are imported from beside the installed packages are users' files."""
    if not any(isinstance(finder, _Beside) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Beside())
    _importing.depth = getattr(_importing, "depth", 0) + 1
    try:
        yield
    finally:
        _importing.depth -= 1


def user_import(
    name: str,
    globals: Mapping[str, Any] | None = None,
    locals: Mapping[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """`__import__` as users' files have it."""
    root = name.partition(".")[0]
    if level == 0 and root in ROOTS and not is_installed(root):
        return _stand_in(name, tuple(fromlist or ()))
    with user_imports():
        return builtins.__import__(name, globals, locals, fromlist or (), level)


def is_installed(root: str) -> bool:
    """Is there a real package of that name? A mere folder of that name is none."""
    if root in sys.modules:
        return True
    found = importlib.util.find_spec(root)
    return found is not None and found.origin is not None


def _stand_in(name: str, wanted: tuple[str, ...]) -> ModuleType:
    """The module itself for `from name import wanted`, its top package for `import name`."""
    if name not in STAND_INS and name not in PACKAGES:
        raise ModuleNotFoundError(_unknown(name), name=name)
    module = _module(name)
    for one in wanted:
        inner = f"{name}.{one}"
        if inner in STAND_INS or inner in PACKAGES:
            _module(inner)
        elif one != "*" and not hasattr(module, one):
            raise ImportError(_unknown(inner), name=name)
    return module if wanted else _module(name.partition(".")[0])


def _unknown(name: str) -> str:
    root = name.partition(".")[0]
    offered = sorted(one for one in STAND_INS if one.startswith(f"{root}."))
    meant = nearest(name, offered)
    said = f"No module named {name!r}: {root} is not installed, and Burnish has no stand-in for it."
    return said + (f" Did you mean {meant}?" if meant else f" It has {', '.join(offered)}.")


@cache
def _module(name: str) -> ModuleType:
    """A module that holds our things under their names; a part of its package, as theirs is."""
    module = ModuleType(name, "A stand-in for a module of the same name, made by Burnish for users' files.")
    module.__path__ = []
    if name in STAND_INS:
        where, names = STAND_INS[name]
        ours = importlib.import_module(where)
        names = names or {public: public for public in vars(ours) if not public.startswith("_")}
        module.__dict__.update({theirs: getattr(ours, mine) for theirs, mine in names.items()})
    package, _, last = name.rpartition(".")
    if package:
        setattr(_module(package), last, module)
    return module


@cache
def _user_builtins() -> dict[str, Any]:
    return vars(builtins) | {"__import__": user_import}


class _UserLoader(SourceFileLoader):
    """Runs a module with the builtins of users' files."""

    def exec_module(self, module: ModuleType) -> None:
        as_user_file(module)
        super().exec_module(module)


class _Beside(MetaPathFinder):
    """Finds modules that users' files import from beside the installed packages."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root = name.partition(".")[0]
        if not getattr(_importing, "depth", 0) or (root != name and root not in _user_packages):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or _is_package_file(spec.loader.path):
            return None
        _user_packages.add(root)
        spec.loader = _UserLoader(spec.loader.name, spec.loader.path)
        return spec


def _is_package_file(path: str) -> bool:
    file = Path(path).resolve()
    return any(file.is_relative_to(folder) for folder in _package_folders())


@cache
def _package_folders() -> tuple[Path, ...]:
    """Where installed packages lie, and our own."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    ours = Path(__file__).resolve().parents[2]
    return (*{Path(sysconfig.get_path(name)).resolve() for name in names}, ours)
