"""Call a reward function with the arguments it accepts, and parse its result."""

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

ARGUMENTS: tuple[str, ...] = ("data_source", "solution_str", "ground_truth", "extra_info")
_TRACEBACK_FRAMES = 6
_INTERNAL_FILES = {__file__, str(Path(__file__).with_name("evaluate.py"))}
_TEXT_LIMIT = 2000
_EXTRA_LIMIT = 2000


class Caller:
    """A reward function with its reward_kwargs, called with those of the four arguments that it accepts."""

    available: tuple[str, ...] = ARGUMENTS  # names of the arguments that can be passed

    def __init__(self, function: Callable[..., Any], kwargs: Mapping[str, Any], *, label: str, key: str) -> None:
        self.function = function
        self.kwargs = dict(kwargs)
        self.label = label
        self.key = key
        self.names = self._accepted_arguments()

    @property
    def is_async(self) -> bool:
        call = getattr(self.function, "__call__", None)  # noqa: B004 - an object whose __call__ is a coroutine function
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        # reward_kwargs override the four arguments, as in verl.
        return self.function(**({name: arguments[name] for name in self.names} | self.kwargs))

    def parse(self, result: Any, num_samples: int) -> Outcome:
        """Parse the result of a call for `num_samples` samples; here always one."""
        return parse_result(result, self.label)

    def _accepted_arguments(self) -> list[str]:
        """The available arguments that the function accepts; UserError if it cannot be called with them."""
        if not callable(self.function):
            raise UserError(f"{self.label} is a {type(self.function).__name__}, not a function", key=self.key)
        parameters = parameters_of(self.function)
        if parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return list(self.available)
        by_keyword = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self._check_kwargs(by_keyword)
        provided = by_keyword & ({*self.available} | self.kwargs.keys())
        optional = {name for name, p in parameters.items() if p.default is not p.empty or p.kind is p.VAR_POSITIONAL}
        missing = [name for name in parameters if name not in provided and name not in optional]
        if missing:
            raise UserError(
                f"{self.label} requires {', '.join(map(repr, missing))}, which is not available",
                key=self.key,
                allowed=f"{', '.join(self.available)} (by name) and the names in reward_kwargs",
                hint=f"custom_reward_function.reward_kwargs.{missing[0]}=... to pass a value",
            )
        return [name for name in self.available if name in by_keyword]

    def _check_kwargs(self, by_keyword: set[str]) -> None:
        for name in self.kwargs:
            if name not in by_keyword:
                suggestion = nearest(name, by_keyword)
                raise UserError(
                    f"{self.label} does not accept {name!r}."
                    + (f" Did you mean {suggestion!r}?" if suggestion else ""),
                    key=f"custom_reward_function.reward_kwargs.{name}",
                    value=self.kwargs[name],
                    allowed=sorted(by_keyword - {*self.available}) or "no further arguments",
                )


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a function; None if Python cannot determine them (some built-in functions)."""
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):
        return None


def parse_result(result: Any, label: str) -> Outcome:
    """Convert a number, or a mapping with 'score' and extras, to an Outcome; anything else is an invalid result."""
    if not isinstance(result, Mapping):
        return _parse_number(result, {}, label)
    if "score" not in result:
        keys = ", ".join(repr(str(key)) for key in list(result)[:10])
        return Outcome(kind=INVALID, text=f"returned a dict without 'score' (keys: {keys or 'none'}) in {label}")
    extras = {str(name): plain(value) for name, value in result.items() if name != "score"}
    return _parse_number(result["score"], extras, label)


def _parse_number(result: Any, extras: dict[str, Any], label: str) -> Outcome:
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
    """Convert an extra to JSON types, so that it can be logged and unpickled without the user's classes."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        number = int(value)
        return number if -(2**63) <= number < 2**64 else hex(number)[:_EXTRA_LIMIT]
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
    """Describe an exception, with the frames of the traceback that belong to the user."""
    if isinstance(error, MemoryError):
        return Outcome(kind=RAISED, text=f"ran out of memory (reward.memory_mb={memory_mb}) in {label}")
    summary = "".join(traceback.format_exception_only(error)).strip()
    text = f"raised {trimmed(summary)} in {label}"
    if isinstance(error, KeyError) and error.args and error.args[0] in withheld:
        name = error.args[0]
        text += f" ({name} looks like a secret and is withheld from reward workers; reward.pass_env=[{name}] passes it)"
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        text += " (with reward.isolate=true, reward workers can write only to their temporary folder)"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in _INTERNAL_FILES]
    lines = "".join(traceback.format_list(frames[-_TRACEBACK_FRAMES:])).rstrip()
    return Outcome(kind=RAISED, text=f"{text}\n{trimmed(lines)}" if lines else text)


def trimmed(text: str) -> str:
    """The end of a long text, where tracebacks have the error message."""
    return text if len(text) <= _TEXT_LIMIT else "..." + text[-_TEXT_LIMIT:]
