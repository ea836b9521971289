"""All keys of a job as a flat mapping: field, type, default and docs of each."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any

from burnish.config.fields import Facts, facts_of, spelling
from burnish.config.jobs import JOBS
from burnish.errors import UserError


@dataclass(frozen=True)
class Leaf:
    """One key that holds a value."""

    key: str  # as users write it
    path: str  # attribute path in the config
    owner: type  # the dataclass that declares it
    name: str  # the field's name
    hint: Any
    default: Any  # may be an interpolation, "${...}"
    facts: Facts

    @property
    def doc(self) -> str:
        return english(self.owner, self.name)

    @property
    def free(self) -> bool:
        """Whether it holds a mapping with arbitrary keys."""
        return any(typing.get_origin(kind) is dict for kind in kinds(self.hint))

    @property
    def type_name(self) -> str:
        return " | ".join(_type_name(kind) for kind in kinds(self.hint))


@dataclass(frozen=True)
class Section:
    """One key that holds other keys."""

    key: str
    path: str
    cls: type

    @property
    def doc(self) -> str:
        return inspect.cleandoc(self.cls.__doc__ or "")


@dataclass(frozen=True)
class Tree:
    """All keys of one job."""

    job: str
    root: type
    leaves: dict[str, Leaf]
    sections: dict[str, Section]

    def find(self, key: str) -> tuple[Leaf, str] | None:
        """The leaf of a key, and the rest of the key inside a free mapping ("" for the leaf itself)."""
        head, rest = key, ""
        while head:
            leaf = self.leaves.get(head)
            if leaf is not None and (not rest or leaf.free):
                return leaf, rest
            head, _, last = head.rpartition(".")
            rest = f"{last}.{rest}" if rest else last
        return None

    def get(self, key: str) -> tuple[Leaf, str]:
        """Like `find`, for keys that exist."""
        match = self.find(key)
        if match is None:
            raise KeyError(key)
        return match

    def inside(self, section: str) -> list[Leaf]:
        return [leaf for leaf in self.leaves.values() if leaf.key.startswith(f"{section}.")]


@cache
def tree(job: str = "train") -> Tree:
    """The tree of a job."""
    if job not in JOBS:
        raise UserError("no such job", key="job", value=job, allowed=JOBS)
    leaves: dict[str, Leaf] = {}
    sections: dict[str, Section] = {}
    _walk(JOBS[job](), "", "", leaves, sections)
    return Tree(job, JOBS[job], leaves, sections)


def _walk(node: Any, key: str, path: str, leaves: dict[str, Leaf], sections: dict[str, Section]) -> None:
    hints = _hints(type(node))
    for field in dataclasses.fields(node):
        below, below_path = f"{key}{spelling(field)}", f"{path}{field.name}"
        value = getattr(node, field.name)
        if dataclasses.is_dataclass(value):
            sections[below] = Section(below, below_path, type(value))
            _walk(value, f"{below}.", f"{below_path}.", leaves, sections)
        else:
            leaves[below] = Leaf(below, below_path, type(node), field.name, hints[field.name], value, facts_of(field))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def kinds(hint: Any) -> tuple[Any, ...]:
    """The members of a union: (int, NoneType) for `int | None`."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _type_name(kind: Any) -> str:
    if kind is type(None):
        return "null"
    if kind is Any:
        return "any"
    if typing.get_origin(kind) is dict:
        return "mapping"
    if typing.get_origin(kind) is list:
        return f"list of {_type_name(typing.get_args(kind)[0])}"
    return kind.__name__


def english(cls: type, name: str) -> str:
    """The docstring under a field, in the class or its first base that has one."""
    for base in cls.__mro__:
        doc = _docs_of(base).get(name)
        if doc is not None:
            return doc
    return ""


@cache
def _docs_of(cls: type) -> dict[str, str]:
    """The string literal after each annotated field of a class."""
    if not dataclasses.is_dataclass(cls):
        return {}
    definition = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(definition, ast.ClassDef)
    return {
        above.target.id: " ".join(inspect.cleandoc(below.value.value).split())
        for above, below in itertools.pairwise(definition.body)
        if isinstance(above, ast.AnnAssign)
        and isinstance(above.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def to_plain(node: Any) -> Any:
    """A config as dicts and lists, with the keys that users write."""
    if dataclasses.is_dataclass(node):
        return {spelling(field): to_plain(getattr(node, field.name)) for field in dataclasses.fields(node)}
    return node
