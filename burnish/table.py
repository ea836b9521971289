"""Table: name -> thing, with what it needs. Every choice by name in Burnish goes through one."""

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
class Row:
    """One line of a table. `thing` is a function or class, or where to find it ("module:name")."""

    name: str
    thing: Any
    needs: frozenset[str] = frozenset()
    facts: dict[str, Any] = field(default_factory=dict)

    def load(self) -> Any:
        """The thing itself; a lazy row is imported now."""
        if not isinstance(self.thing, str):
            return self.thing
        module, _, name = self.thing.partition(":")
        return getattr(importlib.import_module(module), name)


class Table:
    """Things chosen by name.

    >>> ADVANTAGES = Table("advantage estimator", key="algorithm.adv_estimator")
    >>> @ADVANTAGES.add("gae", needs={"values"})
    ... def gae(...): ...
    >>> ADVANTAGES["gae"].needs
    frozenset({'values'})
    """

    def __init__(self, noun: str, key: str) -> None:
        self.noun = noun
        self.key = key
        self.rows: dict[str, Row] = {}

    def add(self, *names: str, needs: Iterable[str] = (), **facts: Any) -> Callable[[Any], Any]:
        """Decorator: put the function or class under one or more names."""

        def put(thing: Any) -> Any:
            for name in names:
                self._put(Row(name, thing, frozenset(needs), facts))
            return thing

        return put

    def add_lazy(self, name: str, where: str, needs: Iterable[str] = (), **facts: Any) -> None:
        """A row whose module ("package.module:name") is imported only when it is used."""
        self._put(Row(name, where, frozenset(needs), facts))

    def _put(self, row: Row) -> None:
        if row.name in self.rows:
            raise ValueError(f"{self.noun} {row.name!r} is in the table twice")
        self.rows[row.name] = row

    def __getitem__(self, name: str) -> Row:
        """The row of that name; "path/to/file.py:function" loads a user's own."""
        if name in self.rows:
            return self.rows[name]
        if is_user_path(name):
            thing = load_user_object(name, key=self.key)
            return Row(name, thing, frozenset(getattr(thing, "needs", ())))
        meant = nearest(name, self.rows)
        problem = f"no such {self.noun}." + (f" Did you mean {meant!r}?" if meant else "")
        raise UserError(
            problem,
            key=self.key,
            value=name,
            allowed=[*self.rows, "path/to/file.py:name"],
            hint=f"{self.key}={meant}" if meant else None,
        )

    def __contains__(self, name: str) -> bool:
        return name in self.rows

    def names(self) -> list[str]:
        return list(self.rows)


def is_user_path(name: str) -> bool:
    """Is this a user's own name, `path/to/file.py:function` or `pkg://package.module:function`?"""
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
