"""Call a reward function with the arguments it accepts, and parse its result."""

from __future__ import annotations

import errno
import inspect
import numbers
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from burnish.errors import UserError, nearest
from burnish.reward.limits import limit_cause
from burnish.reward.sample import INVALID, MAX_EXTRAS_DEPTH, MAX_INT, MIN_INT, RAISED, Outcome, check_score

ARGUMENTS: tuple[str, ...] = ("data_source", "solution_str", "ground_truth", "extra_info")
PICTURES = "multi_modal_data"  # as verl names them: {"image": [...], "video": [...]}
OTHER_STYLES = "or TRL's completions and prompts with columns of the data, or OpenRLHF's queries, prompts and labels"
_TRACEBACK_FRAMES = 6
_REWARD = Path(__file__).parent
_INTERNAL_FILES = {
    *(str(_REWARD / name) for name in ("call.py", "callers.py", "evaluate.py", "source.py", "worker.py")),
    str(_REWARD.parent / "user_code.py"),
}
_TEXT_LIMIT = 2000
_EXTRA_LIMIT = 2000


@dataclass(frozen=True)
class Inputs:
    """What a reward function reads beyond the four arguments. A worker tells the parent after loading it."""

    texts: bool = False  # prompt, and prompt with response, with special tokens
    row: bool = False  # the prompt's messages, the response's tokens and the columns of the data
    columns: tuple[str, ...] = ()  # columns that it cannot be called without
    pictures: bool = False  # multi_modal_data: the images and videos of prompt and conversation


class Caller:
    """A reward function with its reward_kwargs, called with those of the four arguments that it accepts."""

    available: tuple[str, ...] = ARGUMENTS  # names of the arguments that can be passed
    inputs = Inputs()

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
        shown = {PICTURES} if PICTURES in by_keyword and PICTURES not in self.kwargs and not self.inputs.row else set()
        if shown:
            self.inputs = replace(self.inputs, pictures=True)
        provided = by_keyword & ({*self.available} | self.kwargs.keys() | shown)
        optional = {name for name, p in parameters.items() if p.default is not p.empty or p.kind is p.VAR_POSITIONAL}
        missing = [name for name in parameters if name not in provided and name not in optional]
        if missing:
            raise self._wrong_signature(
                f"requires {', '.join(map(repr, missing))}, which {'is' if len(missing) == 1 else 'are'} not available",
                hint=f"another name in the signature, or custom_reward_function.reward_kwargs.{missing[0]}=...",
            )
        names = [name for name in (*self.available, *sorted(shown)) if name in by_keyword]
        if parameters and not names:  # its score would not depend on the response, surely by mistake
            raise self._wrong_signature("accepts none of the arguments that are passed", hint=None)
        return names

    def _wrong_signature(self, problem: str, hint: str | None) -> UserError:
        return UserError(
            f"{self.label}{signature_text(self.function)} {problem}",
            key=self.key,
            allowed=f"{', '.join(self.available)} (by name) and the names in reward_kwargs; {OTHER_STYLES}",
            hint=hint,
        )

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


def signature_text(function: Callable[..., Any]) -> str:
    """The parameters of a function as it declares them, without annotations; empty if they are unknown."""
    parameters = parameters_of(function)
    if parameters is None:
        return ""
    plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters.values()]
    return trimmed(str(inspect.Signature(plain)))


def parse_result(result: Any, label: str) -> Outcome:
    """Convert a number, or a mapping with 'score' and extras, to an Outcome; anything else is an invalid result."""
    if not isinstance(result, Mapping):
        return _parse_number(result, {}, label)
    if "score" not in result:
        keys = ", ".join(repr(str(key)) for key in list(result)[:10])
        return Outcome(kind=INVALID, text=f"returned a dict without 'score' (keys: {keys or 'none'}) in {label}")
    try:
        extras = {str(name): plain(value) for name, value in result.items() if name != "score"}
    except TooDeepError:
        return Outcome(kind=INVALID, text=f"returned extras nested more than {MAX_EXTRAS_DEPTH} times in {label}")
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
        return Outcome(check_score(value), extras)  # pyright: ignore[reportArgumentType] - a Real may be a Fraction
    except ValueError as error:
        return Outcome(kind=INVALID, text=f"returned {error} in {label}")


class TooDeepError(ValueError):
    """Extras are nested too deeply, or contain themselves."""

    def __init__(self) -> None:
        super().__init__(f"an extra is nested more than {MAX_EXTRAS_DEPTH} levels deep")


def plain(value: Any, depth: int = 1) -> Any:
    """Convert an extra to JSON types, so that it can be logged without the user's classes."""
    if depth > MAX_EXTRAS_DEPTH:
        raise TooDeepError
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        number = int(value)
        return number if MIN_INT <= number < MAX_INT else hex(number)[:_EXTRA_LIMIT]
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist(), depth)
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth + 1) for item in value]
    return str(value)[:_EXTRA_LIMIT]


def describe_exception(error: BaseException, label: str, *, memory_mb: int, withheld: list[str]) -> Outcome:
    """Describe an exception, with the frames of the traceback that belong to the user."""
    if isinstance(error, MemoryError):
        return Outcome(kind=RAISED, text=f"ran out of memory (reward.memory_mb={memory_mb}) in {label}")
    summary = "".join(traceback.format_exception_only(error)).strip()
    text = f"raised {trimmed(summary)} in {label}"
    cause = limit_cause(error, "", memory_mb)
    if cause is not None:
        text += f" ({cause})"
    if isinstance(error, KeyError) and error.args and error.args[0] in withheld:
        name = error.args[0]
        text += f" ({name} looks like a secret and is withheld from reward workers; reward.pass_env=[{name}] passes it)"
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        text += " (with reward.isolate=true, reward workers can write only to their temporary folder)"
    return Outcome(kind=RAISED, text=f"{text}{user_frames(error)}")


def user_frames(error: BaseException) -> str:
    """The frames of the traceback that belong to the user, file and line first, each on lines of its own."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_internal(frame.filename)]
    lines = "".join(traceback.format_list(frames[-_TRACEBACK_FRAMES:])).rstrip()
    return f"\n{trimmed(lines)}" if lines else ""


def _is_internal(filename: str) -> bool:
    return filename in _INTERNAL_FILES or filename.startswith("<frozen importlib")


def trimmed(text: str) -> str:
    """The end of a long text, where tracebacks have the error message."""
    return text if len(text) <= _TEXT_LIMIT else "..." + text[-_TEXT_LIMIT:]
