"""rl_config: conversations with tools, responses that go on in the next iteration, images."""

from __future__ import annotations

from burnish.dialects.mindspeed.reading import Reading
from burnish.dialects.mindspeed.roles import ROLLOUT

_TURNS = {
    "tool_config_path": "tool_config_path",
    "max_tool_calls": "max_user_turns",
    "max_parallel_calls": "max_parallel_calls",
    "max_tool_response_length": "max_tool_response_length",
    "tool_response_truncate_side": "tool_response_truncate_side",
    "tool_parser_format": "format",
}
_VISION = ("reuse_image_embeds", "colocate_actor_and_vit", "vit_forward_micro_batch_size")


def read_turns(reading: Reading) -> None:
    _tools(reading)
    _partial(reading)
    _images(reading)


def _tools(reading: Reading) -> None:
    rl, enable = reading.rl, reading.rl["multi_turn_enable"]
    reading.put(enable, f"{ROLLOUT}.multi_turn.enable")
    for name, ours in _TURNS.items():
        setting = rl[name]
        if not enable.value:
            reading.inert(setting, "multi_turn_enable is off")
        elif setting.value:
            why = "turns in which tools answer" if ours == "max_user_turns" else ""
            reading.put(setting, f"{ROLLOUT}.multi_turn.{ours}", why=why)
    if not enable.value:
        reading.inert(rl["max_total_response_length"], "multi_turn_enable is off")
    mode = rl["async_engine"]
    if mode.given:
        reading.put(mode, f"{ROLLOUT}.mode", "async" if mode.value else "sync")


def _partial(reading: Reading) -> None:
    rl, split, finished = (
        reading.rl,
        reading.rl["partial_rollout_max_split"],
        reading.rl["require_max_age_all_finished"],
    )
    if (split.value or 1) <= 1:
        reading.inert(split, "every response is finished in its own iteration")
        reading.inert(finished, "partial_rollout_max_split is 1")
        return
    if rl.value("guarantee_order"):
        reading.refuse(rl["guarantee_order"], "must be false with partial_rollout_max_split, as MindSpeed RL says too")
    why = "unfinished responses would go on in the next iteration; waits for responses that outlive a step"
    reading.pend(split, why)
    if finished.given:
        reading.pend(finished, "which must end in their last iteration; waits for responses that outlive a step")


def _images(reading: Reading) -> None:
    rl = reading.rl
    if rl.value("is_multimodal"):
        reading.pend(rl["is_multimodal"], "images in prompts; waits for vision")
        for key in (*(rl[name] for name in _VISION), reading.actor["mm_model"]):
            if key.given:
                reading.pend(key, "waits for vision")
        return
    for setting in (rl["is_multimodal"], *(rl[name] for name in _VISION), reading.actor["mm_model"]):
        reading.inert(setting, "there are no images: is_multimodal is off")
