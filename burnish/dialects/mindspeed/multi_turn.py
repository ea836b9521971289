"""rl_config: multi-turn rollouts with tools, partial rollouts, images."""

from __future__ import annotations

from burnish.dialects.mindspeed.roles import ROLLOUT
from burnish.dialects.mindspeed.translator import Translator

_MULTI_TURN_KEYS = {
    "tool_config_path": "tool_config_path",
    "max_tool_calls": "max_user_turns",
    "max_parallel_calls": "max_parallel_calls",
    "max_tool_response_length": "max_tool_response_length",
    "tool_response_truncate_side": "tool_response_truncate_side",
    "tool_parser_format": "format",
}
# MindSpeed RL names the side of a long tool response that is kept; ours is the one that is removed.
_REMOVED_SIDES = {"left": "right", "right": "left"}
_WITH_POLICY = "the vision tower is part of the policy, and runs where and when it does"
_VISION = {
    "colocate_actor_and_vit": _WITH_POLICY,
    "vit_forward_micro_batch_size": _WITH_POLICY,
}
_LIMITS = ("limit_mm_image_per_prompt", "limit_mm_video_per_prompt")
_IMAGE_KEY = "images"  # MindSpeed RL reads verl's columns


def translate_multi_turn(t: Translator) -> None:
    _tools(t)
    _partial_rollout(t)
    _images(t)


def _tools(t: Translator) -> None:
    rl, enable = t.rl, t.rl["multi_turn_enable"]
    t.set(enable, f"{ROLLOUT}.multi_turn.enable")
    for name, ours in _MULTI_TURN_KEYS.items():
        setting = rl[name]
        if not enable.value:
            t.inert(setting, "multi_turn_enable is off")
        elif setting.value in list(_REMOVED_SIDES):
            why = f"{setting.value} names the side that is kept; here, the one that is removed"
            t.set(setting, f"{ROLLOUT}.multi_turn.{ours}", _REMOVED_SIDES[setting.value], why)
        elif setting.value:
            why = "turns with tool responses" if ours == "max_user_turns" else ""
            t.set(setting, f"{ROLLOUT}.multi_turn.{ours}", why=why)
    if not enable.value:
        t.inert(rl["max_total_response_length"], "multi_turn_enable is off")
    mode = rl["async_engine"]
    if mode.explicit:
        t.set(mode, f"{ROLLOUT}.mode", "async" if mode.value else "sync")


def _partial_rollout(t: Translator) -> None:
    rl, split, finished = (
        t.rl,
        t.rl["partial_rollout_max_split"],
        t.rl["require_max_age_all_finished"],
    )
    if (split.value or 1) <= 1:
        t.inert(split, "each response is finished within its iteration")
        t.inert(finished, "partial_rollout_max_split is 1")
        return
    if rl.value("guarantee_order"):
        t.refuse(rl["guarantee_order"], "must be false with partial_rollout_max_split, also in MindSpeed RL")
    why = "unfinished responses continue in the next iteration; not supported yet (partial rollout in synchronous runs)"
    t.pending(split, why)
    if finished.explicit:
        t.pending(finished, "not supported yet (partial rollout in synchronous runs)")


def _images(t: Translator) -> None:
    rl, embeds, limits = t.rl, t.rl["reuse_image_embeds"], [t.generate[name] for name in _LIMITS]
    if not rl.value("is_multimodal"):
        no_images = (rl["is_multimodal"], embeds, *(rl[name] for name in _VISION), t.actor["mm_model"], *limits)
        for setting in no_images:
            t.inert(setting, "no images: is_multimodal is off")
        return
    t.set(rl["is_multimodal"], "data.image_key", _IMAGE_KEY, "images are read from this column")
    frozen = "features that are computed once stay right only if the vision tower is not trained"
    t.set(embeds, "actor_rollout_ref.actor.freeze_vision_tower", bool(embeds.value), frozen if embeds.value else "")
    for name, why in _VISION.items():
        t.inert(rl[name], why)
    why = "the architecture comes from the model's config.json; actor.freeze_vision_tower decides what is trained"
    t.inert(t.actor["mm_model"], why)
    t.set(limits[0], "data.max_images_per_prompt")
    t.inert(limits[1], "the number of videos is not limited")
