"""Calling a reward function: which arguments it takes, and what its result means."""

from __future__ import annotations

import errno
import inspect
import math
import numbers
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from burnish.errors import UserError, nearest
from burnish.reward.sample import INVALID, RAISED, Outcome

ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
_TRACEBACK_FRAMES = 6
_OUR_FRAMES = {__file__, str(Path(__file__).with_name("evaluate.py"))}
_TEXT_LIMIT = 2000
_EXTRA_LIMIT = 2000


class Caller:
    """A reward function with its keyword arguments, called with as many of the four arguments as it takes."""

    offers: tuple[str, ...] = ARGUMENTS  # what it can give, by name

    def __init__(self, function: Callable[..., Any], kwargs: Mapping[str, Any], *, label: str, key: str) -> None:
        self.function = function
        self.kwargs = dict(kwargs)
        self.label = label
        self.key = key
        self.names = self._accepted()

    @property
    def is_async(self) -> bool:
        call = getattr(self.function, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        # reward_kwargs win over the four arguments, as in verl.
        return self.function(**({name: arguments[name] for name in self.names} | self.kwargs))

    def read(self, result: Any, count: int) -> Outcome:
        """What the function's result means; `count` samples were asked about, here always one."""
        return read_result(result, self.label)

    def _accepted(self) -> list[str]:
        """Those of the arguments that the function takes; UserError if it cannot be called at all."""
        if not callable(self.function):
            raise UserError(f"{self.label} is a {type(self.function).__name__}, not a function", key=self.key)
        parameters = parameters_of(self.function)
        if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return list(self.offers)
        by_keyword = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self._refuse_unknown_kwargs(by_keyword)
        given = by_keyword & ({*self.offers} | self.kwargs.keys())
        optional = {name for name, p in parameters.items() if p.default is not p.empty or p.kind is p.VAR_POSITIONAL}
        missing = [name for name in parameters if name not in given and name not in optional]
        if missing:
            raise UserError(
                f"{self.label} needs {', '.join(map(repr, missing))}, which nothing provides",
                key=self.key,
                allowed=f"{', '.join(self.offers)} (by name) and whatever reward_kwargs adds",
                hint=f"custom_reward_function.reward_kwargs.{missing[0]}=... if it is a setting of the function",
            )
        return [name for name in self.offers if name in by_keyword]

    def _refuse_unknown_kwargs(self, by_keyword: set[str]) -> None:
        for name in self.kwargs:
            if name not in by_keyword:
                meant = nearest(name, by_keyword)
                raise UserError(
                    f"{self.label} takes no {name!r}." + (f" Did you mean {meant!r}?" if meant else ""),
                    key=f"custom_reward_function.reward_kwargs.{name}",
                    value=self.kwargs[name],
                    allowed=sorted(by_keyword - {*self.offers}) or "no further arguments",
                )


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a function, or None where Python cannot tell (some built-in ones)."""
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):
        return None


def read_result(result: Any, label: str) -> Outcome:
    """A number, or a mapping with 'score' and extras, as an Outcome; anything else is a problem."""
    if not isinstance(result, Mapping):
        return _read_number(result, {}, label)
    if "score" not in result:
        keys = ", ".join(repr(str(key)) for key in list(result)[:10])
        return Outcome(kind=INVALID, text=f"returned a dict without 'score' (keys: {keys or 'none'}) in {label}")
    extras = {str(name): plain(value) for name, value in result.items() if name != "score"}
    return _read_number(result["score"], extras, label)


def _read_number(result: Any, extras: dict[str, Any], label: str) -> Outcome:
    value = result
    if hasattr(value, "item") and getattr(value, "size", 1) != 0:  # numpy scalars and 0-d arrays, torch scalars
        try:
            value = value.item()
        except (ValueError, RuntimeError, TypeError):
            value = result
    if not isinstance(value, numbers.Real):
        return Outcome(kind=INVALID, text=f"returned {type(result).__name__} instead of a number in {label}")
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        return Outcome(kind=INVALID, text=f"returned {value} instead of a finite number in {label}")
    return Outcome(value, extras)


def plain(value: Any) -> Any:
    """An extra as JSON has it, so that it can be logged and needs no class of the user's elsewhere."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value) if -(2**63) <= value < 2**64 else hex(value)[:_EXTRA_LIMIT]
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)[:_EXTRA_LIMIT]


def describe_exception(error: BaseException, label: str, *, memory_mb: int, withheld: list[str]) -> Outcome:
    """What a function raised, with the part of the traceback that is the user's."""
    if isinstance(error, MemoryError):
        return Outcome(kind=RAISED, text=f"ran out of memory (reward.memory_mb={memory_mb}) in {label}")
    summary = "".join(traceback.format_exception_only(error)).strip()
    text = f"raised {trimmed(summary)} in {label}"
    if isinstance(error, KeyError) and error.args and error.args[0] in withheld:
        name = error.args[0]
        text += f" ({name} looks like a secret and is withheld from reward workers; reward.pass_env=[{name}] passes it)"
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        text += " (with reward.isolate=true reward workers write in their temporary folder only)"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in _OUR_FRAMES]
    lines = "".join(traceback.format_list(frames[-_TRACEBACK_FRAMES:])).rstrip()
    return Outcome(kind=RAISED, text=f"{text}\n{trimmed(lines)}" if lines else text)


def trimmed(text: str) -> str:
    """The end of a long text: that is where an error says what it is."""
    return text if len(text) <= _TEXT_LIMIT else "..." + text[-_TEXT_LIMIT:]
