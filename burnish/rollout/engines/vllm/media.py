"""Images for vLLM, which has a processor of its own: prompts with one placeholder per image, and the images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnish.errors import UserError
from burnish.models.load import ModelSource, load_config
from burnish.models.model_input import MediaKind, ModelInput

# Families in which one token stands for an image and nothing else is put around it. vLLM and transformers disagree on
# the tokens of videos in some of them.
FAMILIES = frozenset({"qwen2_vl", "qwen2_5_vl", "qwen3_vl"})


def kinds_of(source: ModelSource) -> frozenset[MediaKind]:
    """What this engine shows a model besides text."""
    return frozenset({"image"}) if load_config(source).model_type in FAMILIES else frozenset()


def with_placeholders(input: ModelInput) -> tuple[tuple[int, ...], list[Any]]:
    """The tokens with each image as one placeholder, and the images."""
    ids: list[int] = []
    images, end = [], 0
    for media in sorted(input.media, key=lambda media: media.offset):
        if media.source is None:
            raise UserError(
                "the vllm engine needs the images themselves, and this prompt has only processed ones",
                key="actor_rollout_ref.rollout.name",
                value="vllm",
                hint="actor_rollout_ref.rollout.name=builtin",
            )
        ids += [*input.ids[end : media.offset], input.ids[media.offset]]
        images.append(media.source)
        end = media.offset + media.num_tokens
    return (*ids, *input.ids[end:]), images


def expanded_otherwise(input: ModelInput, theirs: Sequence[int]) -> UserError:
    """The trainer would see other tokens than the engine."""
    return UserError(
        f"vLLM made {len(theirs)} tokens of a prompt with images, the trainer {len(input)}: their processors differ",
        key="actor_rollout_ref.rollout.name",
        value="vllm",
        hint="actor_rollout_ref.rollout.name=builtin",
    )
