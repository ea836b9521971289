r"""Formulas: a strict reader of LaTeX answers, and their equality.

The text must be mathematics from end to end. latex2sympy skips what it does not know (`3\phantom{4}` is 7 to it), so it
reads only scalar expressions whose every token is listed here; lists, sets, intervals and relations are taken apart
before. Formulas are equal only if they have the same structure: the list 1, 2 is the set {1, 2}, not the point (1, 2).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_COMMANDS = (
    r"frac sqrt pi cdot times div infty pm int sum prod leq? geq? lt gt cup emptyset"
    r" sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp"
    r" alpha beta gamma delta epsilon theta lambda mu nu rho sigma tau phi omega Delta Omega Phi"
)
_MATHEMATICS = re.compile(
    rf"(?:\\(?:{'|'.join(_COMMANDS.split())})(?![a-zA-Z])\ ?|\\[{{}}]|[0-9]+(?:\.[0-9]+)?"
    r"|[a-zA-Z]|[-+*/^_(){}\[\],;=<>!|])++"  # possessive: there is one way to part a text into tokens
)
# Braces that are not the argument of a command, a power or an index would be read as a product.
_BARE_GROUP = re.compile(r"(?<!\\frac)(?<!\\sqrt)(?<!\\sqrt\[[0-9a-z]\])(?<![\^_}\\])\{")
_STRANGE = re.compile(r"[0-9)}\]]_|!=|\A[a-zA-Z]{2,}\Z")  # 10_2, 3!=6, a word
_MATRIX = re.compile(r"\\begin\{([pbv]?matrix)\}(.*)\\end\{\1\}")
_SIGN = re.compile(r"\\(?:leq?|geq?|lt|gt)(?![a-zA-Z]) ?|[<>=]")
_SIGNS = {r"\leq": "<=", r"\le": "<=", r"\geq": ">=", r"\ge": ">=", r"\lt": "<", r"\gt": ">"}
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "="}
_OPEN, _CLOSE = ("(", "[", r"\{", "{"), (")", "]", r"\}", "}")
_BRACKETS = re.compile(r"\\?[{}]|[()\[\]]")
_LIST, _UNION = re.compile("[,;]"), re.compile(r"\\cup(?![a-zA-Z]) ?")
_PRODUCT = re.compile(r"(?<=[0-9)])(?=\()|(?<=\))(?=[0-9])")  # 3(4): a mixed number to latex2sympy
_MIXED = re.compile(r"(?<![0-9.}\])a-zA-Z^_])([0-9]+)(\\frac\{[0-9]+\}\{[0-9]+\})(?!\^)")
_TOLERANCE = 1e-6  # of decimals, absolute and relative: 0.333333 is 1/3, but 0 is not 0.0000001

Parse = Callable[[str], Any]


class NotAFormula(ValueError):
    """The text is not mathematics that this reader accepts."""


@dataclass(frozen=True)
class Formula:
    """`kind` is scalar, list (also a set), union, matrix, relation, or the two brackets of a point or an interval."""

    kind: str
    parts: tuple[Any, ...]  # formulas; of a scalar its expression
    signs: tuple[str, ...] = ()  # of a relation, one between two parts; of a matrix, its kind and shape


def read_formula(text: str, parse: Parse) -> Formula:
    """`parse` reads a scalar expression. Raises NotAFormula for a text with anything but known mathematics in it."""
    if matrix := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in matrix[2].split(r"\\")]
        entries = tuple(read_formula(entry, parse) for row in rows for entry in row)
        return Formula("matrix", entries, (matrix[1], *(str(len(row)) for row in rows)))
    text = text.replace(r"\varnothing", r"\emptyset")
    bare = text.count("}{") > text.count(r"\frac") or _BARE_GROUP.search(text)
    if bare or not _MATHEMATICS.fullmatch(text) or _STRANGE.search(text):
        raise NotAFormula(text)
    return _read(_PRODUCT.sub(r"\\cdot ", _MIXED.sub(r"(\1+\2)", text)), parse)


def _read(text: str, parse: Parse) -> Formula:
    for separator, kind in ((_LIST, "list"), (_UNION, "union")):
        parts, _ = _split(text, separator)
        if len(parts) > 1:
            return Formula(kind, tuple(_read(part, parse) for part in parts))
    opening, closing = _brackets_around(text)
    if opening:
        parts, _ = _split(text[len(opening) : len(text) - len(closing)], _LIST)
        if opening == r"\{":
            return Formula("list", tuple(_read(part, parse) for part in parts if part))
        if len(parts) > 1:
            return Formula(opening + closing, tuple(_read(part, parse) for part in parts))
    parts, signs = _split(text, _SIGN)
    if signs:
        return Formula("relation", tuple(_read(part, parse) for part in parts), tuple(map(_sign, signs)))
    return _scalar(text, parse)


def _scalar(text: str, parse: Parse) -> Formula:
    r"""An expression; `\pm 3` and the empty set are lists."""
    from sympy import EmptySet, Expr, FiniteSet

    if not text or text.startswith(r"\{"):
        raise NotAFormula(text)
    expression = parse(text)
    if isinstance(expression, FiniteSet) or expression is EmptySet:
        return Formula("list", tuple(Formula("scalar", (element,)) for element in expression.args))
    if not isinstance(expression, Expr):
        raise NotAFormula(text)
    return Formula("scalar", (expression,))


def _sign(word: str) -> str:
    return _SIGNS.get(word.strip(), word)


def _split(text: str, separator: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Split outside of brackets; returns the parts and what separates them."""
    parts, separators, depth, start, position = [], [], 0, 0, 0
    while position < len(text):
        if bracket := _BRACKETS.match(text, position):
            depth += 1 if bracket.group() in _OPEN else -1
            position = bracket.end()
        elif depth == 0 and (match := separator.match(text, position)):
            parts.append(text[start:position])
            separators.append(match.group())
            start = position = match.end()
        else:
            position += 1
        if depth < 0:
            raise NotAFormula(text)
    return [*parts, text[start:]], separators


def _brackets_around(text: str) -> tuple[str, str]:
    """The brackets that enclose the whole text; also an interval's ( with ]. Empty if there are none."""
    opening = next((bracket for bracket in _OPEN[:3] if text.startswith(bracket)), "")
    closing = next((bracket for bracket in _CLOSE[:3] if text.endswith(bracket)), "")
    if not opening or not closing or (opening == r"\{") != (closing == r"\}"):
        return "", ""
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        depth += 1 if bracket.group() in _OPEN else -1
        if depth == 0:
            return (opening, closing) if bracket.end() == len(text) else ("", "")
    return "", ""


def same_formula(one: Formula, other: Formula) -> bool:
    """Whether both have the same structure, and equal expressions in the same places."""
    if one.kind == other.kind == "relation":
        return _same_relation(one, other) or _same_relation(one, _flipped(other))
    if one.kind != other.kind or len(one.parts) != len(other.parts) or one.signs != other.signs:
        return False
    if one.kind == "scalar":
        return same_expression(one.parts[0], other.parts[0])
    if one.kind in ("list", "union"):
        return _same_unordered(one.parts, other.parts)
    return all(map(same_formula, one.parts, other.parts))


def _same_unordered(ones: Sequence[Formula], others: Sequence[Formula]) -> bool:
    left = list(others)
    for one in ones:
        match = next((other for other in left if same_formula(one, other)), None)
        if match is None:
            return False
        left.remove(match)
    return not left


def _flipped(relation: Formula) -> Formula:
    """a < b <= c as c >= b > a."""
    signs = tuple(_FLIPPED[sign] for sign in reversed(relation.signs))
    return Formula("relation", relation.parts[::-1], signs)


def _same_relation(one: Formula, other: Formula) -> bool:
    """The same chain; or, for a single sign, sides whose differences are multiples of one another."""
    if one.signs != other.signs:
        return False
    if all(map(same_formula, one.parts, other.parts)):
        return True
    if len(one.signs) != 1 or any(part.kind != "scalar" for part in (*one.parts, *other.parts)):
        return False
    from sympy import simplify

    first, second = (left.parts[0] - right.parts[0] for left, right in (one.parts, other.parts))
    values = _value(first, 0), _value(second, 0)
    if not all(values) or _differ_somewhere(first * values[1], second * values[0], 1):
        return False
    ratio = simplify(first / second)
    return bool(ratio.is_nonzero if one.signs == ("=",) else ratio.is_positive) and ratio.is_number


def same_expression(one: Any, other: Any) -> bool:
    """Whether two expressions are equal; decimals only approximately."""
    from sympy import Float, simplify

    if one == other or (one.is_Rational and other.is_Rational):
        return bool(one == other)
    one, other = one.doit(), other.doit()
    if one.is_number and other.is_number and (one.has(Float) or other.has(Float)):
        difference, size = abs(complex(one) - complex(other)), max(abs(complex(one)), abs(complex(other)))
        return bool(difference < _TOLERANCE and difference <= 2 * _TOLERANCE * size)
    return not _differ_somewhere(one, other) and bool(simplify(one - other).is_zero)


def _differ_somewhere(one: Any, other: Any, point: int = 0) -> bool:
    """Whether the values at a point differ, which takes much less time than a failing simplification."""
    first, second = _value(one, point), _value(other, point)
    return first is not None and second is not None and abs(first - second) > 1e-9 * max(abs(first), abs(second))


def _value(expression: Any, point: int) -> complex | None:
    """The value at a point that depends on the symbols' names; None if there is none (unknown functions, infinity)."""
    values = {
        symbol: 0.7390851332 + point + zlib.crc32(str(symbol).encode()) % 997 / 997
        for symbol in expression.free_symbols
    }
    try:
        return complex(expression.subs(values).evalf(20))
    except (TypeError, ValueError, OverflowError):
        return None
