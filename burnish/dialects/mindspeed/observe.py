"""profiler_config and msprobe_config: recordings of time and of tensors. Each may stand once, or once for each role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.dialects.mindspeed.reading import Reading, Setting, plain_key
from burnish.dialects.mindspeed.sections import MSPROBE, PROFILER

_NPU = "actor_rollout_ref.actor.profiler.tool_config.npu"
_KEYS = {
    "profile_save_path": "global_profiler.save_path",
    "profile_level": f"{_NPU}.level",
    "profile_analysis": f"{_NPU}.analysis",
}
_CONTENTS = {
    "profile_with_npu": "npu",
    "profile_with_cpu": "cpu",
    "profile_with_memory": "memory",
    "profile_record_shapes": "shapes",
    "profile_with_module": "module",
    "profile_with_stack": "stack",
}


def read_observation(reading: Reading, sections: Mapping[str, Any]) -> None:
    for name, values in parts(sections.get("profiler_config"), "profiler_config", PROFILER):
        _profiler(reading, name, values)
    for name, values in parts(sections.get("msprobe_config"), "msprobe_config", MSPROBE):
        _msprobe(reading, name, values)


def parts(section: Any, name: str, known: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The settings themselves, and those of each role: profiler_config.integrated.profile."""
    if not isinstance(section, Mapping):
        return []
    own = {key: value for key, value in section.items() if not isinstance(value, Mapping) or plain_key(key) in known}
    roles = [(f"{name}.{key}", dict(section[key])) for key in section if key not in own]
    return [*([(name, own)] if own else []), *roles]


def _profiler(reading: Reading, name: str, values: dict[str, Any]) -> None:
    settings = {plain_key(key): Setting(f"{name}.{key}", value, True) for key, value in values.items()}
    profile = settings.get("profile")
    if profile is None or not profile.value:
        for setting in settings.values():
            reading.inert(setting, "nothing is profiled: profile is off")
        return
    reading.put(profile, "global_profiler.tool", "npu")
    first, last = (values.get(f"profile_step_{end}", PROFILER[f"profile_step_{end}"]) for end in ("start", "end"))
    contents = [word for key, word in _CONTENTS.items() if values.get(key, PROFILER[key])]
    ranks = values.get("profile_ranks", "all")
    for key, setting in settings.items():
        if key in _KEYS:
            reading.put(setting, _KEYS[key])
        elif key.startswith("profile_step_"):
            steps = list(range(int(first), int(last)))
            reading.put(setting, "trainer.profile_steps", steps, f"from {first}, up to {last} and not with it")
        elif key in _CONTENTS:
            reading.put(setting, f"{_NPU}.contents", contents)
        elif key == "profile_ranks" and ranks == "all":
            reading.put(setting, "actor_rollout_ref.actor.profiler.all_ranks", True)
        elif key == "profile_ranks":
            reading.put(
                setting, "actor_rollout_ref.actor.profiler.ranks", ranks if isinstance(ranks, list) else [ranks]
            )
        elif key != "profile":
            reading.pend(setting, "an option of Ascend's profiler; waits for the profiler")


def _msprobe(reading: Reading, name: str, values: dict[str, Any]) -> None:
    on = any(plain_key(key) == "msprobe" and value for key, value in values.items())
    for key, value in values.items():
        setting = Setting(f"{name}.{key}", value, True)
        if on and plain_key(key) == "msprobe":
            why = (
                "tensors of Ascend's msprobe cannot be dumped here; trainer.rollout_data_dir keeps responses and scores"
            )
            reading.refuse(setting, f"{why}. Write msprobe: false")
        else:
            reading.inert(setting, "nothing is dumped" if not on else "a setting of the dump")
