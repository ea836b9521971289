"""The defaults of verl's versions, written out explicitly where Burnish's differ, so that the run computes the same."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from burnish.config.fields import SAME
from burnish.config.ranks import uses_megatron
from burnish.config.root import TrainConfig
from burnish.config.rules import has_critic
from burnish.config.tree import Leaf, tree
from burnish.config.values import convert, is_interpolation, written_as
from burnish.dialects.report import CONVERTED, INERT, KEPT, Item, Translation
from burnish.dialects.verl.versions import (
    KL_IN_REWARD_UNTIL,
    REFERENCE_FOLLOWS,
    REFERENCE_FOLLOWS_SINCE,
    TOOL_LIMITS,
    TOOL_LIMITS_SINCE,
    defaults_of,
    is_at_least,
    older_meanings,
    runs_request_loop,
)

_ROLLOUT = "actor_rollout_ref.rollout"
_TURNS = f"{_ROLLOUT}.multi_turn"
_CLIP = "actor_rollout_ref.actor.clip_ratio"


def verl_defaults(job: str, version: str, ignored: Collection[str] = ()) -> dict[str, Any]:
    """The defaults of a version that may differ from Burnish's, by key. verl's program ignores some keys."""
    changed = defaults_of(version)
    leaves = [leaf for leaf in tree(job).leaves.values() if leaf.key not in ignored]
    values = [(leaf, changed.get(leaf.key, leaf.facts.verl)) for leaf in leaves]
    return {leaf.key: convert(leaf, value) for leaf, value in values if value is not SAME}


def write_defaults(translation: Translation, cfg: Any, version: str, ignored: Collection[str] = ()) -> None:
    """Add an item for every unset key whose default in verl differs from Burnish's. `cfg` holds the set keys."""
    absent_roles = _absent_roles(cfg)
    changed = defaults_of(version)
    for key, value in verl_defaults(translation.job, version, ignored).items():
        leaf = tree(translation.job).leaves[key]
        if key in translation.settings or value == leaf.default:
            continue
        owner = f"verl {version}" if key in changed else "verl"
        why = f"{owner}'s default; Burnish's is {_default_text(leaf)}"
        item = Item(key, changed.get(key, leaf.facts.verl), KEPT, key, value, why, explicit=False)
        reason = next((reason for section, reason in absent_roles.items() if leaf.key.startswith(section)), None)
        if reason is None:
            translation.add(item)
        else:
            translation.items.append(replace(item, status=INERT, why=f"{why}; {reason}"))
    _mark_clip_ratio_inert(translation)
    if isinstance(cfg, TrainConfig):
        _subtract_kl(translation, cfg, version)
        _follow_policy(translation, cfg, version)
        _use_warmup_ratio(translation, version)
        _convert_meanings(translation, version)
        _remove_tool_limits(translation, cfg, version)
        _convert_turns(translation, cfg, version)


def _subtract_kl(translation: Translation, cfg: TrainConfig, version: str) -> None:
    """In the oldest versions, the KL is in the reward unless it is in the loss."""
    key = "algorithm.use_kl_in_reward"
    is_set = key in translation.settings or cfg.actor_rollout_ref.actor.use_kl_loss
    if is_at_least(KL_IN_REWARD_UNTIL, version) and not is_set:
        why = f"verl {version} always subtracts the KL from the reward, unless use_kl_loss is set"
        translation.add(Item(key, True, KEPT, key, True, why, explicit=False))


def _follow_policy(translation: Translation, cfg: TrainConfig, version: str) -> None:
    """In newer versions, the reference's Megatron sizes follow the policy's; Burnish's do not."""
    if not is_at_least(version, REFERENCE_FOLLOWS_SINCE) or not uses_megatron(cfg.actor_rollout_ref.ref):
        return
    for name in REFERENCE_FOLLOWS:
        key, value = f"actor_rollout_ref.ref.megatron.{name}", getattr(cfg.actor_rollout_ref.actor.megatron, name)
        if key not in translation.settings and value != tree("train").leaves[key].default:
            why = f"follows the policy's in verl {version}"
            translation.add(Item(key, value, KEPT, key, value, why, explicit=False))


def _use_warmup_ratio(translation: Translation, version: str) -> None:
    """verl 0.9 uses the ratio for 0 warm-up steps as well; before, and here, 0 means no warm-up."""
    for section in ("actor_rollout_ref.actor.optim", "critic.optim"):
        key, ratio = f"{section}.lr_warmup_steps", translation.settings.get(f"{section}.lr_warmup_steps_ratio")
        if is_at_least(version, "0.9") and ratio and translation.settings.get(key) == 0:
            for index, item in enumerate(translation.items):
                if item.ours == key and item.ours_value == 0:
                    why = f"verl {version} uses lr_warmup_steps_ratio={ratio:g} for 0 steps"
                    translation.items[index] = replace(item, status=CONVERTED, ours_value=-1, why=why)
            translation.settings[key] = -1


def _convert_meanings(translation: Translation, version: str) -> None:
    """Values that mean something else in an older version."""
    for key, (values, why) in older_meanings(version).items():
        value = translation.settings.get(key)
        if value not in values:
            continue
        for index, item in enumerate(translation.items):
            if item.ours == key and item.ours_value == value:
                reason = f"in verl {version}, {value} {why}"
                translation.items[index] = replace(item, status=CONVERTED, ours_value=values[value], why=reason)
        translation.settings[key] = values[value]


def _remove_tool_limits(translation: Translation, cfg: TrainConfig, version: str) -> None:
    """Conversations of older versions execute all calls and give the model whole responses."""
    if is_at_least(version, TOOL_LIMITS_SINCE) or not cfg.actor_rollout_ref.rollout.multi_turn.enable:
        return
    for key in TOOL_LIMITS:
        if key not in translation.settings:
            why = f"verl {version} has no such limit"
            translation.add(Item(key, None, KEPT, key, None, why, explicit=False))


def _convert_turns(translation: Translation, cfg: TrainConfig, version: str) -> None:
    """What turns on conversations, and what limits them, differs between verl's request loop and its agent loops."""
    settings, rollout = translation.settings, cfg.actor_rollout_ref.rollout
    turns, loop_key = rollout.multi_turn, f"{_ROLLOUT}.agent.default_agent_loop"
    older = runs_request_loop(version, settings.get(f"{_ROLLOUT}.mode", rollout.mode))
    if older:
        why = f"verl {version} counts replies of simulated users alone, not tool results"
        _rename(translation, f"{_TURNS}.max_user_turns", f"{_TURNS}.max_interaction_turns", why)
    talks = turns.tool_config_path or turns.function_tool_path or turns.interaction_config_path
    if (
        not talks
        and turns.enable
        and not (turns.completion_callback or cfg.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    ):
        why = "no tools, simulated user or agent are configured: in verl, each conversation has one turn"
        _change(translation, f"{_TURNS}.enable", False, why)
    if talks and loop_key not in settings and not (older and turns.enable):
        reason = "multi_turn.enable is off" if older else "only rows whose agent_name is tool_agent use tools"
        why = f"verl {version}: {reason}. To use them for all rows, type: {loop_key}=tool_agent"
        translation.add(Item(loop_key, None, KEPT, loop_key, "single_turn_agent", why, explicit=False))


def _change(translation: Translation, key: str, value: Any, why: str) -> None:
    for index, item in enumerate(translation.items):
        if item.ours == key and item.status in (KEPT, CONVERTED):
            translation.items[index] = replace(item, status=CONVERTED, ours_value=value, why=why)
    translation.settings[key] = value


def _rename(translation: Translation, key: str, other: str, why: str) -> None:
    """What the source calls `key` is `other` here."""
    if translation.settings.get(key) is None or other in translation.settings:
        return
    for index, item in enumerate(translation.items):
        if item.ours == key and item.status in (KEPT, CONVERTED):
            translation.items[index] = replace(item, status=CONVERTED, ours=other, why=why)
    translation.settings[other] = translation.settings.pop(key)


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
