"""Model library checks, loading and resuming, checkpoint contents, LoRA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from burnish.dialects.mindspeed.compose import Composed
from burnish.dialects.mindspeed.model_library import MODELS, mismatches, read_hf_config, replaced_values, summarize
from burnish.dialects.mindspeed.roles import (
    MODEL,
    REF,
    Role,
    initial_weights,
    same_folder,
    trained_roles,
    uses_reference,
)
from burnish.dialects.mindspeed.schema import ARCHITECTURE
from burnish.dialects.mindspeed.translator import Section, Setting, Translator
from burnish.errors import nearest

_MANIFEST = "manifest.json"
_MEGATRON_FILES = ("latest_checkpointed_iteration.txt", "mp_rank_*", "release/mp_rank_*", "iter_*/mp_rank_*")
_START_FROM = "write finetune: true and load: a Hugging Face folder with its weights"
_MEGATRON_FIX = (
    "A Megatron checkpoint: convert it to Hugging Face format and write load: that folder; if it only repeats the"
    " weights at tokenizer_name_or_path, remove load"
)


def translate_weights(t: Translator, composed: Composed) -> None:
    _library(t, composed)
    _resume(t)
    for role in trained_roles(t):
        _load(t, role)
        _contents(t, role)
    _reference(t, composed.sections.get("ref_config"))
    _adapters(t)


def _library(t: Translator, composed: Composed) -> None:
    """Check the models in `defaults`, their selection by `model`, and architecture keys against config.json."""
    path = t.actor.value("tokenizer_name_or_path")
    hf = read_hf_config(path, t.folder) if path else None
    for name in composed.chosen:
        setting = Setting("defaults.model", name, True)
        if name in composed.missing:
            suggestion = nearest(name, MODELS)
            hint = f" Did you mean {suggestion!r}?" if suggestion else ""
            t.refuse(setting, f"not in the model library, and no model/{name}.yaml next to the config.{hint}")
            continue
        shape = composed.library[name]
        checked = "" if hf is None else ", which matches"
        t.inert(setting, f"{summarize(shape)}: the architecture comes from the model's config.json{checked}")
    for entry in composed.other_defaults:
        t.refuse(Setting("defaults", entry, True), "defaults can only select models: write `- model: NAME`")
    for role in trained_roles(t):
        chosen = role.section["model"]
        if chosen.value is not None and chosen.value not in composed.library and chosen.value not in composed.chosen:
            if t.rl.value("is_multimodal"):
                t.inert(chosen, "a vision model: its architecture comes from the model's config.json")
            else:
                t.refuse(chosen, f"not a model of defaults: {', '.join(composed.chosen) or 'none'}")
        elif chosen.value is not None:
            t.inert(chosen, "selects the model library entry")
        _check_architecture(t, role.section, hf)


def _check_architecture(t: Translator, section: Section, hf: dict[str, Any] | None) -> None:
    """Compare architecture keys with config.json, if the model is a local folder."""
    shape = {
        key: setting.value for key, setting in section.settings.items() if key in ARCHITECTURE or key == "noop_layers"
    }
    if hf is None or not shape:
        return
    setting = section["model"] if section["model"].explicit else Setting(f"{section.name}.model", None, True)
    errors = list(mismatches(shape, hf))
    if errors:
        t.refuse(setting, f"does not match the model at tokenizer_name_or_path: {'; '.join(errors)}")
    notes = list(replaced_values(shape, hf))
    if notes and not errors:
        t.inert(setting, "; ".join(notes))


def _resume(t: Translator) -> None:
    """With finetune a run starts from iteration 0, else it resumes from `load`."""
    finetune, load, save = t.actor["finetune"], t.actor["load"], t.actor["save"]
    if finetune.value:
        t.set(finetune, "trainer.resume_mode", "disable", "weights only, from iteration 0")
    elif load.value is None:
        t.set(finetune, "trainer.resume_mode", "disable", "nothing to resume from: load is not set")
    elif _is_burnish_checkpoint(load.value, t.folder):
        is_run_folder = _is_run_folder(load.value, t.folder)
        if is_run_folder and load.value != save.value:
            why = "name a checkpoint of that run, load: .../global_step_N, or set save to the same folder"
            t.refuse(load, why)
        else:
            mode = "auto" if is_run_folder else "resume_path"
            t.set(finetune, "trainer.resume_mode", mode, "finetune is off: resume from load")
            if not is_run_folder:
                t.set(load, "trainer.resume_from_path")
    elif _is_megatron_checkpoint(load.value, t.folder):
        why = "holds a Megatron checkpoint, which cannot be resumed"
        t.refuse(load, f"{why}. To start from it, {_START_FROM}")
    elif load.value == save.value:
        t.set(finetune, "trainer.resume_mode", "auto", "load equals save: resume from the newest checkpoint there")
    else:
        why = "finetune is off, so the run would resume from this checkpoint; Megatron checkpoints are not supported"
        t.refuse(load, f"{why}. To start from it, {_START_FROM}; to start from tokenizer_name_or_path, remove load")


def _load(t: Translator, role: Role) -> None:
    """Initial weights. MindSpeed RL reads them from `load`, and only the config from tokenizer_name_or_path."""
    load, path = role.section["load"], t.actor.value("tokenizer_name_or_path")
    for name in ("load_checkpoint_loosely", "pretrained_checkpoint"):
        t.inert(role.section[name], "weights are loaded from load, else from tokenizer_name_or_path")
    if load.theirs in t.handled:
        return
    if load.value is None:
        why = "without it MindSpeed RL starts from random weights; Burnish loads those at tokenizer_name_or_path"
        t.inert(Setting(load.theirs, None, True), why)
    elif not role.section.value("finetune"):
        t.inert(load, "the checkpoint of the policy is resumed, with the critic in it")
    elif same_folder(load.value, path):
        t.inert(load, "the same folder as tokenizer_name_or_path, whose weights are loaded")
    elif _is_megatron_checkpoint(load.value, t.folder):
        t.refuse(load, f"holds a Megatron checkpoint, which Burnish cannot read. {_MEGATRON_FIX}")
    else:
        t.set(load, f"{role.model}.path", why=f"must be in Hugging Face format. {_MEGATRON_FIX}")


def _reference(t: Translator, section: Any) -> None:
    """The reference starts from the policy's first weights, or from those that the config names for it.

    integrated_mode_config.ref_model_load_path names them; with workers of their own, ref_config.load does.
    """
    config = t.rl["integrated_mode_config"]
    path = (config.value or {}).get("ref_model_load_path") if isinstance(config.value, dict) else None
    t.inert(config, "the reference is the policy's first model" if path is None else "names the reference's weights")
    setting = Setting(f"{config.theirs}.ref_model_load_path", path, True)
    if not t.rl.value("use_integrated_worker") and isinstance(section, dict):
        setting = Setting("ref_config.load", section.get("load"), True)
    path = setting.value
    if path is None:
        return
    if not uses_reference(t):
        t.inert(setting, "this run has no reference model")
    elif same_folder(path, initial_weights(t).value) or same_folder(path, t.actor.value("load")):
        t.inert(setting, "the policy's first weights, which the reference has anyway")
    else:
        t.set(setting, f"{REF}.model.path", why="must be in Hugging Face format, not a Megatron checkpoint")


def _contents(t: Translator, role: Role) -> None:
    """Checkpoint contents. Megatron's optimizer state includes the schedule; Burnish has no random state to save."""
    section, key = role.section, f"{role.key}.checkpoint"
    resumes = not section.value("finetune")
    for verb, applies in (("save", True), ("load", resumes)):
        optim, rng = section[f"no_{verb}_optim"], section[f"no_{verb}_rng"]
        if not applies:
            t.inert(optim, "finetune loads weights only")
        elif optim.value:
            t.set(optim, f"{key}.{verb}_contents", ["model"], "without optimizer and schedule")
        else:
            t.inert(optim, "checkpoints contain optimizer and schedule, as in MindSpeed RL")
        t.inert(rng, "random numbers derive from seed and step: there is no state to save")
    if role.section["save"].theirs not in t.handled:
        t.inert(role.section["save"], "the critic is saved with the policy in actor_config.save")


def _is_burnish_checkpoint(path: str, folder: str) -> bool:
    return (Path(folder, str(path)).expanduser() / _MANIFEST).is_file() or _is_run_folder(path, folder)


def _is_megatron_checkpoint(path: str, folder: str) -> bool:
    """Whether a local folder has Megatron's layout: a tracker file, or a `release` or `iter_N` folder of ranks."""
    local = Path(folder, str(path)).expanduser()
    return any(next(local.glob(pattern), None) is not None for pattern in _MEGATRON_FILES)


def _is_run_folder(path: str, folder: str) -> bool:
    return any(Path(folder, str(path)).expanduser().glob(f"global_step_*/{_MANIFEST}"))


def _adapters(t: Translator) -> None:
    """LoRA is on if lora_target_modules is set."""
    targets = t.actor["lora_target_modules"]
    names = ("lora_r", "lora_alpha", "lora_target_modules")
    if not targets.value:
        for name in (*names, "lora_ckpt_filter"):
            t.inert(t.actor[name], "LoRA is off: lora_target_modules is empty")
        t.inert(t.rl["share_backbone"], "LoRA is off: the reference has separate weights")
        return
    for name, ours in zip(names, ("lora_rank", "lora_alpha", "target_modules"), strict=True):
        t.set(t.actor[name], f"{MODEL}.{ours}")
    t.inert(t.actor["lora_ckpt_filter"], "selects weights in checkpoints; does not change the run")
    t.inert(t.rl["share_backbone"], "with LoRA the reference is always the policy without adapters")
