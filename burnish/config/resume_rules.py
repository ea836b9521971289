"""Which settings may change when a run resumes from a checkpoint. Every key belongs to one class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from operator import attrgetter
from typing import Any

from burnish.config.status import status_in
from burnish.config.tree import Leaf, tree
from burnish.config.values import is_interpolation, written_as


class Resume(Enum):
    """What a change of a setting means to a run that resumes."""

    DEFINING = "another experiment: refused"
    SOURCE = "the same, of a path or a list of paths: compared by content"
    VALIDATION = "another experiment, unless the run only validates"
    HARMLESS = "accepted with a notice"
    START = "concerns one start only: not compared"


_SAVING = (
    *("trainer.save_*", "trainer.export_dir", "trainer.max_*_to_keep", "trainer.remove_previous_ckpt_in_save"),
    *("trainer.best_metric_key", "trainer.default_hdfs_dir", "trainer.esi_redundant_time", "*.checkpoint.*"),
)
_LOGGING = (
    *("trainer.project_name", "trainer.experiment_name", "trainer.logger", "trainer.log_*", "trainer.*_data_dir"),
    "trainer.rollout_keep",
    "trainer.metrics_*",
    *("trainer.val_before_train", "trainer.test_freq", "trainer.profile_steps", "trainer.*nsight_options.*"),
    *("trainer.npu_profile.*", "*profiler.*", "*.rollout.disable_log_stats"),
    *("*.rollout.logprobs", "*.rollout.trace.*", "*.rollout.prometheus.*", "*.overlong_buffer.log"),
    "*.calculate_entropy",
)
_LENGTH = ("trainer.total_*", "*.optim.total_training_steps", "rollout.total_*", "rollout.test_freq")
_PROCESSES = (
    *("trainer.device", "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.launcher", "trainer.balance_batch"),
    *("trainer.max_restarts", "trainer.hang_timeout", "trainer.ray_wait_register_center_timeout"),
    *("trainer.use_legacy_worker_impl", "ray_init.*", "rollout.nnodes", "rollout.n_gpus_per_node", "transfer_queue.*"),
    *("reward_model.enable_resource_pool", "reward_model.nnodes", "reward_model.n_gpus_per_node"),
    *("*nccl_timeout", "*.hybrid_engine", "*.dataloader_num_workers", "*.filter_overlong_prompts_workers"),
    *("*.agent.num_workers", "reward.num_workers", "reward.timeout", "reward.memory_mb", "reward.on_error"),
    *("reward.pass_env", "reward.isolate", "reward.network", "reward_model.launch_reward_fn_async"),
    *("reward.remote_timeout", "reward.remote_retries", "reward.remote_wait"),
    *("reward_model.use_reward_loop", "reward_model.sandbox_fusion.*", "sandbox.allow_weak", "sandbox.memory_mb"),
    *("sandbox.output_kb", "sandbox.max_parallel", "*trust_remote_code"),
)
_MEMORY = (
    *("*micro_batch_size*", "*use_dynamic_bsz", "*max_token_len_per_gpu", "data.val_batch_size", "*use_shm"),
    *("*offload*", "*.enable_gradient_checkpointing", "*.recompute.*", "*.use_torch_compile", "*.use_liger"),
    *("*use_remove_padding", "*.use_fused_kernels", "*.fused_kernel_options.*", "*.attn_implementation"),
    *("*.entropy_from_logits_with_chunking", "*.entropy_checkpointing", "*.strategy", "*.wrap_policy.*"),
    *("*.reshard_after_forward", "*.fsdp_size", "*.forward_prefetch", "*.use_orig_params", "*.forward_only"),
    *("*_parallel_size", "*.sequence_parallel", "*.use_distributed_optimizer", "*.use_dist_checkpointing"),
    *("*.dist_checkpointing_prefix", "*mbridge", "*.override_ddp_config", "*.offload_params", "data.pad_mode"),
    "*.use_prefix_grouper",
)
_ENGINE = tuple(
    f"actor_rollout_ref.rollout.{name}"
    for name in (
        *("gpu_memory_utilization", "free_cache_engine", "max_num_*", "enforce_eager", "cudagraph_capture_sizes"),
        *("enable_chunked_prefill", "enable_prefix_caching", "load_format", "multi_stage_wake_up", "enable_sleep_mode"),
        *("update_weights_bucket_megabytes", "checkpoint_engine.*", "layered_summon", "verify_weights", "detokenize"),
        *("skip_tokenizer_init", "calculate_log_probs", "speculative.*", "engine_kwargs.builtin*"),
    )
)
# Entries of harmless mappings that define the experiment, with their defaults.
DEFINING_ENTRIES = {"actor_rollout_ref.rollout.engine_kwargs.builtin": {"kv_cache_dtype": "auto"}}
# The first row that matches decides.
CLASSES: dict[Resume, tuple[str, ...]] = {
    Resume.START: (
        *("trainer.resume_*", "trainer.default_local_dir", "trainer.val_only", "trainer.del_local_ckpt_after_load"),
    ),
    Resume.HARMLESS: (*_SAVING, *_LOGGING, *_LENGTH, *_PROCESSES, *_MEMORY, *_ENGINE),
    Resume.VALIDATION: (
        *("data.val_files", "data.val_split", "data.val_max_samples", "data.validation_shuffle"),
        "actor_rollout_ref.rollout.val_kwargs.*",
    ),
    Resume.SOURCE: (
        *("*.path", "*_path", "data.train_files", "model.partial_pretrain", "data.tokenizer"),
        *("*.input_tokenizer", "*chat_template", "*.replay_file", "reward.remote_url"),
    ),
    Resume.DEFINING: (
        *("data.*", "actor_rollout_ref.*", "critic.*", "reward.*", "custom_reward_function.*", "reward_model.*"),
        *("sandbox.*", "algorithm.*", "async_training.*", "trainer.seed", "trainer.critic_warmup"),
        *("model.*", "optim.*"),
    ),
}


@dataclass(frozen=True)
class Change:
    """One setting of a checkpoint and of the run that resumes from it."""

    key: str
    old: Any
    new: Any

    def text(self) -> str:
        return f"{self.key}: {written_as(self.old)} -> {written_as(self.new)}"


@cache
def declared_class(key: str) -> Resume | None:
    """The class of the first matching row, or None."""
    rows = ((kind, pattern) for kind, patterns in CLASSES.items() for pattern in patterns)
    return next((kind for kind, pattern in rows if fnmatchcase(key, pattern)), None)


def resume_class(key: str) -> Resume:
    """An unknown key defines the experiment."""
    return declared_class(key) or Resume.DEFINING


def is_source(key: str) -> bool:
    """Whether the key holds paths whose content belongs to the experiment."""
    return resume_class(key) is Resume.SOURCE or key == "data.val_files"


def flat(cfg: Any, job: str) -> dict[str, Any]:
    """Every key of a config with its value."""
    return {key: attrgetter(leaf.path)(cfg) for key, leaf in tree(job).leaves.items()}


def changed_settings(saved: Mapping[str, Any], current: Mapping[str, Any], job: str) -> list[Change]:
    """Every setting that differs. A key that a checkpoint of an older version lacks had its default."""
    changes = []
    for key, new in current.items():
        leaf = tree(job).leaves.get(key)
        if key not in saved and (leaf is None or is_interpolation(leaf.default)):
            continue
        old = saved.get(key, None if leaf is None else leaf.default)
        if resume_class(key) is not Resume.START and _comparable(old) != _comparable(new):
            changes.append(Change(key, old, new))
    return _without_followers(changes, job)


def split_changes(changes: list[Change], cfg: Any, job: str) -> tuple[list[Change], list[Change]]:
    """Changes that make it another experiment, and those that do not."""
    kinds = {Resume.DEFINING, Resume.SOURCE, Resume.VALIDATION}
    if getattr(cfg.trainer, "val_only", False):
        kinds.remove(Resume.VALIDATION)
    defining = [
        change
        for change in changes
        if (resume_class(change.key) in kinds or _has_defining_entry(change))
        and not (change.key in tree(job).leaves and status_in(cfg, change.key, change.new, job).kind == "inert")
    ]
    return defining, [change for change in changes if change not in defining]


def _has_defining_entry(change: Change) -> bool:
    old, new = change.old or {}, change.new or {}
    entries = DEFINING_ENTRIES.get(change.key, {})
    return any(old.get(name, default) != new.get(name, default) for name, default in entries.items())


def _comparable(value: Any) -> str:
    """Equal for equal settings: numbers by value, lists and tuples alike."""
    return json.dumps(value, sort_keys=True, default=str)


def _without_followers(changes: list[Change], job: str) -> list[Change]:
    """Drop keys that only follow another one, such as rollout.response_length."""

    def follows(change: Change) -> bool:
        leaf: Leaf | None = tree(job).leaves.get(change.key)
        return leaf is not None and is_interpolation(leaf.default)

    leading = {(_comparable(change.old), _comparable(change.new)) for change in changes if not follows(change)}
    return [c for c in changes if not follows(c) or (_comparable(c.old), _comparable(c.new)) not in leading]
