"""gymnasium: environments whose observations and actions are text, numbers, or rendered as text (render_mode=ansi).

environment=gymnasium environment_kwargs.id=FrozenLake-v1 environment_kwargs.render_mode=ansi
environment_kwargs.actions=[left,down,right,up]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.errors import UserError
from burnish.rollout.environments.environment import KEY, StepResult, import_library, numbers, required

MAX_NUMBERS = 64  # of an observation that is written out as numbers


@import_library
def gymnasium() -> Any:
    import gymnasium

    return gymnasium


class GymnasiumEnvironment:
    """`actions` are names of a Discrete action space. An action that cannot be read costs `invalid_reward`."""

    def __init__(
        self,
        id: str,
        actions: Sequence[str] = (),
        instructions: str = "",
        invalid_reward: float = 0.0,
        **kwargs: Any,
    ) -> None:
        self.actions = [str(name) for name in actions]
        self.instructions = instructions or id
        self.invalid_reward = invalid_reward
        self.env = gymnasium().make(id, **kwargs)

    @staticmethod
    def check(kwargs: Mapping[str, Any]) -> None:
        """Refuse unknown environments, and those that cannot be told in text."""
        id = required(kwargs, "id", "FrozenLake-v1")
        try:
            environment = GymnasiumEnvironment(**kwargs)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"gymnasium cannot make it: {error}", key=f"{KEY}_kwargs.id", value=id) from error
        try:
            environment.check_spaces(id)
        finally:
            environment.close()

    def check_spaces(self, id: str) -> None:
        spaces = gymnasium().spaces
        action, observation = self.env.action_space, self.env.observation_space
        if not isinstance(action, spaces.Text | spaces.Discrete):
            allowed = "environments with a Text or Discrete action space"
            raise UserError(f"its actions are {action}", key=f"{KEY}_kwargs.id", value=id, allowed=allowed)
        if self.actions and (not isinstance(action, spaces.Discrete) or len(self.actions) != action.n):
            raise UserError(f"the actions are {action}", key=f"{KEY}_kwargs.actions", value=self.actions)
        is_large = isinstance(observation, spaces.Box) and observation.sample().size > MAX_NUMBERS
        if is_large and self.env.render_mode != "ansi":
            hint = f"{KEY}_kwargs.render_mode=ansi"
            raise UserError(f"its observations are {observation}", key=f"{KEY}_kwargs.id", value=id, hint=hint)

    def reset(self, seed: int, row: Mapping[str, Any]) -> str:
        observation, _ = self.env.reset(seed=seed)
        return f"{self.instructions}\n\n{self._text(observation)}\n\n{self._how()}"

    def step(self, action: str) -> StepResult:
        chosen = self._action(action)
        if chosen is None:
            return StepResult(f"Not a valid action. {self._how()}", self.invalid_reward, metrics={"invalid": 1.0})
        observation, reward, terminated, truncated, info = self.env.step(chosen)
        return StepResult(self._text(observation), float(reward), bool(terminated or truncated), numbers(info))

    def close(self) -> None:
        self.env.close()

    def _text(self, observation: Any) -> str:
        if self.env.render_mode == "ansi":
            return re.sub(r"\x1b\[([0-9;]*)m", _marked, self.env.render()).strip("\n")
        if isinstance(observation, Mapping):
            return "\n".join(f"{name}: {_plain(value)}" for name, value in observation.items())
        return str(_plain(observation))

    def _how(self) -> str:
        space = self.env.action_space
        if self.actions:
            return f"Answer with one of: {', '.join(self.actions)}."
        if isinstance(space, gymnasium().spaces.Discrete):
            return f"Answer with a number from {space.start} to {space.start + space.n - 1}."
        return "Answer with text."

    def _action(self, text: str) -> Any:
        """The last action that a text names; None if it names none."""
        space = self.env.action_space
        if isinstance(space, gymnasium().spaces.Text):
            return text.strip() if space.contains(text.strip()) else None
        named = {name.lower(): number for number, name in enumerate(self.actions, int(space.start))}
        words = "|".join(map(re.escape, sorted(named, key=len, reverse=True)))
        pattern = rf"(?<!\w)(?:{words})(?!\w)" if named else r"-?\d+"
        found = re.findall(pattern, text.lower())
        number = (named[found[-1]] if named else int(found[-1][:20])) if found else None
        return number if number is not None and space.contains(number) else None


def _marked(code: re.Match[str]) -> str:
    """Text environments color where the player is; a model reads brackets."""
    return "]" if code[1] in ("", "0") else "["


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's, inside tuples too."""
    if isinstance(value, tuple):
        return tuple(_plain(entry) for entry in value)
    return value.tolist() if hasattr(value, "tolist") else value
