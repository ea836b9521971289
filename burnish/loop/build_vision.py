"""What a run needs to see: the encoder of a vision-language model, for data, tools and environments alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from burnish.config.vision_rules import Config, check_engine_sees, check_vision, rollout_of, vllm_in_process
from burnish.errors import raise_all
from burnish.loop.build_engine import check_engine_of
from burnish.models.load import ModelSource, load_config
from burnish.models.vision.encoder import VisionEncoder, VisionSettings, load_vision_encoder
from burnish.models.vision.family import vision_family
from burnish.models.vision.pictures import PROCESSOR_FILES, has_file

if TYPE_CHECKING:
    from burnish.config import GenerateConfig, SftConfig, TrainConfig


def build_vision(
    cfg: TrainConfig | SftConfig | GenerateConfig, source: ModelSource, tokenizer: Any
) -> VisionEncoder | None:
    """None for a model of text, and for one without a processor, which is then used as one: data with images are
    refused. UserError for a multimodal model of an unknown family, and for keys that do not fit the model."""
    config = load_config(source)
    family = vision_family(config, source.key)
    videos = family is not None and "video" in family.kinds
    raise_all(check_vision(cfg, sees=family is not None, videos=videos, model_type=config.model_type))
    if family is None:
        return None
    folder = source.checked_path()
    if not any(has_file(folder, name) for name in PROCESSOR_FILES):
        return None
    return load_vision_encoder(source, tokenizer, VisionSettings(overrides=cfg.data.mm_processor_kwargs))


def engines_for_pictures(cfg: Config, source: ModelSource, device: torch.device) -> tuple[Config, list[str]]:
    """For rows with pictures: the config with engines that can be shown them, and notices of what changed."""
    raise_all(check_engine_sees(cfg, load_config(source).model_type))
    changed, notices = vllm_in_process(cfg)
    if notices:
        rollout, section = rollout_of(changed)
        check_engine_of(rollout, device, section)
    return changed, notices
