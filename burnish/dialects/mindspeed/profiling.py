"""profiler_config (profiles) and msprobe_config (tensor dumps): diagnostics, each written once or once per role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from burnish.dialects.mindspeed.schema import MSPROBE, PROFILER
from burnish.dialects.mindspeed.translator import Setting, Translator, plain_key

_ROLES = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout", "critic", "reward_model")
# Stages other than "all": the role, whose phases are recorded one by one.
_STAGES = {
    "actor_generate": "actor_rollout_ref.rollout",
    "actor_compute_log_prob": "actor_rollout_ref.actor",
    "actor_update": "actor_rollout_ref.actor",
    "reference_compute_log_prob": "actor_rollout_ref.ref",
    "critic_compute_values": "critic",
    "critic_update": "critic",
    "reward_compute_rm": "reward_model",
}
_OPTIONS = {
    "profile_level": "level",
    "profile_with_memory": "with_memory",
    "profile_record_shapes": "record_shapes",
    "profile_with_cpu": "with_cpu",
    "profile_with_npu": "with_npu",
    "profile_with_module": "with_module",
    "profile_with_stack": "with_stack",
    "profile_analysis": "analysis",
    "profile_save_path": "save_path",
}
_NO_EFFECT = {
    "mstx": "every phase is labeled in any case",
    "profile_export_type": "Ascend's profiler writes its default format",
    "role": "the section's name says it",
}
_TOOL = "Ascend's profiler; on machines without an NPU the run is refused until global_profiler.tool=torch"
_MSPROBE = (
    "warning: no tensors are dumped. msprobe is a diagnostic of Ascend and does not change results;"
    " trainer.rollout_data_dir saves responses and scores"
)


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
    """Ascend's profiler. Its keys are those of verl, for the same profiler."""
    settings = {plain_key(key): Setting(f"{name}.{key}", value, True) for key, value in values.items()}

    def setting(key: str) -> Setting:
        return settings.get(key, Setting(f"{name}.{key}", PROFILER[key], False))

    if not setting("profile").value:
        for given in settings.values():
            t.inert(given, "profile is off")
        return
    t.set(setting("profile"), "global_profiler.tool", "npu", _TOOL)
    first, last = setting("profile_step_start"), setting("profile_step_end")
    steps = list(range(max(1, int(first.value)), max(1, int(last.value))))
    for bound in (first, last):
        t.set(bound, "trainer.profile_steps", steps, "the steps from profile_step_start to profile_step_end")
    for key, ours in _OPTIONS.items():
        if key in settings and settings[key].value != "":
            t.set(settings[key], f"trainer.npu_profile.options.{ours}")
    stage, ranks = setting("stage"), setting("profile_ranks")
    roles = [_STAGES[stage.value]] if stage.value in _STAGES else _ROLES
    for role in roles:
        t.set(stage, f"{role}.profiler.discrete", stage.value in _STAGES, "a recording of this stage, or of the step")
        every = ranks.value in ("all", ["all"])
        ours, value = ("all_ranks", True) if every else ("ranks", ranks.value)
        t.set(ranks, f"{role}.profiler.{ours}", value, "of every role that is profiled")
    for key, why in _NO_EFFECT.items():
        t.inert(setting(key), why)


def _msprobe(t: Translator, name: str, values: dict[str, Any]) -> None:
    on = any(plain_key(key) == "msprobe" and value for key, value in values.items())
    for key, value in values.items():
        setting = Setting(f"{name}.{key}", value, True)
        t.inert(setting, _MSPROBE if on else "msprobe is off")
