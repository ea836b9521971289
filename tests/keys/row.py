"""Row: a key, a value other than its default, and an observable that the value changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .kit import Case, Kit

Observe = Callable[["Case"], Any]
Text = str | Callable[["Kit"], str]  # an override, or one that names a file of the kit

ANYTHING = object()
NOISE = 1e-5  # relative difference below which floats are equal


@dataclass(frozen=True)
class Refusal:
    """The result where a run refuses its config: a UserError while it is loaded, built or observed."""

    problem: str


@dataclass(frozen=True)
class Row:
    """`observe` gives one result for the overrides `given`, and another one once `key=value` is added to them.

    A refusal is only accepted where the row declares it, and a row with `refused` does not count as acting.
    """

    key: str
    value: Text
    observe: Observe
    given: tuple[Text, ...] = ()
    expected: Any = ANYTHING  # the other result, if it is known; of a refusal, the beginning of its problem
    refused: bool = False  # `key=value` is refused here, for example because there is no GPU
    refused_without: bool = False  # the run is refused unless `key=value` is set
    long: bool = False  # checked by `make test-all` only: other rows show much the same in `make test`

    def before(self, kit: Kit) -> tuple[str, ...]:
        return tuple(text if isinstance(text, str) else text(kit) for text in self.given)

    def after(self, kit: Kit) -> tuple[str, ...]:
        value = self.value if isinstance(self.value, str) else self.value(kit)
        return (*self.before(kit), f"{self.key}={value}")

    def check(self, kit: Kit) -> None:
        """The observable changes, and to what is expected; runs are refused exactly where the row says so."""
        before, after = kit.seen(self.observe, self.before(kit)), kit.seen(self.observe, self.after(kit))
        setting = self.after(kit)[-1]
        assert isinstance(before, Refusal) == self.refused_without, f"without {setting}: {before!r}"
        assert isinstance(after, Refusal) == self.refused, f"with {setting}: {after!r}"
        if isinstance(after, Refusal):
            assert isinstance(self.expected, str) and after.problem.startswith(self.expected), after.problem
            return
        assert not same(before, after), f"{setting} changes nothing: {after!r}"
        assert self.expected is ANYTHING or same(after, self.expected), f"{after!r} is not {self.expected!r}"


def same(one: Any, other: Any) -> bool:
    """Equal, but for the last bits of numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=NOISE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.allclose(one, other, rtol=NOISE, atol=0)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other
