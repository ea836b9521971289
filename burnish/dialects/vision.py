"""Commands for multimodal models of families that Burnish does not support: refused by the model's name."""

from __future__ import annotations

from dataclasses import replace

from burnish.config.vision_names import SUPPORTED_NAMES, unsupported_family
from burnish.dialects.report import CONVERTED, KEPT, REFUSED, Translation

MODEL_KEYS = (
    *("actor_rollout_ref.model.path", "critic.model.path", "reward_model.model.path"),
    *("model.partial_pretrain", "model.path"),
)


def refuse_unsupported_families(translation: Translation) -> None:
    """Only names are read, so that a translation does not depend on the machine; a run reads the config.json too."""
    for index, item in enumerate(translation.items):
        if item.ours not in MODEL_KEYS or item.status not in (KEPT, CONVERTED):
            continue
        family = unsupported_family(str(item.ours_value))
        if family is not None:
            translation.items[index] = replace(item, status=REFUSED, why=family_problem(family))


def family_problem(family: str) -> str:
    """What is wrong with a model of this family."""
    return (
        f"models of the family {family} take images, video or audio in a way that Burnish does not support;"
        f" supported: {SUPPORTED_NAMES}"
    )
