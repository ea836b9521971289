"""Registry: name -> function or class, with its requirements. Every choice by name goes through one."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.errors import UserError, nearest
from burnish.user_code import is_user_path, load_user_object


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

    def __init__(self, noun: str, key: str, arguments: Sequence[str] = ()) -> None:
        """`arguments` are the positional ones of every entry, if a user's function is to be checked for them."""
        self.noun = noun
        self.key = key
        self.arguments = arguments
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
            self._check_signature(name, value)
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

    def _check_signature(self, name: str, value: Any) -> None:
        """Refuse a user's function that would fail at its first call."""
        if not self.arguments:
            return
        if not callable(value):
            raise UserError(f"not a function but of type {type(value).__name__}", key=self.key, value=name)
        try:
            signature = inspect.signature(value)
        except (ValueError, TypeError):  # some functions written in C have none
            return
        try:
            signature.bind(*self.arguments)
        except TypeError as error:
            problem = f"{name.rpartition(':')[2]}{signature} cannot be called as a {self.noun}: {error}"
            allowed = f"a function of ({', '.join(self.arguments)})"
            raise UserError(problem, key=self.key, value=name, allowed=allowed) from error

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def names(self) -> list[str]:
        return list(self.entries)
