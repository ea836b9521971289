"""MindSpeed: commands and YAML files of MindSpeed RL, read section by section."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from burnish.dialects.invocation import Invocation
from burnish.dialects.mindspeed.algorithm import read_algorithm
from burnish.dialects.mindspeed.compose import Composed, compose, find_config, read_settings
from burnish.dialects.mindspeed.datasets import is_preprocessing, read_preprocessing
from burnish.dialects.mindspeed.generate import read_generation
from burnish.dialects.mindspeed.inert import INERT as REASONS
from burnish.dialects.mindspeed.loggers import read_loggers
from burnish.dialects.mindspeed.observe import read_observation
from burnish.dialects.mindspeed.optim import read_optimizers
from burnish.dialects.mindspeed.parallel import read_layout
from burnish.dialects.mindspeed.reading import Reading, Section, Setting, Stage, plain_key
from burnish.dialects.mindspeed.rewards import read_rewards
from burnish.dialects.mindspeed.sections import GENERATE, MEGATRON, RL, SAMPLING
from burnish.dialects.mindspeed.strict import keep_known, known_model
from burnish.dialects.mindspeed.training import read_training
from burnish.dialects.mindspeed.turns import read_turns
from burnish.dialects.mindspeed.weights import read_weights
from burnish.dialects.report import INERT, REFUSED, Item, Translation

STAGES = {
    "ray_grpo": Stage("ray_grpo", "train_grpo", kl="loss"),
    "ray_dapo": Stage("ray_dapo", "train_dapo", kl=None, clips_higher=True, filters=True),
    "ray_ppo": Stage("ray_ppo", "train_ppo", kl="reward", critic=True),
}
_BY_SCRIPT = {stage.script: stage for stage in STAGES.values()}
_ENTRY = re.compile(r"(?:.*[/.])?cli[/.](train_(?:grpo|dapo|ppo))(?:\.py)?|(train_(?:grpo|dapo|ppo))\.py")
_READERS = (
    *(read_training, read_optimizers, read_layout, read_algorithm, read_rewards),
    *(read_generation, read_loggers, read_turns),
)
_KINDS = {"megatron_training": "megatron", "actor_config": "megatron", "critic_config": "megatron"}
_KINDS |= {"rl_config": "rl", "generate_config": "generate", "generate_config.sampling_config": "sampling"}
_HARDWARE = (
    "MindSpeed RL runs on Ascend NPUs only. Here the same run computes on CUDA or CPU (trainer.device=auto), with the"
    " built-in engine in place of vLLM-Ascend; keys of NPU kernels and of HCCL have nothing to act on"
)


class MindSpeed:
    """cli/train_{grpo,dapo,ppo}.py --config-name X, their YAML files, and preprocessing YAMLs."""

    def knows_command(self, invocation: Invocation) -> bool:
        match = _ENTRY.fullmatch(invocation.entry)
        names_config = any(word.startswith(("--config-name", "-cn")) for word in invocation.argv)
        return match is not None and (match.group(1) is not None or names_config)

    def knows_config(self, config: dict[str, Any]) -> bool:
        return (
            "megatron_training" in config
            or {"rl_config", "generate_config"} <= config.keys()
            or is_preprocessing(config)
        )

    def read_command(self, invocation: Invocation, folder: str = ".") -> Translation:
        file, overrides = find_config(invocation, folder)
        match = _ENTRY.fullmatch(invocation.entry)
        script = (match.group(1) or match.group(2)) if match else None
        composed = compose(read_settings(file), str(file.parent), overrides)
        return _translate(composed, folder, script)

    def read_config(self, config: dict[str, Any], folder: str = ".", overrides: tuple[str, ...] = ()) -> Translation:
        if is_preprocessing(config):
            return read_preprocessing(config)
        # Models are looked up where a run would start, not where its YAML lies.
        return _translate(compose(config, folder, overrides), ".", None)


def _translate(composed: Composed, folder: str, script: str | None) -> Translation:
    translation = Translation("mindspeed", "train")
    translation.put(Item("(hardware)", "Ascend NPU", INERT, why=_HARDWARE, given=False))
    sections = keep_known(composed.sections, translation)
    stage = _stage(sections, translation, script)
    if stage is None:
        _unread(sections, translation)
        return translation
    reading = _reading(sections, composed, translation, stage)
    reading.folder = folder
    _forbidden(reading, sections)
    for read in _READERS:
        read(reading)
    read_weights(reading, composed)
    read_observation(reading, sections)
    _rest(reading, sections)
    return translation


def _stage(sections: Mapping[str, Any], translation: Translation, script: str | None) -> Stage | None:
    """What `stage` and the script agree on. Without agreement the script's, so that the rest can be told."""
    section, name = next(
        (
            (one, sections[one]["stage"])
            for one in ("actor_config", "megatron_training")
            if "stage" in sections.get(one, {})
        ),
        ("megatron_training", None),
    )
    theirs = f"{section}.stage"
    stage = STAGES.get(name)
    asked = _BY_SCRIPT.get(script or "")
    known = ", ".join(STAGES)
    if stage is None:
        what = "is missing" if name is None else "is no RL stage of MindSpeed RL that runs here"
        why = f"{what}; write one of {known}" + ("" if asked is None else f" ({asked.name} for {script})")
        translation.put(Item(theirs, name, REFUSED, why=why))
        return asked
    if asked is not None and asked is not stage:
        why = f"{script} trains {asked.name}: run cli/{stage.script}.py, or write stage: {asked.name}"
        translation.put(Item(theirs, name, REFUSED, why=why))
        return asked
    translation.put(Item(theirs, name, INERT, why="says which of the other keys hold and where the KL goes"))
    return stage


def _reading(sections: Mapping[str, Any], composed: Composed, translation: Translation, stage: Stage) -> Reading:
    library = {name: known_model(name, entry, translation) for name, entry in composed.library.items()}

    def megatron(last: str) -> Section:
        layers = [(name, sections.get(name, {})) for name in ("megatron_training", last)]
        chosen = next((layer["model"] for _, layer in reversed(layers) if "model" in layer), None)
        entry = library.get(chosen) if isinstance(chosen, str) else None
        return Section(MEGATRON, [(f"model.{chosen}", entry or {}), *layers], library=1)

    generate = sections.get("generate_config", {})
    given = generate.get("sampling_config")
    # A sampling_config replaces the default as a whole: the engine has a default for every missing key but one.
    missing = SAMPLING if given is None else {**SAMPLING, "temperature": None}
    return Reading(
        translation,
        stage,
        actor=megatron("actor_config"),
        critic=megatron("critic_config"),
        rl=Section(RL, [("rl_config", sections.get("rl_config", {}))]),
        generate=Section(GENERATE, [("generate_config", generate)]),
        sampling=Section(missing, [("generate_config.sampling_config", given or {})]),
    )


def _forbidden(reading: Reading, sections: Mapping[str, Any]) -> None:
    for name in ("ref_config", "reward_config"):
        if name in sections and reading.rl.value("use_integrated_worker"):
            why = "is an error with use_integrated_worker: the reference follows actor_config, and rules score"
            reading.refuse(Setting(name, sections[name], True), f"{why}. Leave the section out")


def _rest(reading: Reading, sections: Mapping[str, Any]) -> None:
    """Every key that was written has an item: those that nobody read have no effect, and why."""
    written = [(name, key) for name in sections for key in sections[name]]
    sampling = reading.generate.value("sampling_config") or {}
    written += [("generate_config.sampling_config", key) for key in sampling]
    later = {plain_key(key) for key in sections.get("actor_config", {})}
    told = {item.theirs for item in reading.translation.items}
    for name, key in written:
        theirs, plain = f"{name}.{key}", plain_key(key)
        if theirs in told or name in ("profiler_config", "msprobe_config") or theirs in reading.read:
            continue
        setting = Setting(theirs, sections[name][key] if name in sections else sampling[key], True)
        reason = REASONS[_KINDS[name]].get(plain) if name in _KINDS else None
        if name in ("ref_config", "reward_config"):
            why = "the reference is the policy's model, frozen" if name == "ref_config" else "rules score, not a model"
            reading.inert(setting, why)
        elif name == "vit_config":
            reading.pend(setting, "waits for vision")
        elif name == "critic_config" and not reading.stage.critic:
            reading.inert(setting, f"{reading.stage.script} trains no critic")
        elif name == "megatron_training" and plain in later:
            reading.inert(setting, f"actor_config.{plain} comes after it")
        elif reason is not None:
            reading.inert(setting, reason)
        elif name == "critic_config":
            reading.inert(setting, "the critic follows actor_config in this")
        elif setting.value is None or setting.value == "":
            reading.inert(setting, "empty: the same as leaving it out")
        elif reading.translation.exit_status:
            reading.inert(setting, "depends on what is refused; mend that first")
        else:
            reading.refuse(setting, "is known, and nothing here can do it")


def _unread(sections: Mapping[str, Any], translation: Translation) -> None:
    """A run that is refused as a whole: its keys belong to it."""
    told = {item.theirs for item in translation.items}
    for name, values in sections.items():
        for key, value in values.items():
            if f"{name}.{key}" not in told:
                translation.put(Item(f"{name}.{key}", value, INERT, why="belongs to a stage that does not run here"))
