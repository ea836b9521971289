"""Many machines folded onto this one: ranks, engines, devices, formats, loggers, folders; pending keys dropped."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.config import load
from burnish.config.pending import FEATURES
from burnish.config.settings import Setting
from burnish.config.status import check_pending, status_of
from burnish.config.values import written_as
from burnish.rehearsal.plan import Plan
from burnish.rehearsal.rows import exists


@dataclass(frozen=True)
class Fold:
    """Keys that mean something only elsewhere: set to `value` (None: left out), with one line for all of them."""

    patterns: tuple[str, ...]
    line: str
    value: Any = None
    quiet: bool = False  # said elsewhere, or not worth a line


FOLDS: tuple[Fold, ...] = (
    Fold(
        ("*nnodes", "*n_gpus_per_node", "*_parallel_size", "*enable_resource_pool", "*hybrid_engine"),
        "all ranks are one process",
    ),
    Fold(("*rollout.name=vllm", "*rollout.name=sglang", "*rollout.name=trtllm"), "the engine is the built-in one"),
    Fold(("trainer.device",), "computed on this machine's CPU", "cpu", quiet=True),
    Fold(
        ("*model_dtype", "*torch_dtype", "*param_dtype", "*buffer_dtype", "*rollout.dtype", "*megatron.dtype"),
        "numbers are float32",
    ),
    Fold(("*attn_implementation",), "attention is torch's own"),
    Fold(("*use_liger", "*load_in_4bit", "*use_shm"), "GPU kernels, 4-bit weights and shared memory are left out"),
    Fold(("trainer.logger",), "no logger is told: nothing leaves this machine", ["console"]),
    Fold(
        ("*default_hdfs_dir", "*resume_from_path", "*del_local_ckpt_after_load", "*esi_redundant_time"),
        "nothing is resumed or copied elsewhere",
    ),
    Fold(("trainer.resume_mode",), "", "disable", quiet=True),
)
# Folders that a run writes to; they become folders of the rehearsal.
OUTPUTS = ("trainer.default_local_dir", "trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.export_dir")
# Parts of a config.json that size a model.
SIZES = re.compile(r"(num_\w*(layers|heads|experts)|hidden_size|intermediate_size|vocab_size|head_dim)")


def fold(plan: Plan) -> None:
    """In place; every kind of change is told once."""
    for one in FOLDS:
        _fold(plan, one)
    for key in ("trainer.device", "trainer.logger", "trainer.resume_mode"):
        _default_too(plan, key)
    for key in OUTPUTS:
        if plan.has(key) and (plan.value(key) is not None):
            plan.put(key, str(plan.folder / "run" / key.rpartition(".")[2]))
    if plan.has("data.output_path") and plan.value("data.output_path"):
        plan.put("data.output_path", str(plan.folder / "run" / Path(plan.value("data.output_path")).name))
    if plan.has("actor_rollout_ref.rollout.skip_rollout"):
        plan.put("actor_rollout_ref.rollout.skip_dump_dir", str(plan.folder / "run" / "dump"))
    if plan.has("reward.num_workers") and plan.value("reward.num_workers") > 1:
        plan.put("reward.num_workers", 1)
    _size_overrides(plan)
    _libraries(plan)
    drop_pending(plan)


def _fold(plan: Plan, one: Fold) -> None:
    hit = [key for key, value in plan.settings.items() if any(_matches(p, key, value) for p in one.patterns)]
    changed = [key for key in hit if plan.settings[key] not in (one.value, 1)]
    for key in hit:
        plan.drop(key)
        if one.value is not None:
            plan.put(key, one.value)
    if changed and not one.quiet:
        told = ", ".join(f"{plan.their_word(key)}={written_as(plan.value(key))}" for key in changed[:4])
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        plan.folded.append(f"{one.line} ({told}{more})")


def _matches(pattern: str, key: str, value: Any) -> bool:
    name, _, wanted = pattern.partition("=")
    if wanted and str(value) != wanted:
        return False
    return key.endswith(name[1:]) if name.startswith("*") else key == name


def _default_too(plan: Plan, key: str) -> None:
    """Also where the user left it out, a rehearsal has its own."""
    fixed = {"trainer.device": "cpu", "trainer.logger": ["console"], "trainer.resume_mode": "disable"}
    plan.put(key, fixed[key])


def _size_overrides(plan: Plan) -> None:
    """override_config may name sizes of the real model, which the stand-in does not have."""
    for key in [key for key in plan.settings if ".override_config." in key]:
        if SIZES.fullmatch(key.rpartition(".")[2]):
            plan.folded.append(f"{key}={written_as(plan.settings[key])} sizes the real model: left out")
            plan.drop(key)


def _libraries(plan: Plan) -> None:
    """Modules and files of the user that are not on this machine."""
    for key in [key for key in plan.settings if key.endswith("external_lib")]:
        here = [name for name in plan.settings[key] or () if _importable(name)]
        gone = [name for name in plan.settings[key] or () if name not in here]
        if gone:
            plan.put(key, here)
            plan.not_tested.append(f"{plan.their_word(key)} {', '.join(gone)}: cannot be imported here")
    for section, name in (("data.custom_cls", "path"), ("data.sampler", "class_path"), ("data.datagen", "path")):
        key = f"{section}.{name}"
        if plan.has(key) and plan.value(key) and not user_file_exists(plan.value(key)):
            plan.not_tested.append(f"{plan.their_word(key)} {plan.value(key)}: no such file here")
            plan.drop(section)
    for key in [key for key in plan.settings if key.endswith("lora_adapter_path")]:
        if plan.settings[key] and not exists(plan.settings[key]):
            plan.not_tested.append(f"{plan.their_word(key)} {plan.settings[key]}: no such folder here; a new adapter")
            plan.drop(key)
    for key in ("actor_rollout_ref.model.custom_chat_template", "data.chat_template"):
        given = plan.value(key) if plan.has(key) else None
        if given and "{" not in given and not exists(given):
            plan.not_tested.append(f"{plan.their_word(key)} {given}: no such file here")
            plan.drop(key)


def user_file_exists(path: str) -> bool:
    return _importable(path[6:]) if path.startswith("pkg://") else exists(path)


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def drop_pending(plan: Plan) -> None:
    """Leave out what waits for later work, one line for each key."""
    cfg = load(values=plan.settings, job=plan.job, check=False).cfg
    for key, value in list(plan.settings.items()):
        if not check_pending(cfg, {key: Setting(value, "")}, plan.job):
            continue
        why = status_of(key, value, plan.job).why.en
        plan.dropped.append(f"{plan.their_word(key)}={written_as(plan.value(key))}: {why}")
        plan.drop(key)


def waits(plan: Plan) -> Iterator[str]:
    """Unsupported features that the dropped keys belong to, each once."""
    for feature in FEATURES:
        if any(f"({feature.en})" in line for line in plan.dropped):
            yield feature.en
