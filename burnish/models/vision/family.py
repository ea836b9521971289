"""VisionFamily: what differs between vision-language families, behind one interface, and the registry of families.

All families work alike: placeholder tokens in the prompt stand for pictures, a vision tower and a projector turn pixels
into one feature per placeholder, and the features replace the placeholders' embeddings. Which tokens are replaced
follows from the spans of the media, never from a search for placeholder ids, because a policy may sample such an id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from burnish.errors import UserError
from burnish.models.model_input import Media, MediaKind
from burnish.models.positions import Positions
from burnish.models.vision.features import Embedded, FeatureMemo, MediaSlice
from burnish.registry import Registry

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from burnish.models.vision.pictures import Pictures

VISION_FAMILIES = Registry("vision-language family", key="actor_rollout_ref.model.path")  # by config.model_type
VISION_FAMILIES.register_lazy("qwen2_vl", "burnish.models.vision.qwen:Qwen2VL")
VISION_FAMILIES.register_lazy("qwen2_5_vl", "burnish.models.vision.qwen:Qwen25VL")
VISION_FAMILIES.register_lazy("qwen3_vl", "burnish.models.vision.qwen:Qwen3VL")
VISION_FAMILIES.register_lazy("smolvlm", "burnish.models.vision.idefics:SmolVLM")
VISION_FAMILIES.register_lazy("idefics3", "burnish.models.vision.idefics:Idefics3")
VISION_FAMILIES.register_lazy("gemma3", "burnish.models.vision.gemma3:Gemma3")

# A config with one of these is not of a text model.
TOWER_CONFIGS = ("vision_config", "audio_config")


class VisionFamily(Protocol):
    """Made from a model's config; holds no model."""

    name: str  # config.model_type
    kinds: frozenset[MediaKind]  # what its processor takes
    positions: Positions
    sees_whole_images: bool  # tokens of one image attend to each other in both directions (Gemma 3)
    changes_layers: bool  # features are added between the layers of the language model too (Qwen3-VL)

    def language_model(self, model: PreTrainedModel) -> nn.Module:
        """The text backbone: embeddings -> hidden states."""
        ...

    def vision_modules(self, model: PreTrainedModel) -> dict[str, nn.Module]:
        """Vision tower and projector by name: what `actor.freeze_vision_tower` freezes."""
        ...

    def embed(
        self,
        model: PreTrainedModel,
        ids: Tensor,
        slices: Sequence[MediaSlice],
        *,
        always: bool = False,
        memo: FeatureMemo | None = None,
    ) -> Embedded:
        """Embeddings of a packed stream [T] with the media's features in place.

        `always` runs the vision tower (on a stand-in) where there is no media too, so that ranks that shard it do the
        same collectives; its gradients are then zero. `memo` has features that were computed before.
        """
        ...

    def model_arguments(self, media: Sequence[Media]) -> dict[str, Tensor]:
        """The media as keyword arguments of the transformers model, for engines that call it themselves."""
        ...

    def pictures(self, folder: str, overrides: Mapping[str, Any], tokenizer: Any) -> Pictures:
        """What turns pictures into the model's inputs, from the files of a checkpoint."""
        ...


def vision_family(config: PretrainedConfig, key: str = "actor_rollout_ref.model.path") -> VisionFamily | None:
    """The family of a model; None for a text model. UserError for a multimodal model of an unknown family."""
    entry = VISION_FAMILIES.entries.get(config.model_type)
    if entry is not None:
        return entry.load()(config)
    if any(getattr(config, name, None) is not None for name in TOWER_CONFIGS):
        raise UserError(
            f"models of type {config.model_type!r} take images, video or audio in a way that Burnish does not support",
            key=key,
            value=config.model_type,
            allowed=sorted(VISION_FAMILIES.entries),
        )
    return None


def vision_modules(model: PreTrainedModel) -> dict[str, nn.Module]:
    """Vision tower and projector of a model by name; none in a text model."""
    family = vision_family(model.config)
    return {} if family is None else family.vision_modules(model)


def freeze_vision_tower(model: PreTrainedModel, key: str, value: object = True) -> None:
    """Train neither the vision tower nor the projector. `key` is the setting, for the error about a text model."""
    modules = vision_modules(model)
    if not modules:
        raise UserError(
            f"models of type {model.config.model_type!r} have no vision tower",
            key=key,
            value=value,
            hint=f"{key}=false",
        )
    for module in modules.values():
        module.requires_grad_(False)
