"""Registry: name -> function or class, with its requirements. Every choice by name goes through one."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.errors import UserError, nearest


@dataclass(frozen=True)
class Entry:
    """One entry of a registry. `value` is a function or class, or its import path ("module:name")."""

    name: str
    value: Any
    needs: frozenset[str] = frozenset()  # inputs that the function requires, e.g. {"values"}
    metadata: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        """The function or class; a lazy entry is imported now."""
        if not isinstance(self.value, str):
            return self.value
        module, _, name = self.value.partition(":")
        return getattr(importlib.import_module(module), name)


class Registry:
    """Functions or classes chosen by name.

    >>> ADVANTAGES = Registry("advantage estimator", key="algorithm.adv_estimator")
    >>> @ADVANTAGES.register("gae", needs={"values"})
    ... def gae(...): ...
    >>> ADVANTAGES["gae"].needs
    frozenset({'values'})
    """

    def __init__(self, noun: str, key: str) -> None:
        self.noun = noun
        self.key = key
        self.entries: dict[str, Entry] = {}

    def register(self, *names: str, needs: Iterable[str] = (), **metadata: Any) -> Callable[[Any], Any]:
        """Decorator: register the function or class under one or more names."""

        def decorator(value: Any) -> Any:
            for name in names:
                self._add(Entry(name, value, frozenset(needs), metadata))
            return value

        return decorator

    def register_lazy(self, name: str, path: str, needs: Iterable[str] = (), **metadata: Any) -> None:
        """Register an import path ("package.module:name"), which is imported on first use."""
        self._add(Entry(name, path, frozenset(needs), metadata))

    def _add(self, entry: Entry) -> None:
        if entry.name in self.entries:
            raise ValueError(f"{self.noun} {entry.name!r} is already registered")
        self.entries[entry.name] = entry

    def __getitem__(self, name: str) -> Entry:
        """The entry of that name; "path/to/file.py:function" loads the user's own."""
        if name in self.entries:
            return self.entries[name]
        if is_user_path(name):
            value = load_user_object(name, key=self.key)
            return Entry(name, value, frozenset(getattr(value, "needs", ())))
        closest = nearest(name, self.entries)
        problem = f"no such {self.noun}." + (f" Did you mean {closest!r}?" if closest else "")
        raise UserError(
            problem,
            key=self.key,
            value=name,
            allowed=[*self.entries, "path/to/file.py:name"],
            hint=f"{self.key}={closest}" if closest else None,
        )

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def names(self) -> list[str]:
        return list(self.entries)


def is_user_path(name: str) -> bool:
    """Whether the name points to user code: `path/to/file.py:function` or `pkg://package.module:function`."""
    return ".py:" in name or (name.startswith("pkg://") and ":" in name[6:])


def load_user_object(name: str, key: str) -> Any:
    """Import `path/to/file.py:function` (or `pkg://module:function`) and return the object."""
    where, _, attribute = name.rpartition(":")
    return load_user_attribute(where, attribute, key=key, value=name)


def load_user_attribute(path: str, attribute: str, *, key: str, value: object = None) -> Any:
    """Attribute of a user's Python file (or `pkg://module`), with errors in the user's words."""
    value = path if value is None else value
    module = load_user_module(path, key=key)
    if not hasattr(module, attribute):
        names = [n for n, thing in vars(module).items() if callable(thing) and not n.startswith("_")]
        raise UserError(
            f"{path} has no {attribute!r}", key=key, value=value, allowed=names or "a callable defined there"
        )
    return getattr(module, attribute)


def load_user_module(path: str, *, key: str) -> Any:
    """Import a Python file by path, `file://path` or `pkg://dotted.module`. A file is imported once.

    What it imports from verl or OpenRLHF, where they are not installed, has stand-ins there and nowhere else.
    """
    from burnish.compat.shims import imports

    if path.startswith("pkg://"):
        try:
            with imports.user_imports():
                return importlib.import_module(path[6:])
        except ImportError as error:
            raise UserError(f"cannot import {path[6:]}: {error}", key=key, value=path) from error
    file = Path(path.removeprefix("file://")).expanduser()
    if not file.is_file():
        raise UserError("no such file", key=key, value=path, hint=f"{key}=/path/to/a/file.py")
    # The same name in every process, so that what the file defines can be pickled from one to another.
    name = f"burnish_user_{file.stem}_{hashlib.blake2b(str(file.resolve()).encode(), digest_size=6).hexdigest()}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and pickling look it up there
    imports.as_user_file(module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{file} raised {type(error).__name__} on import: {error}", key=key, value=path) from error
    return module
