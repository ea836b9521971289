"""Rules for sources of scores; translation of verl's overlong penalty, which it passes to the reward manager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from burnish.config.root import TrainConfig
from burnish.errors import UserError, nearest

# Managers that take verl's overlong penalty as arguments.
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
    """At most one of function, verifiers and remote reward; one weight per verifier."""
    reward = cfg.reward
    sources = {
        "custom_reward_function.path": cfg.custom_reward_function.path,
        "reward.verifiers": reward.verifiers,
        "reward.remote_url": reward.remote_url,
    }
    keys = [key for key, value in sources.items() if value]
    if len(keys) > 1:
        problem = f"only one of {' and '.join(keys)} can score responses"
        yield UserError(problem, key=keys[-1], value=sources[keys[-1]], hint=f"only {keys[0]}={sources[keys[0]]}")
    if reward.verifier_weights and len(reward.verifier_weights) != len(reward.verifiers):
        key, names = "reward.verifier_weights", len(reward.verifiers)
        yield UserError(
            f"{len(reward.verifier_weights)} weights for {names} verifiers",
            key=key,
            value=list(reward.verifier_weights),
            hint=f"{key}=[{','.join(['1.0'] * names)}]",
        )
    if len(reward.remote_url) > 1 and any(url.endswith(".py") for url in reward.remote_url):
        problem = "a Python file cannot be combined with other URLs"
        yield UserError(problem, key="reward.remote_url", value=list(reward.remote_url))


def isolation(cfg: TrainConfig) -> Iterator[UserError]:
    """Isolation requires worker processes; reward servers require the network."""
    reward = cfg.reward
    for name, is_set in (("isolate", reward.isolate is True), ("network", not reward.network)):
        if is_set and reward.num_workers == 0:
            problem = "reward.num_workers=0 runs reward functions in the training process, without limits"
            yield UserError(problem, key=f"reward.{name}", value=getattr(reward, name), hint="reward.num_workers=2")
    if not reward.network and any(not url.endswith(".py") for url in reward.remote_url):
        problem = "reward servers (reward.remote_url) require the network"
        yield UserError(problem, key="reward.network", value=False, hint="reward.network=true")
    if not reward.network and reward.isolate is False:
        problem = "reward.isolate=false cannot block the network"
        yield UserError(problem, key="reward.network", value=False, hint="reward.isolate=null")


def overlong_arguments(cfg: TrainConfig) -> Iterator[UserError]:
    """overlong_buffer_cfg and max_resp_len of dapo have the fields of reward_model.overlong_buffer."""
    kwargs = overlong_kwargs(cfg)
    for name, value in kwargs.items():
        key = _key_of(name)
        if name not in _TYPES and name != "max_resp_len":
            suggestion = nearest(name, _TYPES)
            problem = "no such setting." + (f" Did you mean {suggestion!r}?" if suggestion else "")
            yield UserError(problem, key=key, value=value, allowed=list(_TYPES))
        elif not _is_instance(value, _TYPES.get(name, (int,))):
            allowed = " or ".join(kind.__name__ for kind in _TYPES.get(name, (int,)))
            yield UserError("wrong type", key=key, value=value, allowed=allowed)
    limit = kwargs.get("max_resp_len", cfg.data.max_response_length)
    length = kwargs.get("len", cfg.reward_model.overlong_buffer.len)
    valid = isinstance(limit, int) and isinstance(length, int)
    if kwargs.get("enable") is True and valid and not 1 <= length <= limit:
        problem = f"not within the response length of {limit} tokens"
        yield UserError(problem, key=_key_of("len"), value=length, allowed=f"1 to {limit}")


def overlong_kwargs(cfg: TrainConfig) -> dict[str, Any]:
    """The fields of reward_model.overlong_buffer that reward_kwargs sets."""
    kwargs = cfg.reward_model.reward_kwargs
    if cfg.reward_model.reward_manager not in OVERLONG_MANAGERS:
        return {}
    buffer = kwargs.get("overlong_buffer_cfg")
    fields = dict(buffer) if isinstance(buffer, dict) else {} if buffer is None else {"enable": buffer}
    length = kwargs.get("max_resp_len")
    return fields if length is None else fields | {"max_resp_len": length}


def apply_overlong_kwargs(cfg: TrainConfig) -> Iterator[str]:
    """Move them from reward_kwargs to reward_model.overlong_buffer."""
    fields = overlong_kwargs(cfg)
    for name, value in fields.items():
        setattr(cfg.reward_model.overlong_buffer, name, value)
    if fields:
        moved = {"overlong_buffer_cfg", "max_resp_len"}
        cfg.reward_model.reward_kwargs = {
            name: value for name, value in cfg.reward_model.reward_kwargs.items() if name not in moved
        }
        settings = " ".join(f"{_BUFFER}.{name}={value}" for name, value in fields.items())
        manager = cfg.reward_model.reward_manager
        yield f"{_KWARGS} of reward_model.reward_manager={manager} is interpreted as {settings}."


def _key_of(name: str) -> str:
    return f"{_KWARGS}.{name}" if name == "max_resp_len" else f"{_KWARGS}.overlong_buffer_cfg.{name}"


def _is_instance(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


EVAL_RULES = (one_source, isolation)
RULES = (*EVAL_RULES, overlong_arguments)
