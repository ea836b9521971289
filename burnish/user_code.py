"""Load users' Python files: reward functions, datasets, tools, or any entry of a registry.

Such files may import modules of verl and OpenRLHF. For those that users' files commonly need, Burnish has stand-ins:
ordinary packages in burnish/compat/stand_ins. Loading a user's file appends that folder to sys.path, so that an
installed verl or OpenRLHF takes precedence.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from burnish.errors import UserError, nearest

STAND_INS = Path(__file__).parent / "compat" / "stand_ins"


def is_user_path(name: str) -> bool:
    """Whether the name points to user code: `path/to/file.py:function` or `pkg://package.module:function`."""
    return ".py:" in name or (name.startswith("pkg://") and ":" in name[6:])


def load_user_object(name: str, key: str) -> Any:
    """Import `path/to/file.py:function` (or `pkg://module:function`) and return the object."""
    path, _, attribute = name.rpartition(":")
    return load_user_attribute(path, attribute, key=key, value=name)


def load_user_attribute(path: str, attribute: str, *, key: str, value: object = None) -> Any:
    """Attribute of a user's Python file (or `pkg://module`). Errors name `key`, and `value` instead of `path`."""
    value = path if value is None else value
    module = load_user_module(path, key=key)
    if not hasattr(module, attribute):
        members = [(n, member) for n, member in vars(module).items() if callable(member) and not n.startswith("_")]
        names = [n for n, member in members if getattr(member, "__module__", None) == module.__name__]
        raise UserError(
            f"{path} has no {attribute!r}",
            key=key,
            value=value,
            allowed=names or [n for n, _ in members] or "a callable defined there",
            hint=_setting(path, nearest(attribute, names) or names[0], key, value) if names else None,
        )
    return getattr(module, attribute)


def _setting(path: str, attribute: str, key: str, value: object) -> str | None:
    """The setting that selects an attribute of the file; None if the key's functions have a fixed name."""
    if value != path:
        return f"{key}={path}:{attribute}"
    return f"{key.removesuffix('path')}name={attribute}" if key.endswith("path") else None


def load_user_module(path: str, *, key: str) -> ModuleType:
    """Import a Python file by path, `file://path` or `pkg://dotted.module`. A file is imported once per process."""
    if str(STAND_INS) not in sys.path:
        sys.path.append(str(STAND_INS))
    if path.startswith("pkg://"):
        try:
            return importlib.import_module(path[6:])
        except ImportError as error:
            raise UserError(f"cannot import {path[6:]}: {_explain(error)}", key=key, value=path) from error
    file = Path(path.removeprefix("file://")).expanduser()
    if not file.is_file():
        raise UserError("no such file", key=key, value=path, hint=f"{key}=/path/to/a/file.py")
    # The name is the same in every process, so that objects of classes defined in the file can be pickled.
    name = f"burnish_user_{file.stem}_{hashlib.blake2b(str(file.resolve()).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, because dataclasses and pickle look it up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        problem = f"{file} raised {type(error).__name__} on import{_line(error, file)}: {_explain(error)}"
        raise UserError(problem, key=key, value=path) from error
    return module


def import_problem(path: str, name: str | None, key: str, progress: object = None) -> str | None:
    """Import a file, and its attribute if one is named; returns what is wrong. Called in an isolated process."""
    try:
        load_user_attribute(path, name, key=key) if name else load_user_module(path, key=key)
    except UserError as error:
        return error.text()
    return None


def is_importable(module: str) -> bool:
    """Whether a module can be found. Nothing is imported, not even the packages that contain it."""
    first, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError, AttributeError):
        return False
    for name in rest:
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = importlib.machinery.PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec is not None


def _line(error: Exception, file: Path) -> str:
    """The last line of the file that was running."""
    paths = (str(file), str(file.absolute()))  # Python may have made it absolute
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in paths]
    number = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
    return "" if number is None else f" (line {number})"


def _explain(error: Exception) -> str:
    """The error's message; for a module or name that a stand-in package lacks, with the stand-ins that exist."""
    if not isinstance(error, ImportError) or error.name is None:
        return str(error)
    root = error.name.partition(".")[0]
    available = stand_in_modules(root)
    if not available or not _is_stand_in(root):
        return str(error)
    missing = re.match(r"cannot import name '(\w+)'", str(error))
    name = f"{error.name}.{missing[1]}" if missing else error.name
    closest = nearest(name, available)
    message = f"No module named {name!r}: {root} is not installed, and Burnish has no stand-in for it."
    return message + (f" Did you mean {closest}?" if closest else f" Available: {', '.join(available)}.")


def stand_in_modules(root: str) -> list[str]:
    """Names of the stand-in modules of a package, without packages that only contain others (empty files)."""
    files = (path.relative_to(STAND_INS) for path in (STAND_INS / root).rglob("*.py") if path.stat().st_size)
    return sorted(".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files)


def _is_stand_in(root: str) -> bool:
    spec = importlib.util.find_spec(root)
    return spec is not None and spec.origin is not None and Path(spec.origin).is_relative_to(STAND_INS)
