"""Sources of reward functions: a user's file, a Python callable, the built-in rules, verifiers or reward servers."""

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
from burnish.reward.callers import QueryCaller, caller_for
from burnish.reward.rules import REWARDS, check_needs, find_rule
from burnish.reward.verifiers import VERIFIERS, weighted
from burnish.user_code import load_user_attribute


class RewardSource(Protocol):
    """Pickled to the workers. `callers` runs in a worker, everything else in the parent."""

    @property
    def key(self) -> str:
        """The config key that selects it."""
        ...

    @property
    def is_single(self) -> bool:
        """Whether one function scores every data source."""
        ...

    @property
    def is_user_code(self) -> bool:
        """Whether the function is not built into Burnish."""
        ...

    def label(self, data_source: str) -> str:
        """`file.py:function`, for messages."""
        ...

    def check_sources(self, names: Iterable[str], kwargs: Mapping[str, Any]) -> None:
        """Raise UserError if one of these data sources has no reward."""
        ...

    def runs_code(self, data_source: str) -> bool:
        """Whether responses are programs to run in the sandbox."""
        ...

    def callers(self, kwargs: Mapping[str, Any]) -> Callable[[str], Caller]:
        """A function from data source to the caller that scores it. Imports the user's code."""
        ...


class SingleFunction:
    """One function for all data sources, which it has to tell apart itself."""

    key: str
    caller: type[Caller]
    is_single = True
    is_user_code = True

    def check_sources(self, names: Iterable[str], kwargs: Mapping[str, Any]) -> None:
        """Accept any data source."""

    def runs_code(self, data_source: str) -> bool:
        """Never: a user's function runs code itself if it needs to."""
        return False

    def callers(self, kwargs: Mapping[str, Any]) -> Callable[[str], Caller]:
        function = self.load()
        caller = caller_for(self.caller, function, kwargs)(function, kwargs, label=self.label(""), key=self.key)
        return lambda data_source: caller

    def load(self) -> Callable[..., Any]:
        """Import or unpickle the function."""
        raise NotImplementedError

    def label(self, data_source: str) -> str:
        """`file.py:function`, for messages."""
        raise NotImplementedError


@dataclass(frozen=True)
class FromFile(SingleFunction):
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
class FromCallable(SingleFunction):
    """A function passed in Python. Pickling turns it into a FromPickle."""

    function: Callable[..., Any]
    key: str = "reward"
    caller: type[Caller] = Caller

    def load(self) -> Callable[..., Any]:
        return self.function

    def label(self, data_source: str) -> str:
        return function_label(self.function)

    def __reduce__(self) -> tuple:
        return FromPickle, (_pickle_function(self.function), function_label(self.function), self.key, self.caller)


@dataclass(frozen=True)
class FromPickle(SingleFunction):
    """A pickled callable. Workers unpickle it in `load`, after their resource limits are set."""

    payload: bytes
    name: str
    key: str = "reward"
    caller: type[Caller] = Caller

    def load(self) -> Callable[..., Any]:
        return pickle.loads(self.payload)

    def label(self, data_source: str) -> str:
        return self.name


@dataclass(frozen=True)
class FromRules:
    """The built-in rules, selected by data source."""

    key: str = "data_source"
    is_single: bool = False
    is_user_code: bool = False

    def label(self, data_source: str) -> str:
        """The data source itself if no rule scores it, as in conversations that an environment scores."""
        rule = find_rule(data_source)
        return data_source if rule is None else function_label(rule.load())

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
                    f"no built-in rule for {', '.join(names)} accepts the argument {argument!r}",
                    key=f"custom_reward_function.reward_kwargs.{argument}",
                    value=value,
                )
        for name in names:  # report a bad value once, at start-up, instead of for every sample
            example = _rule(name).metadata["example"]
            values = (name, example.right, example.ground_truth, {})
            self.callers(kwargs)(name)(dict(zip(ARGUMENTS, values, strict=True)))

    def callers(self, kwargs: Mapping[str, Any]) -> Callable[[str], Caller]:
        @functools.cache
        def caller(data_source: str) -> Caller:
            function = _rule(data_source).load()
            accepted_kwargs = {name: value for name, value in kwargs.items() if name in (parameters_of(function) or ())}
            return Caller(function, accepted_kwargs, label=self.label(data_source), key=self.key)

        return caller


@dataclass(frozen=True)
class FromVerifiers(SingleFunction):
    """`reward.verifiers`: rules that replace the one of the data source."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    key: str = "reward.verifiers"
    caller: type[Caller] = Caller
    is_user_code = False

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


@dataclass(frozen=True)
class FromUrls(SingleFunction):
    """`reward.remote_url=http://...`: servers that score every data source, called by RemotePool."""

    urls: tuple[str, ...]
    key: str = "reward.remote_url"

    def label(self, data_source: str) -> str:
        return ", ".join(self.urls)


def _rule(data_source: str) -> Entry:
    rule = find_rule(data_source)
    if rule is None:
        raise _unknown_data_source(data_source)
    return rule


def _unknown_data_source(name: str) -> UserError:
    suggestion = nearest(name, REWARDS.names())
    return UserError(
        "no built-in rule for this data source." + (f" Did you mean {suggestion!r}?" if suggestion else ""),
        key="data_source",
        value=name,
        allowed=[*REWARDS.names(), "any name, with a custom reward function"],
        hint="custom_reward_function.path=/path/to/file.py custom_reward_function.name=compute_score",
    )


def _pickle_function(function: Callable[..., Any]) -> bytes:
    import cloudpickle

    module = inspect.getmodule(function)
    by_value = module is not None and module.__name__ != "__main__" and not _importable(module.__name__)
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        return cloudpickle.dumps(function)
    except Exception as error:  # objects that the function refers to may raise anything when pickled
        raise UserError(
            f"{function_label(function)} cannot be sent to a worker process: {type(error).__name__}: {error}",
            key="reward",
            hint="custom_reward_function.path=/path/to/file.py, which every worker imports",
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(module: str) -> bool:
    """Whether a new process with the same sys.path would import this same module."""
    path, spec = None, None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        # importlib.util.find_spec would look in sys.modules, which is empty in a new process.
        specs = (
            finder.find_spec(".".join(parts[:end]), path) for finder in sys.meta_path if hasattr(finder, "find_spec")
        )
        spec = next((candidate for candidate in specs if candidate is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or spec is None or spec.origin is None or Path(spec.origin) == Path(file)


def function_label(function: Callable[..., Any]) -> str:
    """`file.py:function`, for messages."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]
    file = Path(code.co_filename).name if code is not None else type(function).__module__
    return f"{file}:{name}"
