"""Environment: what a conversation takes place in. reset, step, close.

class GuessNumber:
    def reset(self, seed: int, row: Mapping[str, Any]) -> str:
        self.number = random.Random(seed).randint(1, 10)
        return "Guess my number between 1 and 10."

    def step(self, action: str) -> StepResult:
        if str(self.number) in action:
            return StepResult("Right.", reward=1.0, done=True)
        return StepResult("No. Try again.")

    def close(self) -> None: ...
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from burnish.errors import UserError, install_extra
from burnish.media import InvalidMedia
from burnish.registry import Registry
from burnish.rollout.agents.failure import EpisodeFailed
from burnish.rollout.agents.user_files import load_class
from burnish.rollout.chat.pictures import content_of, read_content
from burnish.rollout.chat.template import Message
from burnish.rollout.tools.results import plain_result, shows_pictures

KEY = "actor_rollout_ref.rollout.agent.environment"

# An entry is a class: cls(**environment_kwargs) is an Environment. cls.check(kwargs) refuses wrong arguments before a
# model is loaded. cls.rows(kwargs, size, seed), if there is one, yields rows of data; otherwise they come from `reset`.
# `needs`: "network".
ENVIRONMENTS = Registry("environment", key=KEY)
_HERE = "burnish.rollout.environments"
ENVIRONMENTS.register_lazy("gymnasium", f"{_HERE}.gymnasium:GymnasiumEnvironment")
ENVIRONMENTS.register_lazy("textarena", f"{_HERE}.textarena:TextArenaEnvironment")
ENVIRONMENTS.register_lazy("reasoning_gym", f"{_HERE}.reasoning_gym:ReasoningGymEnvironment")
ENVIRONMENTS.register_lazy("skyrl_gym", f"{_HERE}.skyrl_gym:SkyRLGymEnvironment")
ENVIRONMENTS.register_lazy("verifiers", f"{_HERE}.verifiers:VerifiersEnvironment")
ENVIRONMENTS.register_lazy("verifiers_v1", f"{_HERE}.tasksets:TasksetEnvironment")
ENVIRONMENTS.register_lazy("openenv", f"{_HERE}.openenv:OpenEnvEnvironment", needs={"network"})

Content = Any  # text or an image is a message of the user, and so is a mapping of "text" and "image"; or messages


@dataclass(frozen=True)
class WholePrompt:
    """What `reset` may return instead of an observation: messages that replace those of the row."""

    messages: Sequence[Message]


@dataclass(frozen=True)
class StepResult:
    """What an environment answers to a turn. The reward is that turn's."""

    observation: Content = ""
    reward: float = 0.0
    done: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """The world of one conversation; no two conversations share one. Methods may be coroutines.

    A call that takes longer than rollout.agent.timeout fails its conversation, and so does an exception.
    """

    def reset(self, seed: int, row: Mapping[str, Any]) -> Any:
        """The first observation, or a WholePrompt. `row` has the columns of the data: ground_truth, extra_info, ...

        Equal seeds must give equal worlds: the samples of a prompt are compared with each other.
        """
        ...

    def step(self, action: str) -> Any:
        """The answer to a turn: a StepResult, (observation, reward, done), or what gymnasium returns."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class EnvironmentFactory:
    """Makes an environment per conversation."""

    name: str
    make: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, options: Mapping[str, Any]) -> Any:
        return self.make(**{**self.kwargs, **options})


def load_environment(name: str, kwargs: Mapping[str, Any], key: str = KEY) -> EnvironmentFactory:
    """An adapter by its name, or a user's class by `package.module:Class` or `path/to/file.py:Class`."""
    if name not in ENVIRONMENTS and (":" in name or "." in name):
        cls = load_class(name, key=key, where="the environment")
        _check_methods(cls, key, name)
        return EnvironmentFactory(name, cls, kwargs)
    cls = ENVIRONMENTS[name].load()
    cls.check(kwargs)
    return EnvironmentFactory(name, cls, kwargs)


def python_environment(value: Any) -> EnvironmentFactory:
    """`burnish.train(environment=...)`: a class or function that makes an environment, or a name."""
    if isinstance(value, str):
        return load_environment(value, {}, "environment")
    if not callable(value):
        raise UserError(
            "expected a class or function that returns an environment, or a name",
            key="environment",
            value=type(value).__name__,
            hint="environment=MyEnvironment, not an instance: every conversation needs its own",
        )
    name = getattr(value, "__name__", type(value).__name__)
    _check_methods(value, "environment", name)
    return EnvironmentFactory(name, value)


def _check_methods(cls: Any, key: str, name: str) -> None:
    """Refuse a class that is no environment. What a function makes, or what forwards attributes, shows later."""
    if not isinstance(cls, type) or hasattr(cls, "__getattr__"):
        return
    missing = [method for method in ("reset", "step") if not callable(getattr(cls, method, None))]
    if missing:
        problem = f"the environment has no method {' and no method '.join(missing)}"
        allowed = "a class with reset(seed, row) and step(action), and close() if it holds anything"
        raise UserError(problem, key=key, value=name, allowed=allowed)


def required(kwargs: Mapping[str, Any], name: str, example: str) -> Any:
    """An argument that an adapter cannot do without."""
    if kwargs.get(name) in (None, ""):
        key = f"{KEY}_kwargs.{name}"
        raise UserError("required by this environment", key=key, hint=f"{key}={example}")
    return kwargs[name]


def import_library(function: Callable[[], Any]) -> Callable[[], Any]:
    """Decorator for the function of an adapter that imports its library: a missing one is an error with a hint.

    The function's name is that of the extra.
    """

    @functools.wraps(function)
    def imported() -> Any:
        extra = function.__name__.replace("_", "-")
        try:
            return function()
        except ImportError as error:
            problem = f"the environment's library cannot be imported: {error}"
            raise UserError(problem, key=KEY, hint=install_extra(extra)) from error

    return imported


def as_messages(observation: Any) -> list[Message]:
    """An observation as chat messages."""
    if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], Mapping):
        observation = observation[0]  # gymnasium: (observation, info)
    if isinstance(observation, WholePrompt):
        observation = observation.messages
    if observation is None or (isinstance(observation, str) and not observation):
        return []
    try:
        return _read_messages(observation)
    except InvalidMedia as error:
        raise EpisodeFailed(error.problem) from error


def _read_messages(observation: Any) -> list[Message]:
    where = "an observation"
    if isinstance(observation, Sequence) and not isinstance(observation, str):
        if all(isinstance(message, Mapping) and "content" in message for message in observation):
            return [
                {"role": "user", **message, "content": read_content(message["content"], where)}
                for message in observation
            ]
        if not any(map(shows_pictures, observation)):
            raise EpisodeFailed(f"an observation is text or a list of messages, not {type(observation[0]).__name__}")
    result = plain_result(observation)
    return [{"role": "user", "content": content_of(result.text, result.images, result.videos)}]


def as_step(value: Any) -> StepResult:
    """What `step` returned, in any of the usual forms."""
    if isinstance(value, StepResult):
        result = value
    elif isinstance(value, Mapping) and "observation" in value:
        reward, done = value.get("reward") or 0.0, bool(value.get("done"))
        result = StepResult(value["observation"], reward, done, numbers(value.get("metrics")))
    elif isinstance(value, tuple) and len(value) == 5:  # gymnasium: terminated and truncated
        result = StepResult(value[0], value[1], bool(value[2] or value[3]), numbers(value[4]))
    elif isinstance(value, tuple) and len(value) in (3, 4):
        result = StepResult(value[0], value[1], bool(value[2]), numbers(value[3] if len(value) == 4 else None))
    else:
        raise EpisodeFailed(f"step must return a StepResult or (observation, reward, done), not {type(value).__name__}")
    try:
        reward = float(result.reward or 0.0)
    except (TypeError, ValueError):
        reward = math.nan
    if not math.isfinite(reward):
        raise EpisodeFailed(f"step returned {result.reward!r} as reward")
    return StepResult(as_messages(result.observation), reward, result.done, dict(result.metrics))


def numbers(info: Any) -> dict[str, float]:
    """The numbers among what an environment reports."""
    if not isinstance(info, Mapping):
        return {}
    return {str(name): float(value) for name, value in info.items() if isinstance(value, bool | int | float)}
