"""Other spellings of keys: those of older and newer verl versions, of its documentation, and common typos."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Alias:
    """`theirs` is another spelling of `ours`. * matches the same text on both sides; all targets get the value."""

    theirs: str
    ours: str | tuple[str, ...]
    why: str
    convert: Callable[[Any], Any] | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


NEWER = "newer verl's name"
OLDER = "an older verl name"
DOCUMENTED = "a name from verl's documentation"
SERVED = "the name in verl's generation server"


def _sanity_mode(enabled: Any) -> str:
    return "strict" if enabled in (True, "true", "True") else "disable"


def _one_file(files: Any) -> Any:
    return files[0] if isinstance(files, list) and len(files) == 1 else files


def _true_or_null(enabled: Any) -> bool | None:
    return True if enabled in (True, 1, "true", "True") else None


_TRAIN = (
    Alias("*.optim.lr_scheduler_type", "*.optim.warmup_style", NEWER),
    Alias("actor_rollout_ref.actor.optim.clip_grad", "actor_rollout_ref.actor.grad_clip", "renamed"),
    Alias("critic.optim.clip_grad", "critic.grad_clip", "renamed"),
    Alias("*.checkpoint.contents", ("*.checkpoint.save_contents", "*.checkpoint.load_contents"), OLDER),
    Alias("actor_rollout_ref.model.external_libs", "actor_rollout_ref.model.external_lib", "a misspelling"),
    Alias(
        "actor_rollout_ref.model.enable_activation_offloading",
        "actor_rollout_ref.model.enable_activation_offload",
        "a misspelling",
    ),
    Alias("*.fsdp_config.min_num_params", "*.fsdp_config.wrap_policy.min_num_params", OLDER),
    Alias("critic.fsdp.*", "critic.model.fsdp_config.*", NEWER),
    Alias("*.fsdp_config.dtype", "*.fsdp_config.mixed_precision.param_dtype", NEWER),
    Alias("*.gradient_checkpointing_kwargs.activations_checkpoint_method", "*.recompute.method", OLDER),
    Alias("*.gradient_checkpointing_kwargs.activations_checkpoint_num_layers", "*.recompute.num_layers", OLDER),
    Alias("actor_rollout_ref.rollout.nnodes", "rollout.nnodes", NEWER),
    Alias("actor_rollout_ref.rollout.n_gpus_per_node", "rollout.n_gpus_per_node", NEWER),
    Alias("actor_rollout_ref.rollout.full_determinism", "actor_rollout_ref.rollout.invariant", NEWER, _true_or_null),
    *(
        Alias(f"{section}.{theirs}", f"actor_rollout_ref.rollout.{ours}", NEWER)
        for section in ("actor_rollout_ref.rollout.skip", "skip.rollout")
        for theirs, ours in (("enable", "skip_rollout"), ("dump_dir", "skip_dump_dir"))
    ),
    *(
        Alias(f"actor_rollout_ref.{role}.fsdp_config.{name}", f"actor_rollout_ref.{role}.{name}", NEWER)
        for role in ("actor", "ref")
        for name in (
            "ulysses_sequence_parallel_size",
            "entropy_from_logits_with_chunking",
            "entropy_checkpointing",
            "use_torch_compile",
        )
    ),
    *(
        Alias(f"critic.model.fsdp_config.{name}", f"critic.{name}", NEWER)
        for name in ("ulysses_sequence_parallel_size", "use_torch_compile")
    ),
    Alias(
        "actor_rollout_ref.rollout.multi_turn.max_turns",
        (
            "actor_rollout_ref.rollout.multi_turn.max_assistant_turns",
            "actor_rollout_ref.rollout.multi_turn.max_user_turns",
        ),
        OLDER,
    ),
    Alias(
        "actor_rollout_ref.rollout.multi_turn.enable_tokenization_sanity_check",
        "actor_rollout_ref.rollout.multi_turn.tokenization_sanity_check_mode",
        OLDER,
        _sanity_mode,
    ),
    Alias(
        "actor_rollout_ref.rollout.tool_kwargs.tools_config_file",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path",
        DOCUMENTED,
    ),
    Alias(
        "actor_rollout_ref.rollout.interaction_config_file",
        "actor_rollout_ref.rollout.multi_turn.interaction_config_path",
        DOCUMENTED,
    ),
    Alias("actor_rollout_ref.rollout.limit_images", "data.max_images_per_prompt", "verl limits its engine"),
    Alias(
        "actor_rollout_ref.rollout.chat_scheduler",
        "actor_rollout_ref.rollout.multi_turn.completion_callback",
        OLDER,
    ),
    Alias(
        "actor_rollout_ref.rollout.dp_model_parallel_size",
        "actor_rollout_ref.rollout.data_parallel_size",
        "the name in verl's patches for Ascend",
    ),
    Alias(
        "actor_rollout_ref.rollout.engine_kwargs.swap_space",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space",
        OLDER,
    ),
    Alias(
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
        "actor_rollout_ref.rollout.update_weights_bucket_megabytes",
        NEWER,
    ),
    Alias("actor_rollout_ref.actor.megatron.router_replay.*", "actor_rollout_ref.actor.router_replay.*", NEWER),
    Alias(
        "actor_rollout_ref.actor.ppo_infer_max_token_len_per_gpu",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
        NEWER,
    ),
    Alias(
        "actor_rollout_ref.actor.ppo_infer_micro_batch_size_per_gpu",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        NEWER,
    ),
    Alias("critic.ppo_infer_max_token_len_per_gpu", "critic.forward_max_token_len_per_gpu", NEWER),
    Alias("critic.ppo_infer_micro_batch_size_per_gpu", "critic.forward_micro_batch_size_per_gpu", NEWER),
    Alias("actor_rollout_ref.actor.use_rollout_log_probs", "async_training.use_rollout_log_probs", NEWER),
    Alias("trainer.val_generations_to_log_to_wandb", "trainer.log_val_generations", OLDER),
    Alias("trainer.profile_continuous_steps", "global_profiler.profile_continuous_steps", OLDER),
    Alias("global_profiler.steps", "trainer.profile_steps", NEWER),
    Alias(
        "global_profiler.global_tool_config.nsys.controller_nsight_options.*",
        "trainer.controller_nsight_options.*",
        NEWER,
    ),
    Alias("global_profiler.global_tool_config.nsys.worker_nsight_options.*", "trainer.worker_nsight_options.*", NEWER),
    Alias(
        "global_profiler.global_tool_config.nsys.discrete",
        (
            "actor_rollout_ref.actor.profiler.discrete",
            "actor_rollout_ref.ref.profiler.discrete",
            "actor_rollout_ref.rollout.profiler.discrete",
            "critic.profiler.discrete",
            "reward_model.profiler.discrete",
        ),
        NEWER,
    ),
    Alias(
        "actor_rollout_ref.profiler.*",
        (
            "actor_rollout_ref.actor.profiler.*",
            "actor_rollout_ref.ref.profiler.*",
            "actor_rollout_ref.rollout.profiler.*",
        ),
        OLDER,
    ),
    Alias("*.profiler.tool_config.nsys.discrete", "*.profiler.discrete", NEWER),
    Alias("*.profiler.tool_config.torch.discrete", "*.profiler.discrete", NEWER),
    Alias("ray_kwargs.ray_init.num_cpus", "ray_init.num_cpus", NEWER),
    Alias("ray_kwargs.timeline_json_file", "ray_init.timeline_json_file", NEWER),
    Alias("ray_kwargs.ray_init.*", "ray_init.options.*", NEWER),
    Alias("reward_manager.name", "reward_model.reward_manager", NEWER),
    Alias("reward.reward_manager.name", "reward_model.reward_manager", NEWER),
    Alias("reward_manager.*", "reward.reward_manager.*", OLDER),
    Alias("reward.reward_kwargs.*", "reward_model.reward_kwargs.*", NEWER),
    Alias("reward.custom_reward_function.*", "custom_reward_function.*", NEWER),
    Alias("reward.sandbox_fusion.*", "reward_model.sandbox_fusion.*", NEWER),
    Alias("sandbox_fusion.*", "reward_model.sandbox_fusion.*", NEWER),
    Alias("reward.reward_model.model_path", "reward_model.model.path", NEWER),
    Alias("reward.reward_model.*", "reward_model.*", NEWER),
    Alias("reward_model.num_workers", "reward.num_workers", NEWER),
    Alias("reward_model.param_offload", "reward_model.megatron.param_offload", OLDER),
    Alias("custom_cls.*", "data.custom_cls.*", "a section of data at the top level"),
)

_SFT = (
    Alias("model.path", "model.partial_pretrain", NEWER),
    Alias("model.use_remove_padding", "use_remove_padding", NEWER),
    Alias("engine.ulysses_sequence_parallel_size", "ulysses_sequence_parallel_size", NEWER),
    Alias("engine.strategy", "model.strategy", NEWER),
    Alias("engine.dtype", "model.fsdp_config.mixed_precision.param_dtype", NEWER),
    Alias("engine.*", "model.fsdp_config.*", NEWER),
    Alias("optim.lr_scheduler_type", "optim.lr_scheduler", NEWER),
    Alias("optim.warmup_style", "optim.lr_scheduler", NEWER),
    Alias("optim.lr_warmup_steps_ratio", "optim.warmup_steps_ratio", NEWER),
    Alias("checkpoint.*", "trainer.checkpoint.*", NEWER),
    Alias("data.messages_key", "data.multiturn.messages_key", NEWER),
    Alias("data.tools_key", "data.multiturn.tools_key", NEWER),
    Alias("data.enable_thinking_key", "data.multiturn.enable_thinking_key", NEWER),
    Alias("trainer.resume_path", "trainer.resume_from_path", OLDER),
)

_RAY = (
    Alias("ray_kwargs.ray_init.num_cpus", "ray_init.num_cpus", NEWER),
    Alias("ray_kwargs.timeline_json_file", "ray_init.timeline_json_file", NEWER),
    Alias("ray_kwargs.ray_init.*", "ray_init.options.*", NEWER),
)

# verl's generation server has the keys of training.
_GENERATE = (
    *_RAY,
    Alias("actor_rollout_ref.rollout.n", "data.n_samples", SERVED),
    Alias("actor_rollout_ref.rollout.*", "rollout.*", SERVED),
    Alias("actor_rollout_ref.model.*", "model.*", SERVED),
    Alias("data.train_files", "data.path", SERVED, _one_file),
)

# The first matching row applies.
ALIASES: dict[str, tuple[Alias, ...]] = {"train": _TRAIN, "sft": _SFT, "eval": _RAY, "generate": _GENERATE}

# Other spellings of values: (key, theirs) -> ours.
VALUES: dict[tuple[str, Any], Any] = {
    ("actor_rollout_ref.rollout.name", "sglang_async"): "sglang",
    ("actor_rollout_ref.rollout.name", "naive"): "hf",
    # Managers that score as naive does, in other processes or with limits of their own.
    **{("reward_model.reward_manager", name): "naive" for name in ("rate_limited", "limited", "remote")},
    **{
        (f"{role}.optim.optimizer", name): "adam"
        for role in ("actor_rollout_ref.actor", "critic")
        for name in ("AdamW", "Adam", "adamw")
    },
    **{(f"{role}.optim.optimizer", "SGD"): "sgd" for role in ("actor_rollout_ref.actor", "critic")},
}

# Values of verl that Burnish does not support: (key, theirs) -> what it is. Nothing else is suggested for them.
UNSUPPORTED_VALUES: dict[tuple[str, str], str] = {
    ("algorithm.adv_estimator", "gdpo"): "an advantage per component of the reward",
    ("actor_rollout_ref.actor.policy_loss.loss_mode", "dro"): "direct reward optimization",
    **{("trainer.logger", name): "a logger of verl" for name in ("clearml", "vemlp_wandb", "rl_logging_board")},
}

# Config groups of newer verl (`engine=fsdp`), and the keys that each sets.
GROUPS: dict[tuple[str, str, str], dict[str, Any]] = {
    ("sft", "engine", "fsdp"): {},
    ("sft", "engine", "megatron"): {"model.strategy": "megatron"},
    ("sft", "optim", "fsdp"): {},
    ("sft", "optim", "megatron"): {},
    ("sft", "model", "hf_model"): {},
    ("train", "model_engine", "dp"): {},
    ("train", "model_engine", "fsdp"): {},
    ("train", "model_engine", "megatron"): {"actor_rollout_ref.actor.strategy": "megatron"},
}


def find_alias(key: str, job: str) -> tuple[Alias, tuple[str, ...]] | None:
    """The alias and the keys it stands for; None if the key is not an alias."""
    for alias in ALIASES[job]:
        match = _pattern(alias.theirs).fullmatch(key)
        if match:
            return alias, tuple(_fill(target, match.groups()) for target in alias.targets)
    return None


def aliases_of(key: str, job: str) -> list[str]:
    """All other spellings of a key."""
    spellings = []
    for alias in ALIASES[job]:
        for target in alias.targets:
            match = _pattern(target).fullmatch(key)
            if match:
                spellings.append(_fill(alias.theirs, match.groups()))
    return spellings


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile("(.+)".join(re.escape(part) for part in text.split("*")))


def _fill(target: str, wildcards: tuple[str, ...]) -> str:
    for part in wildcards:
        target = target.replace("*", part, 1)
    return target
