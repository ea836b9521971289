"""Replace settings for clusters and GPUs by ones for a single CPU process, and drop keys that are not supported."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.config import load
from burnish.config.pending import FEATURES
from burnish.config.settings import Setting
from burnish.config.status import check_supported, status_of
from burnish.config.values import written_as
from burnish.dialects.report import is_default
from burnish.rehearsal.plan import Plan
from burnish.rehearsal.rows import exists
from burnish.user_code import is_importable


@dataclass(frozen=True)
class Fold:
    """Keys to reset (or to set to `value`), and the line that reports it."""

    patterns: tuple[str, ...]
    line: str
    value: Any = None
    quiet: bool = False  # not reported


FOLDS: tuple[Fold, ...] = (
    Fold(
        (
            *("*nnodes", "*n_gpus_per_node", "*_parallel_size", "*enable_resource_pool", "*hybrid_engine"),
            *("*reward_nodes", "*tool_nodes"),
        ),
        "one process instead of all ranks",
    ),
    Fold(("*rollout.name=vllm", "*rollout.name=sglang", "*rollout.name=trtllm"), "the built-in engine"),
    Fold(("trainer.device",), "runs on this machine's CPU", "cpu", quiet=True),
    Fold(
        ("*model_dtype", "*torch_dtype", "*param_dtype", "*buffer_dtype", "*rollout.dtype", "*megatron.dtype"),
        "everything is float32",
    ),
    Fold(("*attn_implementation",), "torch's attention"),
    Fold(("*use_liger", "*load_in_4bit", "*use_shm"), "without GPU kernels, 4-bit weights and shared memory"),
    Fold(("trainer.logger",), "no external logger: nothing leaves this machine", ["console"]),
    Fold(
        ("*default_hdfs_dir", "*resume_from_path", "*del_local_ckpt_after_load", "*esi_redundant_time"),
        "nothing is resumed or copied to remote storage",
    ),
    Fold(("trainer.resume_mode",), "", "disable", quiet=True),
)
# Output folders; they are moved into the rehearsal's folder.
OUTPUTS = ("trainer.default_local_dir", "trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.export_dir")
# Keys of a config.json that determine a model's size.
SIZES = re.compile(r"(num_\w*(layers|heads|experts)|hidden_size|intermediate_size|vocab_size|head_dim)")


def fold(plan: Plan) -> None:
    """Change the plan in place; each kind of change adds one line."""
    for change in FOLDS:
        _fold(plan, change)
    # Their defaults would use a GPU, the user's loggers or a checkpoint.
    plan.put("trainer.device", "cpu")
    plan.put("trainer.logger", ["console"])
    plan.put("trainer.resume_mode", "disable")
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
    drop_unsupported(plan)


def _fold(plan: Plan, change: Fold) -> None:
    matching = [key for key, value in plan.settings.items() if any(_matches(p, key, value) for p in change.patterns)]
    changed = [key for key in matching if plan.settings[key] != change.value]
    changed = [key for key in changed if not is_default(key, plan.settings[key], plan.job)]
    for key in matching:
        plan.drop(key)
        if change.value is not None:
            plan.put(key, change.value)
    if changed and not change.quiet:
        settings = ", ".join(f"{plan.user_name(key)}={written_as(plan.value(key))}" for key in changed)
        plan.folded.append(f"{change.line} ({settings})")


def _matches(pattern: str, key: str, value: Any) -> bool:
    name, _, required = pattern.partition("=")
    if required and str(value) != required:
        return False
    return key.endswith(name[1:]) if name.startswith("*") else key == name


def _size_overrides(plan: Plan) -> None:
    """Drop sizes of the real model from override_config."""
    for key in [key for key in plan.settings if ".override_config." in key]:
        if SIZES.fullmatch(key.rpartition(".")[2]):
            plan.folded.append(f"{key}={written_as(plan.settings[key])} is ignored: the stand-in has its own size")
            plan.drop(key)


def _libraries(plan: Plan) -> None:
    """Drop the user's modules and files that are not on this machine."""
    for key in [key for key in plan.settings if key.endswith("external_lib")]:
        local = [name for name in plan.settings[key] or () if is_importable(name)]
        missing = [name for name in plan.settings[key] or () if name not in local]
        if missing:
            plan.put(key, local)
            plan.not_tested.append(f"{plan.user_name(key)} {', '.join(missing)}: cannot be imported on this machine")
    for section, name in (("data.custom_cls", "path"), ("data.sampler", "class_path"), ("data.datagen", "path")):
        key = f"{section}.{name}"
        if plan.has(key) and plan.value(key) and not user_file_exists(plan.value(key)):
            plan.not_tested.append(f"{plan.user_name(key)} {plan.value(key)}: no such file on this machine")
            plan.drop(section)
    for key in [key for key in plan.settings if key.endswith("lora_adapter_path")]:
        if plan.settings[key] and not exists(plan.settings[key]):
            where = f"{plan.user_name(key)} {plan.settings[key]}"
            plan.not_tested.append(f"{where}: no such folder on this machine; a new adapter is used")
            plan.drop(key)
    for key in ("actor_rollout_ref.model.custom_chat_template", "data.chat_template"):
        template = plan.value(key) if plan.has(key) else None
        if template and "{" not in template and not exists(template):
            plan.not_tested.append(f"{plan.user_name(key)} {template}: no such file on this machine")
            plan.drop(key)


def user_file_exists(path: str) -> bool:
    return is_importable(path[6:]) if path.startswith("pkg://") else exists(path)


def drop_unsupported(plan: Plan) -> None:
    """Drop keys that are not supported, with one line each."""
    cfg = load(values=plan.settings, job=plan.job, check=False).cfg
    for key, value in list(plan.settings.items()):
        if not check_supported(cfg, {key: Setting(value, "")}, plan.job):
            continue
        why = status_of(key, value, plan.job).why.en
        plan.dropped.append(f"{plan.user_name(key)}={written_as(plan.value(key))}: {why}")
        plan.drop(key)


def missing_features(plan: Plan) -> Iterator[str]:
    """The features that the dropped keys belong to, each once."""
    for feature in FEATURES:
        if any(f"({feature.en})" in line for line in plan.dropped):
            yield feature.en
