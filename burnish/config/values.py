"""Convert values that users write to the types of fields, or raise an error."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, TypeGuard

from burnish.config.aliases import UNSUPPORTED_VALUES
from burnish.config.tree import Leaf, kinds
from burnish.errors import UserError, nearest
from burnish.untrusted import load_yaml
from burnish.user_code import is_user_path


class _Mismatch(Exception):
    """The value does not have this type."""


def convert(leaf: Leaf, value: Any) -> Any:
    """The value in the field's type. Interpolations are returned unchanged."""
    if value in leaf.facts.off and value is not True and value is not False:
        return leaf.facts.off_value
    if is_interpolation(value) and not _is_list(leaf):
        return value
    if _means_null(leaf, value):
        return None
    new = _convert_kind(leaf, value)
    for entry in new if isinstance(new, list) else [new]:
        _check_entry(leaf, entry, value)
    return new


def convert_entry(leaf: Leaf, value: Any) -> Any:
    """One entry of a mapping with free names, in the type of its values; as text, null is empty."""
    kinds_of_values = [typing.get_args(kind)[1] for kind in kinds(leaf.hint) if typing.get_origin(kind) is dict]
    if is_interpolation(value) or str not in kinds_of_values:
        return value
    try:
        return _as_str("" if value is None else value)
    except _Mismatch:
        raise UserError("the entries must be text", key=leaf.key, value=value) from None


def is_unset(leaf: Leaf, value: Any) -> bool:
    """Whether the value, null or empty, means that the key is not set.

    verl's own YAML files have null for keys that follow another one or belong to a feature that is off. A switch that
    is on by default is different: verl only tests its truth, so null turns it off.
    """
    if value is not None and value != "":
        return False
    alternatives = kinds(leaf.hint)
    if type(None) in alternatives or leaf.free or _is_list(leaf) or Any in alternatives or value in leaf.facts.off:
        return False
    if bool in alternatives:
        return leaf.default is not True
    return value is None or str not in alternatives or len(alternatives) > 1 or leaf.facts.allowed is not None


def _means_null(leaf: Leaf, value: Any) -> bool:
    """Empty text, and `false` for a number or text, disable a key that can be null."""
    alternatives = kinds(leaf.hint)
    if type(None) not in alternatives:
        return False
    return value == "" or (value is False and bool not in alternatives and Any not in alternatives)


def is_interpolation(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and "${" in value


def _is_list(leaf: Leaf) -> bool:
    return any(typing.get_origin(kind) is list for kind in kinds(leaf.hint))


def _convert_kind(leaf: Leaf, value: Any) -> Any:
    """Try all members of the type, the exact type of the value first."""
    alternatives = sorted(kinds(leaf.hint), key=lambda kind: kind is not type(value))
    for kind in alternatives:
        try:
            return _as(kind, value, leaf)
        except _Mismatch:
            continue
    if value == "":
        raise UserError(
            f"empty, but must be {leaf.type_name}; maybe a shell variable is not set",
            key=leaf.key,
            allowed=_allowed(leaf),
            hint=_example(leaf),
        )
    hint = _example(leaf)
    if isinstance(value, list) and str in alternatives and not any(isinstance(one, list | dict) for one in value):
        hint = f"{leaf.key}=\"'{','.join(map(str, value))}'\""  # Hydra splits text at commas
    raise UserError(f"must be {leaf.type_name}", key=leaf.key, value=value, allowed=_allowed(leaf), hint=hint)


def _as(kind: Any, value: Any, leaf: Leaf) -> Any:
    if kind is Any:
        return value
    origin = typing.get_origin(kind)
    if origin is list:
        return _as_list(typing.get_args(kind)[0], value, leaf)
    if origin is dict:
        return {name: convert_entry(leaf, entry) for name, entry in _as_mapping(value).items()}
    return _SIMPLE[kind](value)


def _as_none(value: Any) -> None:
    if value is not None:
        raise _Mismatch
    return None


def _as_bool(value: Any) -> bool:
    if value is None or value == "":
        return False
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _Mismatch


def _as_int(value: Any) -> int:
    number = _as_float(value)
    if number != number or number in (float("inf"), float("-inf")) or number != int(number):
        raise _Mismatch
    return int(value) if isinstance(value, int) else int(number)


def _as_float(value: Any) -> float:
    """A number; `false` is 0 and `true` is 1, as in Python."""
    if not isinstance(value, int | float | str):
        raise _Mismatch
    try:
        return float(value)
    except ValueError:
        raise _Mismatch from None


def _as_str(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    raise _Mismatch


def _as_list(kind: Any, value: Any, leaf: Leaf) -> Any:
    if value is None or value == "":
        if type(None) in kinds(leaf.hint):
            raise _Mismatch
        return []
    if is_interpolation(value):
        # "${data.train_files}" is a list elsewhere; "${oc.env:DIR}/train.parquet" is one entry.
        whole = value.startswith("${") and value.find("}") == len(value) - 1 and not value.startswith("${oc.")
        return value if whole else [value]
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        value = _parse_list(value)  # a list in one more pair of quotes
    if isinstance(value, str) and leaf.facts.comma_separated:
        value = [part.strip() for part in value.split(",") if part.strip()]
    entries = value if isinstance(value, list | tuple) else [value]
    return [entry if is_interpolation(entry) else _as(kind, entry, leaf) for entry in entries]


def _parse_list(text: str) -> Any:
    try:
        return load_yaml(text)
    except UserError:
        return text


def _as_mapping(value: Any) -> dict:
    if value is None or value == "":
        return {}
    if not isinstance(value, Mapping):
        raise _Mismatch
    return dict(value)


_SIMPLE = {type(None): _as_none, bool: _as_bool, int: _as_int, float: _as_float, str: _as_str}


def _check_entry(leaf: Leaf, entry: Any, written: Any) -> None:
    """Check allowed values and bounds."""
    if entry is None or is_interpolation(entry):
        return
    facts = leaf.facts
    if facts.allowed is not None and entry not in facts.allowed and not (facts.user_paths and _is_path(entry)):
        what = UNSUPPORTED_VALUES.get((leaf.key, str(entry)))
        suggestion = None if what else nearest(str(entry), [str(name) for name in facts.allowed])
        problem = f"{entry} ({what}) is not supported" if what else "not an allowed value"
        if isinstance(written, list) and len(written) > 1 and not what:
            problem = f"{entry!r} is {problem}"
        problem += f". Did you mean {suggestion!r}?" if suggestion else ""
        instead = [suggestion if one == entry else one for one in written] if isinstance(written, list) else suggestion
        hint = f"{leaf.key}={written_as(instead)}" if suggestion else None
        raise UserError(problem, key=leaf.key, value=written, allowed=_allowed(leaf), hint=hint)
    if facts.bounds() is None or isinstance(entry, bool | str):
        return
    too_low = facts.low is not None and (entry < facts.low or (facts.open_low and entry == facts.low))
    too_high = facts.high is not None and entry > facts.high
    if too_low or too_high or entry != entry:
        raise UserError(
            "out of range",
            key=leaf.key,
            value=written,
            allowed=f"{leaf.type_name} {facts.bounds()}",
            hint=_example(leaf),
        )


def _is_path(entry: Any) -> bool:
    return isinstance(entry, str) and is_user_path(entry)


def _allowed(leaf: Leaf) -> Any:
    """The allowed values, as a list or in words."""
    facts = leaf.facts
    if facts.allowed is not None:
        return [*facts.allowed, *(["path/to/file.py:name"] if facts.user_paths else [])]
    return f"{leaf.type_name} {facts.bounds()}" if facts.bounds() else leaf.type_name


def _example(leaf: Leaf) -> str | None:
    """The default as an override; None if it follows another key."""
    if is_interpolation(leaf.default):
        return None
    return f"{leaf.key}={written_as(leaf.default)}"


def written_as(value: Any) -> str:
    """A value as it is typed on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(written_as, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{written_as(entry)}" for key, entry in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)
