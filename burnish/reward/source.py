"""Where a reward function comes from: a user's file, a Python callable, or the built-in rules."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from burnish.errors import UserError, nearest
from burnish.registry import Entry
from burnish.reward.call import ARGUMENTS, Caller, parameters_of
from burnish.reward.callers import QueryCaller
from burnish.reward.rules import REWARDS, check_needs, find_rule
from burnish.reward.verifiers import VERIFIERS, weighted
from burnish.user_code import load_user_attribute


class Source(Protocol):
    """Travels to the workers by pickle; `callers` runs there, the rest in the parent."""

    key: str
    is_single: bool  # one function for every data source
    is_foreign: bool  # the function is not ours
    reads_prompts: bool  # it wants whole texts

    def label(self, data_source: str) -> str:
        """`file.py:function`, for messages."""

    def check_sources(self, names: Iterable[str], kwargs: Mapping[str, Any]) -> None:
        """UserError if there is no reward for one of these data sources."""

    def runs_code(self, data_source: str) -> bool:
        """Are the answers programs, to be run in the sandbox?"""

    def callers(self, kwargs: Mapping[str, Any]) -> Callable[[str], Caller]:
        """From a data source to the function that scores it. Imports the user's code."""


class OneFunction:
    """A user's own function: the same for every data source, and it decides for itself what it can score."""

    key: str
    caller: type[Caller]
    is_single = True
    is_foreign = True
    reads_prompts = False

    def check_sources(self, names: Iterable[str], kwargs: Mapping[str, Any]) -> None:
        """Any data source will do."""

    def runs_code(self, data_source: str) -> bool:
        """What a user's function does with an answer is its own affair."""
        return False

    def callers(self, kwargs: Mapping[str, Any]) -> Callable[[str], Caller]:
        caller = self.caller(self.load(), kwargs, label=self.label(""), key=self.key)
        return lambda data_source: caller

    def load(self) -> Callable[..., Any]:
        """The function itself."""
        raise NotImplementedError

    def label(self, data_source: str) -> str:
        """`file.py:function`, for messages."""
        raise NotImplementedError


@dataclass(frozen=True)
class FromFile(OneFunction):
    """`custom_reward_function.path` and `.name`."""

    path: str
    name: str
    key: str = "custom_reward_function.path"
    caller: type[Caller] = Caller

    def load(self) -> Callable[..., Any]:
        return load_user_attribute(self.path, self.name, key=self.key)

    def label(self, data_source: str) -> str:
        return f"{Path(self.path).name}:{self.name}"


@dataclass(frozen=True)
class FromCallable(OneFunction):
    """A function given in Python. On its way to a worker it becomes a FromPickle."""

    function: Callable[..., Any]
    key: str = "reward"
    caller: type[Caller] = Caller

    def load(self) -> Callable[..., Any]:
        return self.function

    def label(self, data_source: str) -> str:
        return title_of(self.function)

    def __reduce__(self) -> tuple:
        return FromPickle, (_pickled(self.function), title_of(self.function), self.key, self.caller)


@dataclass(frozen=True)
class FromPickle(OneFunction):
    """A callable in a worker, unpickled only when it is needed: by then the limits are set."""

    payload: bytes
    title: str
    key: str = "reward"
    caller: type[Caller] = Caller

    def load(self) -> Callable[..., Any]:
        return pickle.loads(self.payload)

    def label(self, data_source: str) -> str:
        return self.title


@dataclass(frozen=True)
class FromRules:
    """The built-in rules, chosen by data source."""

    key: str = "data_source"
    is_single: bool = False
    is_foreign: bool = False
    reads_prompts: bool = False

    def label(self, data_source: str) -> str:
        return title_of(_rule(data_source).load())

    def check_sources(self, names: Iterable[str], kwargs: Mapping[str, Any]) -> None:
        names = list(dict.fromkeys(names))
        for name in names:
            check_needs(_rule(name))
        if kwargs:
            self._check_kwargs(names, kwargs)

    def runs_code(self, data_source: str) -> bool:
        return _rule(data_source).metadata.get("runs_code", False)

    def _check_kwargs(self, names: list[str], kwargs: Mapping[str, Any]) -> None:
        accepted = {argument for name in names for argument in parameters_of(_rule(name).load()) or ()}
        for argument, value in kwargs.items():
            if argument not in accepted:
                raise UserError(
                    f"no built-in rule for {', '.join(names)} takes {argument!r}",
                    key=f"custom_reward_function.reward_kwargs.{argument}",
                    value=value,
                )
        for name in names:  # a value that a rule refuses is refused here, not once per sample
            example = _rule(name).metadata["example"]
            values = (name, example.right, example.ground_truth, {})
            self.callers(kwargs)(name)(dict(zip(ARGUMENTS, values, strict=True)))

    def callers(self, kwargs: Mapping[str, Any]) -> Callable[[str], Caller]:
        @functools.cache
        def caller(data_source: str) -> Caller:
            function = _rule(data_source).load()
            taken = {name: value for name, value in kwargs.items() if name in (parameters_of(function) or ())}
            return Caller(function, taken, label=self.label(data_source), key=self.key)

        return caller


@dataclass(frozen=True)
class FromVerifiers(OneFunction):
    """`reward.verifiers`: rules that take the place of the data source's own."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    key: str = "reward.verifiers"
    caller: type[Caller] = Caller
    is_foreign = False

    def check_sources(self, names: Iterable[str], kwargs: Mapping[str, Any]) -> None:
        for name in self.names:
            check_needs(VERIFIERS[name])

    def load(self) -> Callable[..., Any]:
        return weighted(self.names, self.weights)

    def label(self, data_source: str) -> str:
        return f"reward.verifiers={','.join(self.names)}"


@dataclass(frozen=True)
class FromRemoteFile(FromFile):
    """`reward.remote_url=file.py`: OpenRLHF's reward_func."""

    name: str = "reward_func"
    key: str = "reward.remote_url"
    caller: type[Caller] = QueryCaller
    reads_prompts = True


@dataclass(frozen=True)
class FromUrls(OneFunction):
    """`reward.remote_url=http://...`: servers that answer for every data source. They are asked, not called."""

    urls: tuple[str, ...]
    key: str = "reward.remote_url"
    reads_prompts = True

    def label(self, data_source: str) -> str:
        return ", ".join(self.urls)


def _rule(data_source: str) -> Entry:
    row = find_rule(data_source)
    if row is None:
        raise _no_rule(data_source)
    return row


def _no_rule(name: str) -> UserError:
    meant = nearest(name, REWARDS.names())
    return UserError(
        "no built-in rule scores this data source." + (f" Did you mean {meant!r}?" if meant else ""),
        key="data_source",
        value=name,
        allowed=[*REWARDS.names(), "any name, with a function of your own"],
        hint="custom_reward_function.path=/path/to/file.py custom_reward_function.name=compute_score",
    )


def _pickled(function: Callable[..., Any]) -> bytes:
    import cloudpickle

    module = inspect.getmodule(function)
    by_value = module is not None and module.__name__ != "__main__" and not _importable(module.__name__)
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        return cloudpickle.dumps(function)
    except Exception as error:  # whatever the objects that the function refers to raise when they are pickled
        raise UserError(
            f"{title_of(function)} cannot be sent to a worker process: {type(error).__name__}: {error}",
            key="reward",
            hint="custom_reward_function.path=/path/to/file.py, which each worker imports for itself",
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(module: str) -> bool:
    """Would a fresh process with the same sys.path find this very module?"""
    path, spec = None, None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        # importlib.util.find_spec would answer from sys.modules, which a fresh process does not have.
        found = (
            finder.find_spec(".".join(parts[:end]), path) for finder in sys.meta_path if hasattr(finder, "find_spec")
        )
        spec = next((one for one in found if one is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    known = getattr(sys.modules.get(module), "__file__", None)
    return known is None or spec.origin is None or Path(spec.origin) == Path(known)


def title_of(function: Callable[..., Any]) -> str:
    """`file.py:function`, for messages."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]
    file = Path(code.co_filename).name if code is not None else type(function).__module__
    return f"{file}:{name}"
