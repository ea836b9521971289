"""profiler_config (profiles) and msprobe_config (tensor dumps), each written once or once per role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.dialects.mindspeed.schema import MSPROBE, PROFILER
from burnish.dialects.mindspeed.translator import Setting, Translator, plain_key

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


def translate_profiling(t: Translator, sections: Mapping[str, Any]) -> None:
    for name, values in role_sections(sections.get("profiler_config"), "profiler_config", PROFILER):
        _profiler(t, name, values)
    for name, values in role_sections(sections.get("msprobe_config"), "msprobe_config", MSPROBE):
        _msprobe(t, name, values)


def role_sections(section: Any, name: str, schema: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Split a section into its own settings and those of each role (profiler_config.integrated.profile)."""
    if not isinstance(section, Mapping):
        return []
    direct = {
        key: value for key, value in section.items() if not isinstance(value, Mapping) or plain_key(key) in schema
    }
    roles = [(f"{name}.{key}", dict(section[key])) for key in section if key not in direct]
    return [*([(name, direct)] if direct else []), *roles]


def _profiler(t: Translator, name: str, values: dict[str, Any]) -> None:
    settings = {plain_key(key): Setting(f"{name}.{key}", value, True) for key, value in values.items()}
    profile = settings.get("profile")
    if profile is None or not profile.value:
        for setting in settings.values():
            t.inert(setting, "profile is off")
        return
    t.set(profile, "global_profiler.tool", "npu")
    first, last = (values.get(f"profile_step_{end}", PROFILER[f"profile_step_{end}"]) for end in ("start", "end"))
    contents = [word for key, word in _CONTENTS.items() if values.get(key, PROFILER[key])]
    ranks = values.get("profile_ranks", "all")
    for key, setting in settings.items():
        if key in _KEYS:
            t.set(setting, _KEYS[key])
        elif key.startswith("profile_step_"):
            steps = list(range(int(first), int(last)))
            t.set(setting, "trainer.profile_steps", steps, f"steps {first} to {last}, exclusive")
        elif key in _CONTENTS:
            t.set(setting, f"{_NPU}.contents", contents)
        elif key == "profile_ranks" and ranks == "all":
            t.set(setting, "actor_rollout_ref.actor.profiler.all_ranks", True)
        elif key == "profile_ranks":
            t.set(setting, "actor_rollout_ref.actor.profiler.ranks", ranks if isinstance(ranks, list) else [ranks])
        elif key != "profile":
            t.pending(setting, "not supported yet (Ascend profiler options)")


def _msprobe(t: Translator, name: str, values: dict[str, Any]) -> None:
    on = any(plain_key(key) == "msprobe" and value for key, value in values.items())
    for key, value in values.items():
        setting = Setting(f"{name}.{key}", value, True)
        if on and plain_key(key) == "msprobe":
            why = "msprobe tensor dumps are not supported; trainer.rollout_data_dir saves responses and scores"
            t.refuse(setting, f"{why}. Write msprobe: false")
        else:
            t.inert(setting, "msprobe is off" if not on else "an option of msprobe")
