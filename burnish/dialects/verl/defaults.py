"""verl's own defaults (0.4.1, 0.5), written out where ours differ, so that the run is the one that was meant."""

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
# Keys that verl has in a job's file and never reads there: torchrun says how many processes there are.
_UNREAD = {"sft": ("trainer.nnodes", "trainer.n_gpus_per_node")}


def write_defaults(translation: Translation, cfg: Any) -> None:
    """An item for every default of verl's that is not ours and that nobody set; `cfg` is what was set."""
    absent = _absent(cfg)
    for leaf in tree(translation.job).leaves.values():
        unread = leaf.key in _UNREAD.get(translation.job, ())
        if leaf.facts.verl is SAME or unread or leaf.key in translation.settings:
            continue
        value = convert(leaf, leaf.facts.verl)
        if value == leaf.default:
            continue
        why = f"verl's default; Burnish's is {_own(leaf)}"
        item = Item(leaf.key, leaf.facts.verl, KEPT, leaf.key, value, why, given=False)
        reason = next((reason for section, reason in absent.items() if leaf.key.startswith(section)), None)
        if reason is None:
            translation.put(item)
        else:
            translation.items.append(replace(item, status=INERT, why=f"{why}; {reason}"))
    _outvote_clip_ratio(translation)


def _absent(cfg: Any) -> dict[str, str]:
    """The sections of roles that this run does not have, and why."""
    if not isinstance(cfg, TrainConfig):
        return {}
    roles = {
        "critic.": (has_critic(cfg), "no critic is trained"),
        "reward_model.model.": (cfg.reward_model.enable, "there is no reward model"),
    }
    return {section: reason for section, (present, reason) in roles.items() if not present}


def _own(leaf: Leaf) -> str:
    return f"that of {leaf.default[2:-1]}" if is_interpolation(leaf.default) else written_as(leaf.default)


def _outvote_clip_ratio(translation: Translation) -> None:
    """verl reads clip_ratio only where the two bounds are null, and by default they are not."""
    bounds = [translation.settings.get(f"{_CLIP}_{side}") for side in ("low", "high")]
    if translation.job != "train" or None in bounds:
        return
    for index, item in enumerate(translation.items):
        if item.ours == _CLIP and item.given and item.ours_value not in bounds and item.status == KEPT:
            why = (
                f"verl reads it only where clip_ratio_low and clip_ratio_high are null; here they are {bounds[0]:g} and"
                f" {bounds[1]:g}. To clip at it, type: {_CLIP}_low={item.ours_value:g} {_CLIP}_high={item.ours_value:g}"
            )
            translation.items[index] = replace(item, status=INERT, why=why)
