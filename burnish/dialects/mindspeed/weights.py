"""load, save, finetune and what a checkpoint holds; the model library against the model's own config.json; LoRA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from burnish.dialects.mindspeed.compose import Composed
from burnish.dialects.mindspeed.models import SHAPES, disagreements, in_words, other_numbers, read_hf_config
from burnish.dialects.mindspeed.reading import Reading, Section, Setting
from burnish.dialects.mindspeed.roles import MODEL, Role, trained
from burnish.dialects.mindspeed.sections import SHAPE
from burnish.errors import nearest

_OURS = "manifest.json"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


def read_weights(reading: Reading, composed: Composed) -> None:
    _library(reading, composed)
    _resume(reading)
    for role in trained(reading):
        _load(reading, role)
        _contents(reading, role)
    _adapters(reading)


def _library(reading: Reading, composed: Composed) -> None:
    """defaults, the entries that sections select from them, and the numbers written beside."""
    path = reading.actor.value("tokenizer_name_or_path")
    hf = read_hf_config(path, reading.folder) if path else None
    known = [*composed.library]
    for name in composed.chosen:
        setting = Setting("defaults.model", name, True)
        if name in composed.missing:
            meant = nearest(name, SHAPES)
            hint = f" Did you mean {meant!r}?" if meant else ""
            reading.refuse(setting, f"no such model in the library, and no model/{name}.yaml beside the config.{hint}")
            continue
        shape = composed.library[name]
        where = "" if hf is None else "; config.json agrees"
        reading.inert(setting, f"{in_words(shape)}: config.json of the model decides{where}")
    for entry in composed.other_defaults:
        reading.refuse(Setting("defaults", entry, True), "only models are chosen by defaults: write `- model: NAME`")
    for role in trained(reading):
        chosen = role.section["model"]
        if chosen.value is not None and chosen.value not in known and chosen.value not in composed.chosen:
            if reading.rl.value("is_multimodal"):
                reading.pend(chosen, "waits for vision")
            else:
                reading.refuse(chosen, f"is not among the models of defaults: {', '.join(composed.chosen) or 'none'}")
        elif chosen.value is not None:
            reading.inert(chosen, "the entry of the model library to take")
        _numbers(reading, role.section, hf)


def _numbers(reading: Reading, section: Section, hf: dict[str, Any] | None) -> None:
    """Numbers of the architecture agree with config.json, where it is here."""
    found = {key: setting.value for key, setting in section.found.items() if key in SHAPE or key == "noop_layers"}
    if hf is None or not found:
        return
    told = section["model"] if section["model"].given else Setting(f"{section.name}.model", None, True)
    wrong = list(disagreements(found, hf))
    if wrong:
        reading.refuse(told, f"this is not the shape of the model at tokenizer_name_or_path: {'; '.join(wrong)}")
    notes = list(other_numbers(found, hf))
    if notes and not wrong:
        reading.inert(told, "; ".join(notes))


def _resume(reading: Reading) -> None:
    """finetune starts anew; else the run goes on from `load`."""
    finetune, load, save = reading.actor["finetune"], reading.actor["load"], reading.actor["save"]
    if finetune.value:
        reading.put(finetune, "trainer.resume_mode", "disable", "weights only, from iteration 0")
    elif load.value is None:
        reading.put(finetune, "trainer.resume_mode", "disable", "there is nothing to go on from: load is missing")
    elif _is_ours(load.value, reading.folder):
        newest = _is_run_folder(load.value, reading.folder)
        if newest and load.value != save.value:
            why = "name one checkpoint of that run, load: .../global_step_N, or let save be the same folder"
            reading.refuse(load, why)
        else:
            mode = "auto" if newest else "resume_path"
            reading.put(finetune, "trainer.resume_mode", mode, "finetune is off: go on from load")
            if not newest:
                reading.put(load, "trainer.resume_from_path")
    elif load.value == save.value:
        reading.put(finetune, "trainer.resume_mode", "auto", "load is save: go on from the newest checkpoint there")
    else:
        why = "finetune is off, so the run would go on from this checkpoint; one of Megatron cannot be read"
        reading.refuse(load, f"{why}. Write finetune: true to start from the weights at tokenizer_name_or_path")


def _load(reading: Reading, role: Role) -> None:
    load, path = role.section["load"], reading.actor.value("tokenizer_name_or_path")
    if load.theirs in reading.read:
        return
    folder = Path(reading.folder, str(path)).expanduser() if path else None
    if load.value is None:
        why = "without it MindSpeed RL starts from random weights; here those at tokenizer_name_or_path are read"
        reading.inert(Setting(load.theirs, None, True), why)
    elif folder is not None and _has_no_weights(folder):
        why = "weights in Megatron's format cannot be read, and tokenizer_name_or_path has none in Hugging Face's"
        reading.refuse(load, f"{why}: put model.safetensors there")
    else:
        reading.inert(load, "the same weights in Megatron's format; those at tokenizer_name_or_path are read instead")
    for name in ("load_checkpoint_loosely", "pretrained_checkpoint"):
        reading.inert(role.section[name], "weights are read from tokenizer_name_or_path, and all of them must be there")


def _has_no_weights(folder: Path) -> bool:
    """Is this a model's folder from which somebody took the weights?"""
    return (folder / "config.json").is_file() and not any(one for end in _WEIGHTS for one in folder.glob(end))


def _contents(reading: Reading, role: Role) -> None:
    """Megatron's optimizer state includes the schedule; randomness has no state here."""
    section, key = role.section, f"{role.key}.checkpoint"
    resumes = not section.value("finetune")
    for verb, acts in (("save", True), ("load", resumes)):
        optim, rng = section[f"no_{verb}_optim"], section[f"no_{verb}_rng"]
        if not acts:
            reading.inert(optim, "finetune: nothing but weights is loaded")
        elif optim.value:
            reading.put(optim, f"{key}.{verb}_contents", ["model"], "neither the optimizer nor its schedule")
        else:
            reading.inert(optim, "the optimizer and its schedule are part of a checkpoint, as there")
        reading.inert(rng, "random numbers follow from seed and step: there is no state to keep")
    if role.section["save"].theirs not in reading.read:
        reading.inert(role.section["save"], "the critic is saved with the policy, in actor_config.save")


def _is_ours(path: str, folder: str) -> bool:
    return (Path(folder, str(path)).expanduser() / _OURS).is_file() or _is_run_folder(path, folder)


def _is_run_folder(path: str, folder: str) -> bool:
    return any(Path(folder, str(path)).expanduser().glob(f"global_step_*/{_OURS}"))


def _adapters(reading: Reading) -> None:
    """LoRA is on where it has modules to adapt."""
    targets = reading.actor["lora_target_modules"]
    names = ("lora_r", "lora_alpha", "lora_target_modules")
    if not targets.value:
        for name in (*names, "lora_ckpt_filter"):
            reading.inert(reading.actor[name], "LoRA is off: lora_target_modules is empty")
        reading.inert(reading.rl["share_backbone"], "LoRA is off: the reference has weights of its own")
        return
    for name, ours in zip(names, ("lora_rank", "lora_alpha", "target_modules"), strict=True):
        reading.put(reading.actor[name], f"{MODEL}.{ours}")
    reading.inert(reading.actor["lora_ckpt_filter"], "which weights a checkpoint repeats does not change the run")
    reading.inert(reading.rl["share_backbone"], "with LoRA the reference is always the policy without its adapters")
