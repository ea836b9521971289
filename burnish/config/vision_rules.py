"""Rules for keys about images and videos, given what the model's config.json says: before the model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from burnish.config.data import DataConfig
from burnish.config.jobs import GenerateConfig
from burnish.config.root import TrainConfig
from burnish.config.sft import SftConfig
from burnish.errors import UserError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_DEFAULT = DataConfig()


def check_vision(cfg: TrainConfig | SftConfig | GenerateConfig, *, sees: bool, videos: bool = True) -> list[UserError]:
    """What is wrong with the keys about images and videos. `sees`: whether the model has a vision tower; `videos`:
    whether it takes videos."""
    engine, engine_key = _engine(cfg)
    if not sees:
        return [*_data_of_text_model(cfg.data), *_frozen_text_model(cfg)]
    errors = []
    if engine == "sglang":
        problem = "SGLang does not get images and videos from Burnish"
        hint = f"{engine_key}.name=builtin, or vllm"
        errors.append(
            UserError(problem, key=f"{engine_key}.name", value=engine, allowed="builtin, hf, vllm", hint=hint)
        )
    if not videos and cfg.data.video_key not in (None, _DEFAULT.video_key):
        problem = "models of this family take no videos"
        errors.append(UserError(problem, key="data.video_key", value=cfg.data.video_key, hint="data.video_key=null"))
    return errors


def _engine(cfg: TrainConfig | SftConfig | GenerateConfig) -> tuple[str | None, str]:
    if isinstance(cfg, TrainConfig):
        return cfg.actor_rollout_ref.rollout.name, ROLLOUT
    return (cfg.rollout.name, "rollout") if isinstance(cfg, GenerateConfig) else (None, "")


def _data_of_text_model(data: Any) -> Iterator[UserError]:
    """Keys that say that there are pictures. (The defaults are columns that text data does not have: rows with them
    are refused when they are read.)"""
    for name in ("image_key", "video_key"):
        value = getattr(data, name)
        if value not in (None, getattr(_DEFAULT, name)):
            key = f"data.{name}"
            yield UserError("the model takes only text", key=key, value=value, hint=f"{key}=null, or a vision model")
    if data.mm_processor_kwargs:
        key = "data.mm_processor_kwargs"
        problem = "the model takes only text, and has no processor for pictures"
        yield UserError(problem, key=key, value=data.mm_processor_kwargs, hint=f"{key}={{}}")


def _frozen_text_model(cfg: TrainConfig | SftConfig | GenerateConfig) -> Iterator[UserError]:
    if isinstance(cfg, TrainConfig):
        frozen, key = cfg.actor_rollout_ref.actor.freeze_vision_tower, f"{ACTOR}.freeze_vision_tower"
    elif isinstance(cfg, SftConfig):
        frozen, key = cfg.model.freeze_vision_tower, "model.freeze_vision_tower"
    else:
        return
    if frozen:
        problem = "the model takes only text, and has no vision tower"
        yield UserError(problem, key=key, value=True, hint=f"{key}=false")
