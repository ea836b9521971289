"""Rules for the routers of mixtures of experts (router_replay, enable_rollout_routing_replay)."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.actor import ActorConfig
from burnish.config.root import TrainConfig
from burnish.errors import UserError

MODE = "actor_rollout_ref.actor.router_replay.mode"
RECORD = "actor_rollout_ref.rollout.enable_rollout_routing_replay"
OFF = frozenset({"disabled"})
# Which pass the update repeats: the trainer's own over old log-probs, or the engine's.
TRAINER_MODES, ENGINE_MODES = frozenset({"R2"}), frozenset({"R3"})


def replays_routing(actor: ActorConfig) -> bool:
    """Whether updates repeat choices of experts that an earlier pass made."""
    return actor.router_replay.mode not in OFF


def router_replay(cfg: TrainConfig) -> Iterator[UserError]:
    """The choices to repeat are recorded."""
    mode = cfg.actor_rollout_ref.actor.router_replay.mode
    if mode in ENGINE_MODES and not cfg.actor_rollout_ref.rollout.enable_rollout_routing_replay:
        yield UserError("needs the engine's choices of experts", key=MODE, value=mode, hint=f"{RECORD}=true")
    if mode in TRAINER_MODES and cfg.algorithm.rollout_correction.bypass_mode:
        problem = "repeats the pass over old log-probs, which algorithm.rollout_correction.bypass_mode leaves out"
        yield UserError(problem, key=MODE, value=mode, hint=f"{MODE}=R3 {RECORD}=true")


EXPERT_RULES = (router_replay,)
