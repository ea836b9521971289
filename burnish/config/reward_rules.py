"""Rules about where scores come from, and DAPO's penalty as verl passes it: arguments of the reward manager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from burnish.config.root import TrainConfig
from burnish.errors import UserError, nearest

# Managers whose arguments verl's penalty for length is part of.
OVERLONG_MANAGERS = frozenset({"dapo"})
_KWARGS = "reward_model.reward_kwargs"
_BUFFER = "reward_model.overlong_buffer"
_TYPES: dict[str, tuple[type, ...]] = {
    "enable": (bool,),
    "len": (int,),
    "penalty_factor": (int, float),
    "log": (bool,),
}


def one_source(cfg: TrainConfig) -> Iterator[UserError]:
    """A function, verifiers or a remote reward: one of them; and each verifier has a weight."""
    reward = cfg.reward
    given = {
        "custom_reward_function.path": cfg.custom_reward_function.path,
        "reward.verifiers": reward.verifiers,
        "reward.remote_url": reward.remote_url,
    }
    keys = [key for key, value in given.items() if value]
    if len(keys) > 1:
        problem = f"{' and '.join(keys)} are set together: which one scores?"
        yield UserError(problem, key=keys[-1], value=given[keys[-1]], hint=f"only {keys[0]}={given[keys[0]]}")
    if reward.verifier_weights and len(reward.verifier_weights) != len(reward.verifiers):
        key, names = "reward.verifier_weights", len(reward.verifiers)
        yield UserError(
            f"there are {len(reward.verifier_weights)} weights for {names} verifiers",
            key=key,
            value=list(reward.verifier_weights),
            hint=f"{key}=[{','.join(['1.0'] * names)}]",
        )
    if len(reward.remote_url) > 1 and any(url.endswith(".py") for url in reward.remote_url):
        problem = "a Python file stands alone: only servers take turns"
        yield UserError(problem, key="reward.remote_url", value=list(reward.remote_url))


def workers_to_isolate(cfg: TrainConfig) -> Iterator[UserError]:
    """Only what runs in a process of its own can be isolated."""
    reward = cfg.reward
    for name, is_asked in (("isolate", reward.isolate is True), ("network", not reward.network)):
        if is_asked and reward.num_workers == 0:
            problem = "reward.num_workers=0 runs reward functions in the training process, without limits"
            yield UserError(problem, key=f"reward.{name}", value=getattr(reward, name), hint="reward.num_workers=2")
    if not reward.network and any(not url.endswith(".py") for url in reward.remote_url):
        problem = "reward servers are asked over the network"
        yield UserError(problem, key="reward.network", value=False, hint="reward.network=true")
    if not reward.network and reward.isolate is False:
        problem = "workers that are not isolated have the network"
        yield UserError(problem, key="reward.network", value=False, hint="reward.isolate=null")


def overlong_arguments(cfg: TrainConfig) -> Iterator[UserError]:
    """overlong_buffer_cfg and max_resp_len of dapo are what reward_model.overlong_buffer would take."""
    asked = overlong_asked(cfg)
    for name, value in asked.items():
        key = _key_of(name)
        if name not in _TYPES and name != "max_resp_len":
            meant = nearest(name, _TYPES)
            problem = "there is no such setting." + (f" Did you mean {meant!r}?" if meant else "")
            yield UserError(problem, key=key, value=value, allowed=list(_TYPES))
        elif not _is_a(value, _TYPES.get(name, (int,))):
            allowed = " or ".join(kind.__name__ for kind in _TYPES.get(name, (int,)))
            yield UserError("has the wrong type", key=key, value=value, allowed=allowed)
    limit = asked.get("max_resp_len", cfg.data.max_response_length)
    length = asked.get("len", cfg.reward_model.overlong_buffer.len)
    sound = isinstance(limit, int) and isinstance(length, int)
    if asked.get("enable") is True and sound and not 1 <= length <= limit:
        problem = f"does not lie within a response (at most {limit} tokens)"
        yield UserError(problem, key=_key_of("len"), value=length, allowed=f"1 to {limit}")


def overlong_asked(cfg: TrainConfig) -> dict[str, Any]:
    """The settings of reward_model.overlong_buffer that reward_kwargs asks for; empty without such arguments."""
    kwargs = cfg.reward_model.reward_kwargs
    if cfg.reward_model.reward_manager not in OVERLONG_MANAGERS:
        return {}
    buffer = kwargs.get("overlong_buffer_cfg")
    asked = dict(buffer) if isinstance(buffer, dict) else {} if buffer is None else {"enable": buffer}
    length = kwargs.get("max_resp_len")
    return asked if length is None else asked | {"max_resp_len": length}


def read_overlong(cfg: TrainConfig) -> Iterator[str]:
    """Put them where they act."""
    asked = overlong_asked(cfg)
    for name, value in asked.items():
        setattr(cfg.reward_model.overlong_buffer, name, value)
    if asked:
        rest = {"overlong_buffer_cfg", "max_resp_len"}
        cfg.reward_model.reward_kwargs = {
            name: value for name, value in cfg.reward_model.reward_kwargs.items() if name not in rest
        }
        settings = " ".join(f"{_BUFFER}.{name}={value}" for name, value in asked.items())
        yield f"{_KWARGS} of reward_model.reward_manager={cfg.reward_model.reward_manager} is read as {settings}."


def _key_of(name: str) -> str:
    return f"{_KWARGS}.{name}" if name == "max_resp_len" else f"{_KWARGS}.overlong_buffer_cfg.{name}"


def _is_a(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


EVAL_RULES = (one_source, workers_to_isolate)
RULES = (*EVAL_RULES, overlong_arguments)
