"""Metadata of config fields beyond their type: allowed values, bounds, verl's default, spelling."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class _Same:
    """Marks a default that equals verl's, or a key that verl does not have."""

    def __repr__(self) -> str:
        return "same"


SAME = _Same()


@dataclass(frozen=True)
class Facts:
    """The metadata of one field. Bounds are inclusive unless `open_low`."""

    allowed: tuple[Any, ...] | None = None
    user_paths: bool = False  # path/to/file.py:name is allowed too
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    comma_separated: bool = False  # "a,b" is two entries
    off: tuple[Any, ...] = ()  # values that mean "disabled"; each becomes `off_value`
    off_value: Any = None
    verl: Any = SAME  # verl's default if it differs
    spelled: str | None = None  # the key, if it is not a Python identifier

    def bounds(self) -> str | None:
        """The bounds as text, or None."""
        low = None if self.low is None else f"{'>' if self.open_low else '>='} {self.low:g}"
        high = None if self.high is None else f"<= {self.high:g}"
        return " and ".join(part for part in (low, high) if part) or None


NO_FACTS = Facts()


def setting(default: Any, **facts: Any) -> Any:
    """A field with metadata; a list or mapping default is copied for each instance."""
    metadata = {"facts": Facts(**facts)}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def one_of(default: Any, names: Iterable[Any], **facts: Any) -> Any:
    """One of these values; in a list field, every entry must be one of them."""
    return setting(default, allowed=tuple(names), **facts)


def at_least(default: Any, low: float, **facts: Any) -> Any:
    """A number not below `low`."""
    return setting(default, low=low, **facts)


def above(default: Any, low: float, **facts: Any) -> Any:
    """A number strictly above `low`."""
    return setting(default, low=low, open_low=True, **facts)


def between(default: Any, low: float, high: float, **facts: Any) -> Any:
    """A number from `low` to `high`, inclusive."""
    return setting(default, low=low, high=high, **facts)


def files(default: Sequence[str] = (), **facts: Any) -> Any:
    """A list of files: one path, several separated by commas, or a list."""
    return setting(list(default), comma_separated=True, **facts)


def spelled(name: str, default: Any, **facts: Any) -> Any:
    """A field whose key is `name`, for keys with dashes."""
    return setting(default, spelled=name, **facts)


def section(cls: type, **defaults: Any) -> Any:
    """A subsection; `defaults` override those of the class at this place in the tree."""
    return dataclasses.field(default_factory=lambda: cls(**defaults))


def facts_of(field: dataclasses.Field) -> Facts:
    return field.metadata.get("facts", NO_FACTS)


def spelling(field: dataclasses.Field) -> str:
    return facts_of(field).spelled or field.name
