"""verl's defaults (0.4.1, 0.5), written out explicitly where Burnish's differ, so that the run computes the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from burnish.config.fields import SAME
from burnish.config.root import TrainConfig
from burnish.config.rules import has_critic
from burnish.config.tree import Leaf, tree
from burnish.config.values import convert, is_interpolation, written_as
from burnish.dialects.report import INERT, KEPT, Item, Translation

_CLIP = "actor_rollout_ref.actor.clip_ratio"
# Keys of a job's config file that verl ignores: torchrun sets the number of processes.
_IGNORED_BY_VERL = {"sft": ("trainer.nnodes", "trainer.n_gpus_per_node")}


def write_defaults(translation: Translation, cfg: Any) -> None:
    """Add an item for every unset key whose verl default differs from Burnish's. `cfg` holds the set keys."""
    absent_roles = _absent_roles(cfg)
    for leaf in tree(translation.job).leaves.values():
        ignored = leaf.key in _IGNORED_BY_VERL.get(translation.job, ())
        if leaf.facts.verl is SAME or ignored or leaf.key in translation.settings:
            continue
        value = convert(leaf, leaf.facts.verl)
        if value == leaf.default:
            continue
        why = f"verl's default; Burnish's is {_default_text(leaf)}"
        item = Item(leaf.key, leaf.facts.verl, KEPT, leaf.key, value, why, explicit=False)
        reason = next((reason for section, reason in absent_roles.items() if leaf.key.startswith(section)), None)
        if reason is None:
            translation.add(item)
        else:
            translation.items.append(replace(item, status=INERT, why=f"{why}; {reason}"))
    _mark_clip_ratio_inert(translation)


def _absent_roles(cfg: Any) -> dict[str, str]:
    """Config sections of roles that this run does not use, each with the reason."""
    if not isinstance(cfg, TrainConfig):
        return {}
    roles = {
        "critic.": (has_critic(cfg), "this run has no critic"),
        "reward_model.model.": (cfg.reward_model.enable, "this run has no reward model"),
    }
    return {section: reason for section, (present, reason) in roles.items() if not present}


def _default_text(leaf: Leaf) -> str:
    return f"the value of {leaf.default[2:-1]}" if is_interpolation(leaf.default) else written_as(leaf.default)


def _mark_clip_ratio_inert(translation: Translation) -> None:
    """verl uses clip_ratio only if clip_ratio_low and clip_ratio_high are null, and their defaults are not."""
    bounds = [translation.settings.get(f"{_CLIP}_{side}") for side in ("low", "high")]
    if translation.job != "train" or None in bounds:
        return
    for index, item in enumerate(translation.items):
        if item.ours == _CLIP and item.explicit and item.ours_value not in bounds and item.status == KEPT:
            why = (
                f"verl uses it only if clip_ratio_low and clip_ratio_high are null; here they are {bounds[0]:g} and"
                f" {bounds[1]:g}. To use it, type: {_CLIP}_low={item.ours_value:g} {_CLIP}_high={item.ours_value:g}"
            )
            translation.items[index] = replace(item, status=INERT, why=why)
