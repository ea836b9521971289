"""What a run needs to see: the encoder of a vision-language model, for data, tools and environments alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnish.models.load import ModelSource, load_config
from burnish.models.vision.encoder import VisionEncoder, VisionSettings, load_vision_encoder
from burnish.models.vision.family import vision_family
from burnish.models.vision.pictures import PROCESSOR_FILES, has_file

if TYPE_CHECKING:
    from burnish.config import TrainConfig


def build_vision(cfg: TrainConfig, source: ModelSource, tokenizer: Any) -> VisionEncoder | None:
    """None for a model of text, and for one without a processor, which is then used as one: data with images are
    refused. UserError for a multimodal model of an unknown family."""
    if vision_family(load_config(source), source.key) is None:
        return None
    folder = source.checked_path()
    if not any(has_file(folder, name) for name in PROCESSOR_FILES):
        return None
    settings = VisionSettings(overrides=cfg.data.mm_processor_kwargs, max_images=cfg.data.max_images_per_prompt)
    return load_vision_encoder(source, tokenizer, settings)
