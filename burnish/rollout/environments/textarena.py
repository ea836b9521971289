"""textarena: text games, for one player or against an opponent.

environment=textarena environment_kwargs.id=GuessTheNumber-v0
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from burnish.errors import UserError, nearest
from burnish.rollout.agents.user_files import load_class
from burnish.rollout.environments.environment import KEY, StepResult, import_library, required

MODEL = 0  # the player that is trained


@import_library
def textarena() -> Any:
    import textarena

    return textarena


class GlobalRandom:
    """The games draw from Python's global generator: each gets a state of its own while it computes."""

    _lock = threading.Lock()

    def __init__(self) -> None:
        self._state: Any = None

    @contextmanager
    def own(self) -> Iterator[None]:
        with self._lock:
            shared = random.getstate()
            if self._state is not None:
                random.setstate(self._state)
            try:
                yield
            finally:
                self._state = random.getstate()
                random.setstate(shared)


class TextArenaEnvironment:
    """`opponent` (package.module:function or file.py:function) maps an observation to an action, for more players."""

    def __init__(
        self,
        id: str,
        num_players: int = 1,
        opponent: str | Callable[[str], str] | None = None,
        instructions: str = "",
        **kwargs: Any,
    ) -> None:
        self.num_players = num_players
        self.instructions = instructions
        key = f"{KEY}_kwargs.opponent"
        self.opponent = load_class(opponent, key=key, where="opponent") if isinstance(opponent, str) else opponent
        self.random = GlobalRandom()
        known = textarena().envs.registration.ENV_REGISTRY
        raw = f"{id}-raw"  # its observations are what is new, not the whole game each time
        with self.random.own():
            self.env = textarena().make(raw if raw in known else id, **kwargs)

    @staticmethod
    def check(kwargs: Mapping[str, Any]) -> None:
        id, known = required(kwargs, "id", "GuessTheNumber-v0"), textarena().envs.registration.ENV_REGISTRY
        if id not in known:
            closest = nearest(id, known)
            problem = "no such game." + (f" Did you mean {closest!r}?" if closest else "")
            raise UserError(problem, key=f"{KEY}_kwargs.id", value=id, allowed=f"{len(known)} games of textarena")
        if int(kwargs.get("num_players", 1)) > 1 and not kwargs.get("opponent"):
            key = f"{KEY}_kwargs.opponent"
            raise UserError("a game of several players needs opponents", key=key, hint=f"{key}=my_players.py:play")
        try:
            environment = TextArenaEnvironment(**kwargs)
            environment.reset(0, {})
            environment.close()
        except UserError:
            raise
        except Exception as error:
            problem = f"textarena cannot start it: {type(error).__name__}: {error}"
            hint = f"{KEY}_kwargs.num_players=2, if it is a game of two"
            raise UserError(problem, key=f"{KEY}_kwargs.id", value=id, hint=hint) from error

    def reset(self, seed: int, row: Mapping[str, Any]) -> str:
        with self.random.own():
            random.seed(seed)
            self.env.reset(num_players=self.num_players, seed=seed)
            self.done = False
            observation = self._until_my_turn()
        return f"{self.instructions}\n\n{observation}".strip()

    def step(self, action: str) -> StepResult:
        with self.random.own():
            self.done, _ = self.env.step(action=action)
            observation = self._until_my_turn()
            if not self.done:
                return StepResult(observation)
            rewards, info = self.env.close()
        mine = (info or {}).get(MODEL) or {}
        metrics = {"invalid": float(bool(mine.get("invalid_move"))), "game_turns": float(mine.get("turn_count") or 0)}
        return StepResult("", float((rewards or {}).get(MODEL, 0.0)), True, metrics)

    def close(self) -> None:
        pass

    def _until_my_turn(self) -> str:
        """What the model has not seen yet; opponents play until it is the model's turn."""
        while not self.done:
            player, messages = self.env.get_observation()
            text = self._text(messages, player)
            if player == MODEL:
                return text
            assert self.opponent is not None
            self.done, _ = self.env.step(action=self.opponent(text))
        return ""

    def _text(self, messages: str | Sequence[Any], player: int) -> str:
        """New messages of the game; the player's own actions are in the conversation already."""
        if isinstance(messages, str):
            return messages
        action = textarena().ObservationType.PLAYER_ACTION
        return "\n".join(text for sender, text, kind in messages if sender != player or kind is not action)
