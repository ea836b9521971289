"""Gemma 3: images of one size, each a fixed number of tokens that see each other in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Gemma3Processor

from burnish.media import Video
from burnish.models.model_input import Media, MediaKind
from burnish.models.positions import TEXT, Positions
from burnish.models.vision.features import Embedded, FeatureMemo, MediaSlice, place, to_device
from burnish.models.vision.pictures import Processed, describe, load_image_processor, runs_between

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PretrainedConfig, PreTrainedModel


class Gemma3:
    kinds: frozenset[MediaKind] = frozenset({"image"})
    positions: Positions = TEXT
    sees_whole_images = True
    changes_layers = False

    def __init__(self, config: PretrainedConfig) -> None:
        self.config: Any = config
        self.name: str = config.model_type

    def language_model(self, model: PreTrainedModel) -> nn.Module:
        return model.get_submodule("model.language_model")

    def vision_modules(self, model: PreTrainedModel) -> dict[str, nn.Module]:
        return {name: model.get_submodule(name) for name in ("model.vision_tower", "model.multi_modal_projector")}

    def embed(
        self,
        model: PreTrainedModel,
        ids: Tensor,
        slices: Sequence[MediaSlice],
        *,
        always: bool = False,
        memo: FeatureMemo | None = None,
    ) -> Embedded:
        embeds = model.get_input_embeddings()(ids)
        if slices:
            return Embedded(place(slices, lambda media: self._features(model, media), memo).into(embeds))
        if always:
            size = self.config.vision_config.image_size
            features = self._images(model, torch.zeros(1, 3, size, size))
            return Embedded(embeds + features[:0].sum().to(embeds.dtype))
        return Embedded(embeds)

    def _features(self, model: PreTrainedModel, media: list[Media]) -> list[tuple[Tensor, ...]]:
        features = self._images(model, torch.cat([item.tensors["pixel_values"] for item in media]))
        return [(image,) for image in features]

    def _images(self, model: PreTrainedModel, images: Tensor) -> Tensor:
        """[images, features, hidden]."""
        output = model.get_submodule("model.vision_tower")(pixel_values=to_device([images], model))
        return model.get_submodule("model.multi_modal_projector")(output.last_hidden_state)

    def model_arguments(self, media: Sequence[Media]) -> dict[str, Tensor]:
        return {"pixel_values": torch.cat([item.tensors["pixel_values"] for item in media])} if media else {}

    def pictures(self, folder: str, overrides: Mapping[str, Any], tokenizer: Any) -> GemmaPictures:
        return GemmaPictures(self.config, folder, overrides, tokenizer)


class GemmaPictures:
    """With pan and scan, an image and its crops are one media item each."""

    def __init__(self, config: Any, folder: str, overrides: Mapping[str, Any], tokenizer: Any) -> None:
        self.per_image: int = config.mm_tokens_per_image
        self.feature_ids: Mapping[MediaKind, int] = {"image": config.image_token_id}
        self.images = load_image_processor(folder, overrides)
        self.processor = Gemma3Processor(self.images, tokenizer, image_seq_length=1)
        self.placeholders: Mapping[MediaKind, str] = {"image": self.processor.boi_token}
        self.token: str = tokenizer.image_token
        self.description = describe(self.images)

    def image(self, image: Image) -> Processed:
        inputs = self.images(images=[image], return_tensors="pt")
        text = self.processor.replace_image_token({"num_crops": [int(inputs["num_crops"][0])]}, 0)
        items = tuple({"pixel_values": pixels[None]} for pixels in inputs["pixel_values"])
        return Processed(runs_between(text.split(self.token), self.per_image), items)

    def image_pieces(self, width: int, height: int) -> tuple[str | int, ...] | None:
        return None

    def video(self, video: Video) -> Processed:
        raise ValueError("models of this family take no video")
