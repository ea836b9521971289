"""Keys of verl that Burnish has no counterpart for: accepted where they change no result, else refused by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from burnish.config.values import is_interpolation, written_as

_OFF = (None, False, "", "none", "disabled")


@dataclass(frozen=True)
class VerlOnly:
    """Keys that match `pattern`. Values in `accepted` (None: all values) have no effect, and `why` says what happens
    instead; other values are refused."""

    pattern: str  # * matches any text
    why: str
    accepted: tuple[Any, ...] | None = None
    instead: str = ""  # what to type instead, with the value for `...`; the first accepted value if empty

    def refuses(self, value: Any) -> bool:
        if self.accepted is None or value is None or value == "" or is_interpolation(value):
            return False
        return not any(value == accepted for accepted in self.accepted)

    def reason(self, value: Any) -> str:
        """Why this value has no effect."""
        if self.accepted is None:
            return self.why
        return "the feature is off" if value in _OFF else "nothing to change here"

    def hint(self, key: str, value: Any) -> str:
        if self.instead:
            return self.instead.replace("=...", f"={written_as(value)}")
        return f"{key}={written_as(self.accepted[0])}" if self.accepted else "leave it out"


def _refused(pattern: str, why: str, *accepted: Any, instead: str = "") -> VerlOnly:
    return VerlOnly(pattern, why, accepted, instead)


_MTP = (
    "multi-token prediction is not supported. Without it, the policy and its updates are the same, but the model's MTP"
    " layers are neither loaded nor trained, and the engine decodes one token at a time"
)
_QAT = "quantization-aware training is not supported. Without it, the policy trains in fsdp_config.model_dtype"
_FEATURE = "belongs to a feature that is off or refused"
_PROFILED = "a setting of profilers that Burnish does not have; results are the same"
_SAME = "it changes speed or memory, not results"

_OTHER_STRATEGY = "only used with another strategy"

_MODEL = (
    VerlOnly("*._target_", "names a class of verl's config"),
    *(VerlOnly(f"*.{name}.*", _OTHER_STRATEGY) for name in ("veomni", "torchtitan", "automodel", "mindspeed")),
    VerlOnly("*.fsdp_config.grad_offload", "gradients are freed after every update"),
    VerlOnly("*model.load_tokenizer", "the tokenizer is always loaded"),
    VerlOnly("*model.architectures", "the class of the model is that of its config.json", ()),
    _refused("*.mtp.enable", _MTP, False),
    _refused("*.mtp", _MTP),
    VerlOnly("*.mtp.*", "only used with mtp.enable"),
    _refused("*.qat.enable", _QAT, False),
    VerlOnly("*.qat.*", "only used with qat.enable"),
    VerlOnly("*.tiled_mlp.*", "MLPs compute whole sequences; results are the same, memory may be higher"),
    VerlOnly("*model.lora.dropout_position", "dropout is applied before the projection", ("pre",)),
    VerlOnly("*model.lora.a2a_experimental", _SAME),
    _refused(
        "*model.lora.freeze_*",
        "with adapters, all other weights are frozen",
        True,
        instead="lora.exclude_modules='.*visual.*' (no adapters on the vision tower)",
    ),
    VerlOnly("*.gradient_checkpointing_kwargs.activations_checkpoint_granularity", "layers are recomputed as a whole"),
    _refused(
        "*optim.optimizer_impl",
        "other optimizer libraries are not supported. With torch.optim, the optimizer state is float32 and needs more"
        " memory",
        "torch.optim",
    ),
    VerlOnly("*optim.zero_indexed_step", "the first step runs at 1/warm-up steps of the peak, not at 0"),
    VerlOnly("*optim.muon_*", "only used with optimizer=muon"),
    VerlOnly("*optim.use_layer_wise_distributed_optimizer", "only used with optimizer=muon"),
    VerlOnly("*.fsdp_config.seed", "all random numbers derive from trainer.seed"),
    VerlOnly("*.full_determinism", "all random numbers derive from trainer.seed; kernels are not replaced"),
    VerlOnly("*entropy_from_logits_chunk_size", "the fused head always works in chunks"),
    VerlOnly("*.pad_to_length*", "sequences are always packed, never padded"),
    VerlOnly("*.use_no_sync_for_gradient_accumulation", "gradients are reduced once per update"),
    VerlOnly("*.turbo_config.*", "only used with strategy=fsdp_turbo"),
    VerlOnly("*checkpoint.strict", "checkpoints are always loaded strictly"),
    VerlOnly("*profiler.*", _PROFILED),
    VerlOnly("*.profile.*", _PROFILED),
)
_MEGATRON = (
    _refused(
        "*.megatron.offload.*.target",
        "offload targets are not supported; param_offload and optimizer_offload move to host memory",
        "none",
        instead="megatron.param_offload=true or megatron.optimizer_offload=true, in the same section",
    ),
    VerlOnly("*.megatron.offload.*", "only used with an offload target"),
    _refused("*.megatron.dynamic_context_parallel", "dynamic context parallelism is not supported", False),
    VerlOnly("*.megatron.max_seqlen_per_dp_cp_rank", "only used with dynamic_context_parallel"),
    VerlOnly("*.megatron.dist*_fully_reshardable*", "checkpoints can be loaded with any number of ranks"),
    VerlOnly("*.megatron.use_remove_padding", "sequences are always packed, never padded"),
    VerlOnly("*.megatron.pad_bshd_to_minibatch_max", "sequences are always packed, never padded"),
    VerlOnly("*.megatron.use_megatron_fsdp", "FSDP2 is always used"),
    VerlOnly("*.megatron.entropy_from_logits_with_chunking", "the fused head always works in chunks"),
    _refused("*.megatron.router_replay.mode", "only the policy's update repeats choices of experts", "disabled"),
    VerlOnly("*.megatron.router_replay.*", _FEATURE),
    _refused(
        "actor_rollout_ref.ref.router_replay.mode", "only the policy's update repeats choices of experts", "disabled"
    ),
    VerlOnly("actor_rollout_ref.ref.router_replay.*", _FEATURE),
)
_ENGINE = (
    VerlOnly("*rollout.micro_batch_size", "the engine decides how to batch responses"),
    VerlOnly("*rollout.rollout_world_size", "the number of devices is trainer.nnodes x trainer.n_gpus_per_node"),
    VerlOnly("*rollout.server.*", "a setting of verl's servers of engines; results are the same"),
    VerlOnly("*rollout.custom", "engines of the user are set by rollout.name", (), "rollout.name=FILE.py:CLASS"),
    VerlOnly("*rollout.logprobs_mode", "log-probs are always those of the full vocabulary at the sampling temperature"),
    VerlOnly("*rollout.scheduling_policy", "results do not depend on the order of requests"),
    VerlOnly("*rollout.moe_load_balance_metrics_interval", "this metric is not logged"),
    VerlOnly("*rollout.quantization_config_file", "only used with rollout.quantization"),
    VerlOnly(
        "*rollout.use_preprocessed_multimodal_input", "pictures are always processed once, for engine and trainer"
    ),
    _refused("*rollout.disaggregation.enabled", "separate prefill and decode engines are not supported", False),
    VerlOnly("*rollout.disaggregation.*", "only used with disaggregation.enabled"),
    _refused("*rollout.checkpoint_engine.custom_backend_module", "custom weight transports are not supported"),
    VerlOnly("*rollout.trace.*", "only used with trace.backend"),
    _refused(
        "*function_tool_path",
        "tools belong to conversations",
        instead="actor_rollout_ref.rollout.multi_turn.function_tool_path=...",
    ),
    _refused(
        "skip.*.enable",
        "only rollouts of the synchronous trainer can be recorded",
        False,
        instead="skip.rollout.enable=true",
    ),
    VerlOnly("*rollout.skip.*", "only used with skip.enable"),
    VerlOnly("skip.*", "only used with skip.*.enable"),
)
_MANAGER = "custom reward managers are not supported; write a reward function"
_REWARD_FUNCTION = "custom_reward_function.path=FILE.py custom_reward_function.name=compute_score"
_TRAIN = (
    VerlOnly("*.prefix_grouper*", "prompts of a group are shared without further settings"),
    VerlOnly("actor_rollout_ref.*.rollout_n", "rollout.n applies to all roles"),
    VerlOnly("*.calculate_sum_pi_squared", "computed whenever algorithm.adv_estimator needs it"),
    VerlOnly("*.sum_pi_squared_checkpointing", "it changes memory, not results"),
    VerlOnly("*.policy_loss.dro_beta", "only used with loss_mode=dro"),
    *_MODEL,
    *_MEGATRON,
    *_ENGINE,
    VerlOnly("critic.kl_ctrl.*", "verl never reads it"),
    VerlOnly("critic.model.custom_chat_template", "the critic uses the policy's tokenizer"),
    VerlOnly("critic.model.hf_config_path", "the critic's config is read from critic.model.path", ()),
    VerlOnly("critic.model.use_liger", _SAME),
    VerlOnly("critic.model.use_fused_kernels", "a value head has no logits to fuse"),
    VerlOnly("critic.model.fused_kernel_options.*", "a value head has no logits to fuse"),
    _refused("reward_model.model.override_config*", "the reward model's config is the one at its path", {}),
    _refused("critic.loss_scale_factor", "not supported for the critic"),
    _refused("data.audio_key", "no model with audio is supported; data.audio_key=null ignores the column"),
    VerlOnly("*reward_model.max_concurrent", "reward workers score as many responses as they have processes"),
    *(
        _refused(f"*reward_model.{name}", "calls of reward functions are not limited by rate")
        for name in ("max_rpm", "max_tpm")
    ),
    VerlOnly("*reward_model.estimated_tokens_per_request", "only used with max_tpm"),
    VerlOnly("reward.max_concurrency_per_worker", "reward workers score as many responses as they have processes"),
    _refused("reward.reward_manager.source", _MANAGER, "register", instead=_REWARD_FUNCTION),
    _refused("reward.reward_manager.module.path", _MANAGER, instead=_REWARD_FUNCTION),
    VerlOnly("reward.reward_manager.module.*", "only used with reward_manager.source=importlib"),
    _refused("reward_model.reward_loop_source", _MANAGER, "register", instead=_REWARD_FUNCTION),
    _refused("reward_model.reward_loop_module_path", _MANAGER, instead=_REWARD_FUNCTION),
    VerlOnly("reward_model.reward_loop_class_name", "only used with reward_loop_module_path"),
    VerlOnly("algorithm.filter_groups.max_inflight_gen_batches", "batches are generated one after the other"),
    _refused("distillation.enabled", "on-policy distillation is not supported", False),
    VerlOnly("distillation.*", "only used with distillation.enabled"),
    *(
        VerlOnly(name, "the controller sends batches to the ranks directly")
        for name in ("transfer_queue.*", "trainer.num_global_batch", "trainer.num_data_storage_units")
    ),
    VerlOnly("trainer.use_v1", "only one trainer implementation exists"),
    _refused(
        "trainer.v1.trainer_mode",
        "not supported under this name",
        "sync",
        instead="async_training.mode=one_step_off or async_training.mode=queue",
    ),
    VerlOnly("trainer.v1.*", "a setting of verl's trainer classes"),
    VerlOnly("trainer.max_ref_ckpt_to_keep", "the reference is never saved"),
    VerlOnly("actor_rollout_ref.ref.sync_*", "verl never reads it"),
    VerlOnly("async_training.checkpoint_engine.*", "weights are sent in buckets, while the engines wait"),
    VerlOnly("async_training.use_trainer_do_validate", "the engines generate the responses of validation"),
    VerlOnly("async_training.parallel_validate_and_rollout", "the engines generate the responses of validation"),
)
_SEARCH_R1 = "a key of Search-R1, a fork of verl whose search runs in its own rollout; here, search is a tool"
_SEARCH_TOOL = (
    "actor_rollout_ref.rollout.multi_turn.enable=true actor_rollout_ref.rollout.multi_turn.tool_config_path=FILE.yaml"
)
_VALIDATION = "actor_rollout_ref.rollout.val_kwargs"
_FORK = "a key of a fork of verl"
_DEBUG = ("debug", "vs_debug", "trainer.dump_high_diff_tokens")
# Keys of widely used forks, with what to type instead.
_FORKS = (
    _refused(
        "actor_rollout_ref.rollout.val_temperature",
        f"{_FORK}: the temperature of validation",
        instead=f"{_VALIDATION}.temperature=... {_VALIDATION}.do_sample=true",
    ),
    _refused(
        "actor_rollout_ref.rollout.n_val",
        f"{_FORK}: responses per prompt in validation",
        instead=f"{_VALIDATION}.n=... {_VALIDATION}.do_sample=true",
    ),
    _refused(
        "actor_rollout_ref.rollout.n_agent", f"{_FORK}: responses per prompt", instead="actor_rollout_ref.rollout.n=..."
    ),
    _refused(
        "trainer.rejection_sample",
        f"{_FORK}: drops groups whose responses all have the same score",
        False,
        instead="algorithm.filter_groups.enable=true algorithm.filter_groups.metric=score",
    ),
    VerlOnly("trainer.rejection_sample_multiplier", "only used with trainer.rejection_sample"),
    *(
        _refused(name, _SEARCH_R1, instead=_SEARCH_TOOL)
        for name in ("retriever.*", "data.max_start_length", "data.max_obs_length", "algorithm.state_masking.*")
    ),
    _refused("max_turns", _SEARCH_R1, instead="actor_rollout_ref.rollout.multi_turn.max_assistant_turns=..."),
    _refused("do_search", _SEARCH_R1, False, instead=_SEARCH_TOOL),
    _refused("algorithm.no_think_rl", f"{_FORK} (Search-R1)", False),
    *(_refused(name, "a debugging switch of a recipe, which Burnish does not have", False) for name in _DEBUG),
)
_MEGATRON_SCHEDULE = (
    "lr_warmup_init",
    "lr_decay_*",
    "min_lr",
    "weight_decay_incr_style",
    "lr_wsd_*",
    "use_checkpoint_*",
)
_SFT = (
    *_MODEL,
    *_MEGATRON,
    VerlOnly("model.custom_chat_template", "data.chat_template sets the template", (), "data.chat_template=..."),
    VerlOnly("model.hf_config_path", "the config is read from model.path", ()),
    VerlOnly("model.tokenizer_path", "the tokenizer is read from model.path", ()),
    VerlOnly("model.use_fused_kernels", "log-probs always come from the fused head"),
    VerlOnly("model.fused_kernel_options.*", "log-probs always come from the fused head"),
    _refused("model.fsdp_config.*_parallel_size", "not supported in SFT", 1),
    *(
        VerlOnly(f"model.fsdp_config.{name}", "a setting of Megatron, which is not used")
        for name in (
            "*mbridge",
            "override_*",
            "sequence_parallel",
            "use_dist*",
            "dist_*",
            "grad_offload",
            "use_megatron*",
        )
    ),
    VerlOnly("optim.total_training_steps", "the schedule has the length of the run"),
    _refused("optim.optimizer", "only AdamW is supported", "AdamW", "adamw", "Adam", "adam"),
    _refused("optim.override_optimizer_config*", "further arguments of the optimizer are not supported"),
    *(VerlOnly(f"optim.{name}", "a setting of Megatron's schedule, which is not used") for name in _MEGATRON_SCHEDULE),
    VerlOnly("data.num_workers", "data is read without loader processes"),
    *(
        VerlOnly(f"data.max_{part}_length", "data.max_length limits prompt and response together")
        for part in ("prompt", "response")
    ),
    VerlOnly("data.enable_thinking_default", "the chat template's default applies", ("none", "None")),
    VerlOnly("trainer.balance_batch", "examples are always balanced over ranks by their length"),
    VerlOnly("trainer.profile_interval", _PROFILED),
)

VERL_ONLY: dict[str, tuple[VerlOnly, ...]] = {"train": (*_TRAIN, *_FORKS), "sft": _SFT, "generate": (*_MODEL, *_ENGINE)}


def find_verl_only(key: str, job: str) -> VerlOnly | None:
    """The first row that matches a key; None if there is none."""
    return next((row for row in VERL_ONLY.get(job, ()) if _pattern(row.pattern).fullmatch(key)), None)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")))
