"""MindSpeed: commands and YAML files of MindSpeed RL, translated section by section."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burnish.config.values import written_as
from burnish.dialects.invocation import Invocation
from burnish.dialects.mindspeed.algorithm import translate_algorithm
from burnish.dialects.mindspeed.compose import Composed, compose, find_config, read_settings
from burnish.dialects.mindspeed.generation import translate_generation
from burnish.dialects.mindspeed.inert import INERT_KEYS
from burnish.dialects.mindspeed.loggers import translate_loggers
from burnish.dialects.mindspeed.multi_turn import translate_multi_turn
from burnish.dialects.mindspeed.optim import translate_optimizers
from burnish.dialects.mindspeed.parallel import translate_layout
from burnish.dialects.mindspeed.preprocessing import is_preprocessing, translate_preprocessing
from burnish.dialects.mindspeed.profiling import translate_profiling
from burnish.dialects.mindspeed.rewards import translate_rewards
from burnish.dialects.mindspeed.schema import GENERATE, MEGATRON, RL, SAMPLING, SEPARATE_WORKERS
from burnish.dialects.mindspeed.training import translate_training
from burnish.dialects.mindspeed.translator import Section, Setting, Stage, Translator, is_refused, plain_key
from burnish.dialects.mindspeed.validation import drop_invalid, drop_invalid_model_keys
from burnish.dialects.mindspeed.weights import translate_weights
from burnish.dialects.report import CONVERTED, INERT, REFUSED, Item, Translation
from burnish.errors import NotSupportedYet

STAGES = {
    "ray_grpo": Stage("ray_grpo", "train_grpo", kl="loss"),
    "ray_dapo": Stage("ray_dapo", "train_dapo", kl=None, clips_higher=True, filters=True),
    "ray_ppo": Stage("ray_ppo", "train_ppo", kl="reward", critic=True),
}
_STAGES_BY_SCRIPT = {stage.script: stage for stage in STAGES.values()}
_PREFERENCES = "preference training is not supported yet"
_REWARD_MODELS = "training reward models is not supported yet"
# Stages and programs of MindSpeed RL that are refused by name, and the sections of their configs.
_OTHER_STAGES = {
    "dpo": _PREFERENCES,
    "sft": "its supervised fine-tuning is not translated; use `burnish sft` with Burnish keys",
    "orm": _REWARD_MODELS,
    "prm": _REWARD_MODELS,
    "rm": _REWARD_MODELS,
    "reward": _REWARD_MODELS,
}
_NAMES = "|".join(["grpo", "dapo", "ppo", *_OTHER_STAGES])
_ENTRY = re.compile(rf"(?:.*[/.])?cli[/.](train_(?:{_NAMES}))(?:\.py)?|(train_(?:{_NAMES}))\.py")
_TOPICS: tuple[Callable[[Translator], None], ...] = (
    *(translate_training, translate_optimizers, translate_layout, translate_algorithm, translate_rewards),
    *(translate_generation, translate_loggers, translate_multi_turn),
)
# Section -> the group of INERT_KEYS that lists its keys without effect.
_INERT_GROUPS = {
    **dict.fromkeys(("megatron_training", "actor_config", "critic_config"), "megatron"),
    "rl_config": "rl",
    "generate_config": "generate",
    "generate_config.sampling_config": "sampling",
}
_FROZEN_ROLES = {
    "ref_config": "the reference is the frozen policy model",
    "reward_config": "rule functions compute the score, not a reward model",
}
_REPORTED_APART = ("profiler_config", "msprobe_config")
_HARDWARE = (
    "MindSpeed RL runs on Ascend NPUs only. Burnish computes the same run on CUDA or CPU (trainer.device=auto), with"
    " the built-in engine in place of vLLM-Ascend; keys of NPU kernels and of HCCL have no effect"
)


class MindSpeed:
    """cli/train_{grpo,dapo,ppo}.py --config-name X, their YAML files, and preprocessing YAMLs."""

    def knows_command(self, invocation: Invocation) -> bool:
        match = _ENTRY.fullmatch(invocation.entry)
        has_config_name = any(word.startswith(("--config-name", "-cn")) for word in invocation.argv)
        return match is not None and (match.group(1) is not None or has_config_name)

    def knows_config(self, config: dict[str, Any]) -> bool:
        return (
            "megatron_training" in config
            or {"rl_config", "generate_config"} <= config.keys()
            or is_preprocessing(config)
            or _other_stage(config) is not None
        )

    def translate_command(self, invocation: Invocation, folder: str = ".") -> Translation:
        match = _ENTRY.fullmatch(invocation.entry)
        script = (match.group(1) or match.group(2)) if match else None
        if script is not None and script not in _STAGES_BY_SCRIPT:
            raise _unsupported(invocation.entry, script.removeprefix("train_"))
        file, overrides = find_config(invocation, folder)
        composed = compose(read_settings(file), str(file.parent), overrides)
        return _translate(composed, folder, script)

    def translate_config(
        self, config: dict[str, Any], folder: str = ".", overrides: tuple[str, ...] = ()
    ) -> Translation:
        if is_preprocessing(config):
            return translate_preprocessing(config)
        other = _other_stage(config)
        if other is not None:
            raise _unsupported(*other)
        # Model paths are relative to the working directory, not to the YAML's folder.
        return _translate(compose(config, folder, overrides), ".", None)


def _other_stage(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """The section and the stage of a config for another kind of training; None if it is none."""
    for name in _OTHER_STAGES:
        section = config.get(name)
        if isinstance(section, Mapping) and {"stage", "tokenizer_name_or_path"} & section.keys():
            return name, str(section.get("stage", name))
    return None


def _unsupported(what: str, stage: str) -> NotSupportedYet:
    scripts = [f"cli/{stage.script}.py" for stage in STAGES.values()]
    why = _OTHER_STAGES.get(stage, f"stage {stage} is not supported")
    return NotSupportedYet(f"MindSpeed RL: {why}", key=what, allowed=scripts)


def _translate(composed: Composed, folder: str, script: str | None) -> Translation:
    translation = Translation("mindspeed", "train")
    translation.add(Item("(hardware)", "Ascend NPU", INERT, why=_HARDWARE, explicit=False))
    sections = drop_invalid(composed.sections, translation)
    stage = _select_stage(sections, translation, script)
    if stage is None:
        _mark_all_inert(sections, translation)
        return translation
    t = _build_translator(sections, composed, translation, stage)
    t.folder = folder
    _refuse_forbidden_sections(t, sections)
    for translate_topic in _TOPICS:
        translate_topic(t)
    translate_weights(t, composed)
    translate_profiling(t, sections)
    _report_removed(t, composed.removed)
    _report_unhandled(t, sections)
    return translation


def _select_stage(sections: Mapping[str, Any], translation: Translation, script: str | None) -> Stage | None:
    """The stage of the config. If the script needs another one, refuse it and use the script's for the report."""
    section, name = next(
        (
            (section, sections[section]["stage"])
            for section in ("actor_config", "megatron_training")
            if "stage" in sections.get(section, {})
        ),
        ("megatron_training", None),
    )
    theirs = f"{section}.stage"
    stage = STAGES.get(name or "")
    script_stage = _STAGES_BY_SCRIPT.get(script or "")
    if stage is None and is_refused(translation, theirs):
        return script_stage
    if stage is None:
        problem = "is missing" if name is None else "is not a supported RL stage of MindSpeed RL"
        problem = _OTHER_STAGES.get(name or "", problem)
        why = f"{problem}; write one of {', '.join(STAGES)}"
        why += "" if script_stage is None else f" ({script_stage.name} for {script})"
        translation.add(Item(theirs, name, REFUSED, why=why))
        return script_stage
    if script_stage is not None and script_stage is not stage:
        why = f"{script} trains {script_stage.name}: run cli/{stage.script}.py, or write stage: {script_stage.name}"
        translation.add(Item(theirs, name, REFUSED, why=why))
        return script_stage
    why = "determines which other keys apply and where the KL is applied"
    translation.add(Item(theirs, name, INERT, why=why))
    return stage


def _build_translator(
    sections: Mapping[str, Any], composed: Composed, translation: Translation, stage: Stage
) -> Translator:
    library = {name: drop_invalid_model_keys(name, entry, translation) for name, entry in composed.library.items()}

    def megatron(role_section: str) -> Section:
        layers = [(name, sections.get(name, {})) for name in ("megatron_training", role_section)]
        model = next((layer["model"] for _, layer in reversed(layers) if "model" in layer), None)
        entry = library.get(model) if isinstance(model, str) else None
        return Section(MEGATRON, [(f"model.{model}", entry or {}), *layers], num_library_layers=1)

    generate = sections.get("generate_config", {})
    sampling = generate.get("sampling_config")
    # A sampling_config replaces the default mapping entirely; the engine has a default for each key but temperature.
    sampling_defaults = SAMPLING if sampling is None else {**SAMPLING, "temperature": None}
    return Translator(
        translation,
        stage,
        actor=megatron("actor_config"),
        critic=megatron("critic_config"),
        rl=Section(_rl_defaults(sections, translation), [("rl_config", sections.get("rl_config", {}))]),
        generate=Section(GENERATE, [("generate_config", generate)]),
        sampling=Section(sampling_defaults, [("generate_config.sampling_config", sampling or {})]),
    )


def _rl_defaults(sections: Mapping[str, Any], translation: Translation) -> dict[str, Any]:
    """Those of 2.3, or of an older release if only that one accepts the sections and resources of the config."""
    rl = {plain_key(key) for key in sections.get("rl_config", {})}
    separate = sorted({*_FROZEN_ROLES} & sections.keys()) + sorted(rl & {"reference_resource", "reward_resource"})
    if not separate or "use_integrated_worker" in rl:
        return RL
    defaults = ", ".join(f"{key}: {written_as(value)}" for key, value in SEPARATE_WORKERS.items() if key not in rl)
    names = " and ".join(separate)
    translation.notes.append(f"{names}: of an older release of MindSpeed RL, whose defaults apply ({defaults}).")
    return RL | SEPARATE_WORKERS


def _refuse_forbidden_sections(t: Translator, sections: Mapping[str, Any]) -> None:
    for name in _FROZEN_ROLES:
        if name in sections and t.rl.value("use_integrated_worker"):
            why = "not allowed with use_integrated_worker: the reference uses actor_config, and rule functions score"
            t.refuse(Setting(name, sections[name], True), f"{why}. Remove the section")


def _report_removed(t: Translator, removed: Sequence[str]) -> None:
    """An item for every `~key` of the command."""
    for key in removed:
        t.translation.add(Item(f"~{key}", None, CONVERTED, why="removed: its default applies"))


def _report_unhandled(t: Translator, sections: Mapping[str, Any]) -> None:
    """Add an item for every written key that no topic handled, so that none is lost."""
    written = [(name, key) for name in sections if name not in _REPORTED_APART for key in sections[name]]
    sampling = t.generate.value("sampling_config") or {}
    written += [("generate_config.sampling_config", key) for key in sampling]
    reported = {item.theirs for item in t.translation.items}
    for name, key in written:
        theirs = f"{name}.{key}"
        if theirs in reported or theirs in t.handled:
            continue
        value = sections[name][key] if name in sections else sampling[key]
        _report_one(t, Setting(theirs, value, True), name, plain_key(key), sections)


def _report_one(t: Translator, setting: Setting, section: str, key: str, sections: Mapping[str, Any]) -> None:
    reason = INERT_KEYS[_INERT_GROUPS[section]].get(key) if section in _INERT_GROUPS else None
    actor_keys = {plain_key(name) for name in sections.get("actor_config", {})}
    if section in _FROZEN_ROLES:
        t.inert(setting, _FROZEN_ROLES[section])
    elif section == "vit_config":
        t.inert(setting, "the vision tower is part of the policy, which actor_config describes")
    elif section == "critic_config" and not t.stage.critic:
        t.inert(setting, f"{t.stage.script} has no critic")
    elif section == "megatron_training" and key in actor_keys:
        t.inert(setting, f"actor_config.{key} overrides it")
    elif reason is not None:
        t.inert(setting, reason)
    elif section == "critic_config":
        t.inert(setting, "the critic uses the value of actor_config")
    elif setting.value is None or setting.value == "":
        t.inert(setting, "empty: same as not set")
    elif t.translation.exit_status:
        t.inert(setting, "depends on a refused setting; fix that first")
    else:
        t.refuse(setting, "a valid MindSpeed RL key, but not supported")


def _mark_all_inert(sections: Mapping[str, Any], translation: Translation) -> None:
    """Report the keys of a run that is refused as a whole."""
    reported = {item.theirs for item in translation.items}
    for name, values in sections.items():
        for key, value in values.items():
            if f"{name}.{key}" not in reported:
                translation.add(Item(f"{name}.{key}", value, INERT, why="belongs to an unsupported stage"))
