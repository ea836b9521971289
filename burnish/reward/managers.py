"""REWARD_MANAGERS: ways to get from responses to scores, chosen by `reward_model.reward_manager`.

A manager is called with the settings, a function given in Python (or None), and `reward_model.reward_kwargs`; it gives
a Scorer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from burnish.errors import UserError, nearest
from burnish.registry import Registry
from burnish.reward.batch import BatchScorer
from burnish.reward.call import parameters_of
from burnish.reward.callers import BatchCaller, PositionalCaller
from burnish.reward.score import Scorer
from burnish.reward.settings import RewardSettings

REWARD_MANAGERS = Registry("reward manager", key="reward_model.reward_manager")
_KWARGS = "reward_model.reward_kwargs"


@REWARD_MANAGERS.register("naive", "dapo")
def naive(settings: RewardSettings, reward: Callable[..., Any] | None = None) -> Scorer:
    """One call of the reward function per response. DAPO's penalty for length comes later, with any manager."""
    return Scorer(settings, reward)


@REWARD_MANAGERS.register("prime")
class Positional(Scorer):
    """One call per response, with the four arguments by position."""

    caller = PositionalCaller


@REWARD_MANAGERS.register("batch")
def batch(settings: RewardSettings, reward: Callable[..., Any] | None = None) -> Scorer:
    """One call of a user's own function per batch of responses; built-in rules are called per response all the same."""
    own = reward is not None or settings.path is not None
    return _Batch(settings, reward) if own else Scorer(settings, reward)


class _Batch(BatchScorer):
    caller = BatchCaller


def make_scorer(
    name: str, kwargs: Mapping[str, Any], settings: RewardSettings, reward: Callable[..., Any] | None
) -> Scorer:
    """The scorer of this manager; UserError if it does not take one of the arguments."""
    manager = REWARD_MANAGERS[name].load()
    parameters = parameters_of(manager)
    takes_all = parameters is None or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = [] if parameters is None else [*parameters][2:]  # after the settings and the function
    for argument in () if takes_all else kwargs:
        if argument not in known:
            meant = nearest(str(argument), known)
            raise UserError(
                f"the reward manager {name!r} takes no {argument!r}." + (f" Did you mean {meant!r}?" if meant else ""),
                key=f"{_KWARGS}.{argument}",
                value=kwargs[argument],
                allowed=known or "no arguments",
            )
    return manager(settings, reward, **kwargs)
