"""VisionFamily: what differs between vision-language families, behind one interface, and the registry of families.

All families work alike: placeholder tokens in the prompt stand for pictures, a vision tower and a projector turn pixels
into one feature per placeholder, and the features replace the placeholders' embeddings. Which tokens are replaced
follows from the spans of the media, never from a search for placeholder ids, because a policy may sample such an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from burnish.errors import UserError
from burnish.models.model_input import Media, MediaKind
from burnish.models.positions import TEXT, Positions
from burnish.registry import Registry

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

VISION_FAMILIES = Registry("vision-language family", key="actor_rollout_ref.model.path")  # by config.model_type
# A config with one of these is not of a text model.
TOWER_CONFIGS = ("vision_config", "audio_config")


@dataclass(frozen=True)
class MediaSlice:
    """The tokens first..first + length of a media item, at start..start + length of a packed stream.

    Not the whole item where the tokens before `first` are in the KV cache already.
    """

    media: Media
    start: int
    first: int
    length: int


@dataclass(frozen=True)
class Embedded:
    """What the language model is given in place of token ids."""

    embeds: Tensor  # [T, hidden]
    arguments: dict[str, Any] = field(default_factory=dict)  # further arguments of its forward (Qwen3-VL's deepstack)


class VisionFamily(Protocol):
    kinds: frozenset[MediaKind]  # what its processor takes
    positions: Positions
    sees_whole_images: bool  # tokens of one image attend to each other in both directions (Gemma 3)

    def language_model(self, model: PreTrainedModel) -> nn.Module:
        """The text backbone: embeddings -> hidden states."""
        ...

    def vision_modules(self, model: PreTrainedModel) -> list[nn.Module]:
        """Vision tower and projector: what `actor.freeze_vision_tower` freezes."""
        ...

    def embed(self, model: PreTrainedModel, ids: Tensor, slices: Sequence[MediaSlice]) -> Embedded:
        """Embeddings of a packed stream [T] with the media's features in place."""
        ...


def vision_family(config: PretrainedConfig, key: str = "actor_rollout_ref.model.path") -> VisionFamily | None:
    """The family of a model; None for a text model. UserError for a multimodal model of an unknown family."""
    entry = VISION_FAMILIES.entries.get(config.model_type)
    if entry is not None:
        return entry.load()
    if any(getattr(config, name, None) is not None for name in TOWER_CONFIGS):
        raise UserError(
            f"models of type {config.model_type!r} take images, video or audio in a way that Burnish does not support",
            key=key,
            value=config.model_type,
            allowed=sorted(VISION_FAMILIES.entries),
        )
    return None


def positions_of(config: PretrainedConfig) -> Positions:
    family = vision_family(config)
    return TEXT if family is None else family.positions
