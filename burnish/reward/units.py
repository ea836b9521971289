"""Units behind numeric answers. Rules drop them; two different known units make two different answers."""

from __future__ import annotations

import re

# Unit -> other spellings. Plurals with s need no entry.
_SPELLINGS = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "inch": "in inches",
    "foot": "ft feet",
    "yard": "yd",
    "mile": "mi",
    "g": "gm gram",
    "kg": "kilogram",
    "pound": "lb",
    "ounce": "oz",
    "liter": "litre l L",
    "ml": "mL milliliter millilitre",
    "second": "s sec",
    "minute": "min",
    "hour": "h hr",
    "day": "",
    "week": "",
    "month": "",
    "year": "yr",
    "dollar": "",
    "cent": "",
    "degree": "",
    "radian": "rad",
    "percent": "",
    "mph": "",
    "km/h": "kmh kph",
}
_UNITS = {spelling: unit for unit, others in _SPELLINGS.items() for spelling in (unit, *others.split())}
_AROUND = re.compile(r"\b(?:square|cubic|sq|cu)\b|\^?\{?[23]\}?|[ .]")


def known_unit(name: str) -> str:
    r"""The unit that a text such as `square centimeters` or `cm^2` names; empty if it is not a known one."""
    word = _AROUND.sub("", name)
    return _UNITS.get(word) or _UNITS.get(word.lower()) or _UNITS.get(word.lower().removesuffix("s")) or ""


def units_differ(one: str, other: str) -> bool:
    """Whether both texts name known units, and not the same one."""
    first, second = known_unit(one), known_unit(other)
    return bool(first and second and first != second)
