"""Commands that need vision models, which are not supported yet: by the model's name, or by a column of images."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

from burnish.config.pending import VISION
from burnish.dialects.report import CONVERTED, KEPT, PENDING, Item, Translation

MODEL_KEYS = ("actor_rollout_ref.model.path", "model.partial_pretrain", "model.path")
# Keys whose default is a column name: typing even the default says that the prompts have images.
MEDIA_KEYS = ("data.image_key", "data.video_key", "actor_rollout_ref.rollout.engine_kwargs.vllm.limit_mm_per_prompt")
_NAMES = re.compile(
    r"(?<![a-z])(vl|vlm|omni)(?![a-z])|internvl|smolvlm|llava|pixtral|idefics|molmo|paligemma|minicpm-?[ov]"
    r"|glm-?[\d.]+v(?![a-z])|llama-?3\.2-(11|90)b-vision",
    re.IGNORECASE,
)


def mark_vision(translation: Translation, typed: Collection[str] = ()) -> None:
    """Give these settings the status pending. `typed` are the names of settings on the command line.

    Only names are read, so that a translation does not depend on the machine.
    """
    for index, item in enumerate(translation.items):
        if item.status in (KEPT, CONVERTED) and _needs_vision(item, typed):
            why = f"not supported yet ({VISION.en})"
            translation.items[index] = replace(item, status=PENDING, why=f"{item.why}; {why}" if item.why else why)


def _needs_vision(item: Item, typed: Collection[str]) -> bool:
    if item.ours in MODEL_KEYS:
        return _NAMES.search(str(item.ours_value).rstrip("/").rpartition("/")[2]) is not None
    return item.ours in MEDIA_KEYS and item.theirs in typed and bool(item.ours_value)
