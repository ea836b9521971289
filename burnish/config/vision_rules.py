"""Rules for keys about images and videos, given what the model's config.json says: before the model is loaded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeVar

from burnish.config.conditions import needs_vllm_server
from burnish.config.data import DataConfig
from burnish.config.jobs import GenerateConfig
from burnish.config.ranks import PARALLEL_SIZES
from burnish.config.root import TrainConfig
from burnish.config.sft import SftConfig
from burnish.config.vision_names import VLLM_TYPES
from burnish.errors import UserError

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_DEFAULT = DataConfig()
_SERVERS = ("base_url", "python")  # of engine_kwargs.vllm: with these it cannot be in this process
Config = TypeVar("Config", TrainConfig, GenerateConfig)


def check_vision(
    cfg: TrainConfig | SftConfig | GenerateConfig, *, sees: bool, videos: bool = True, model_type: str | None = None
) -> list[UserError]:
    """What is wrong with the keys about images and videos. `sees`: whether the model has a vision tower; `videos`:
    whether it takes videos; `model_type`: that of its config.json, where it is known."""
    if not sees:
        return [*_data_of_text_model(cfg.data), *_frozen_text_model(cfg)]
    errors = check_engine_sees(cfg, model_type if _says_pictures(cfg.data) else None)
    if not videos and cfg.data.video_key not in (None, _DEFAULT.video_key):
        problem = "models of this family take no videos"
        errors.append(UserError(problem, key="data.video_key", value=cfg.data.video_key, hint="data.video_key=null"))
    return errors


def check_engine_sees(cfg: TrainConfig | SftConfig | GenerateConfig, model_type: str | None = None) -> list[UserError]:
    """Engines that get no pictures. `model_type`, if it is known and rows have pictures: what vLLM depends on."""
    rollout, section = rollout_of(cfg)
    if rollout is None or not reads_pictures(cfg.data):
        return []
    key, name, errors = f"{section}.name", rollout.name, []
    if name == "sglang":
        problem, hint = "SGLang does not get images and videos from Burnish", f"{key}=builtin, or vllm"
        errors.append(UserError(problem, key=key, value=name, allowed="builtin, hf, vllm", hint=hint))
    if name != "vllm" or model_type is None:
        return errors
    if model_type not in VLLM_TYPES:
        problem = f"vLLM does not get images of {model_type} from Burnish"
        errors.append(UserError(problem, key=key, value=name, allowed="builtin, hf", hint=f"{key}=builtin"))
    for option in _SERVERS:
        value = rollout.engine_kwargs.vllm.get(option)
        if value:
            problem = "vLLM takes images in this process only, not as a server"
            setting = f"{section}.engine_kwargs.vllm.{option}"
            errors.append(UserError(problem, key=setting, value=value, hint=f"{setting}=null, or {key}=builtin"))
    return errors


def _says_pictures(data: Any) -> bool:
    """Whether the user says that rows have pictures; the defaults name columns that text data does not have."""
    keys = any(getattr(data, name) not in (None, getattr(_DEFAULT, name)) for name in ("image_key", "video_key"))
    return keys or bool(data.mm_processor_kwargs)


def reads_pictures(data: Any) -> bool:
    """Whether rows may have pictures. (The defaults name columns.)"""
    return data.image_key is not None or data.video_key is not None


def vllm_in_process(cfg: Config) -> tuple[Config, list[str]]:
    """For rows with pictures: the config with a whole vLLM engine on every device instead of a server, which takes no
    images, and a notice of what changed."""
    rollout, section = rollout_of(cfg)
    if rollout.name != "vllm" or not reads_pictures(cfg.data):
        return cfg, []
    wanted: dict[str, Any] = {"mode": "sync", **(dict.fromkeys(PARALLEL_SIZES, 1) if needs_vllm_server(cfg) else {})}
    changes = [(name, value) for name, value in wanted.items() if getattr(rollout, name) != value]
    if not changes:
        return cfg, []
    settings = " ".join(f"{section}.{name}={value}" for name, value in changes)
    notice = (
        f"{settings}: a vLLM server takes no images, so every device has a whole engine in its process"
        f" ({section}.name=builtin shares one among devices)"
    )
    cfg = copy.deepcopy(cfg)
    for name, value in changes:
        setattr(rollout_of(cfg)[0], name, value)
    return cfg, [notice]


def rollout_of(cfg: TrainConfig | SftConfig | GenerateConfig) -> tuple[Any, str]:
    if isinstance(cfg, TrainConfig):
        return cfg.actor_rollout_ref.rollout, ROLLOUT
    return (cfg.rollout, "rollout") if isinstance(cfg, GenerateConfig) else (None, "")


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
