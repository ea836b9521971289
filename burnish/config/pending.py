"""Which keys of `burnish train` are pending and which are inert; jobs.py's other trees are in job_status.py."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config.names import Line


@dataclass(frozen=True)
class Pending:
    """Keys (or, as key=value, values) whose behaviour comes later; `inert_if` names when they cannot matter anyway."""

    pattern: str  # * is any text; "key=value" is one value
    waits_for: str
    inert_if: str | None = None
    reason: Line | None = None


# What pending keys wait for, in words.
WAITS = {
    "several processes": "多进程训练",
    "foreign engines": "外部推理引擎",
    "multi-turn": "多轮对话",
    "vision": "视觉模型",
    "the profiler": "性能分析",
    "the Megatron backend": "Megatron 后端",
    "CUDA graphs": "CUDA graph",
    "GPU kernels": "GPU 算子",
    "mixtures of experts": "混合专家模型",
    "asynchronous training": "异步训练",
    "Ascend devices": "昇腾设备",
}

_ONE_PROCESS = Line("one process shards and sends nothing", "单进程无需切分或传输")
MEGATRON_ONLY = Line("only the Megatron backend reads it", "只有 Megatron 后端读取")
NO_REWARD_MODEL = Line("there is no reward model (reward_model.enable)", "未启用奖励模型（reward_model.enable）")
NO_GRAPHS = Line("CUDA graphs exist on GPUs only", "CUDA graph 仅存在于 GPU")


def megatron(*patterns: str) -> tuple[Pending, ...]:
    return tuple(Pending(one, "the Megatron backend", "without megatron", MEGATRON_ONLY) for one in patterns)


def _reward_model(waits_for: str, *names: str) -> tuple[Pending, ...]:
    return tuple(Pending(f"reward_model.{name}", waits_for, "without reward model", NO_REWARD_MODEL) for name in names)


def alone(*patterns: str) -> tuple[Pending, ...]:
    return tuple(Pending(one, "several processes", "alone", _ONE_PROCESS) for one in patterns)


PENDING: tuple[Pending, ...] = (
    # values
    Pending("*strategy=megatron", "the Megatron backend"),
    Pending("actor_rollout_ref.rollout.name=vllm", "foreign engines"),
    Pending("actor_rollout_ref.rollout.name=sglang", "foreign engines"),
    Pending("actor_rollout_ref.rollout.name=trtllm", "foreign engines"),
    Pending("actor_rollout_ref.hybrid_engine=false", "asynchronous training"),
    Pending("trainer.device=npu", "Ascend devices"),
    # data
    Pending("data.tool_config_path", "multi-turn"),
    Pending("data.image_key", "vision"),
    Pending("data.video_key", "vision"),
    Pending("data.image_patch_size", "vision"),
    Pending("data.return_multi_modal_inputs", "vision"),
    # model
    Pending(
        "*.fused_kernel_options.impl_backend",
        "GPU kernels",
        "cpu",
        Line("Triton runs on GPUs only", "Triton 只能在 GPU 上运行"),
    ),
    # roles
    Pending("actor_rollout_ref.actor.freeze_vision_tower", "vision"),
    Pending("actor_rollout_ref.actor.router_replay.*", "mixtures of experts"),
    Pending("actor_rollout_ref.actor.aux_loss_scope", "mixtures of experts"),
    Pending("*.ulysses_sequence_parallel_size", "several processes"),
    *megatron(
        "*.checkpoint.mbridge_config",
        "*.megatron.*",
        "*.load_weight",
        "*.optim.optimizer",
        "*.optim.lr_warmup_init",
        "*.optim.lr_decay_*",
        "*.optim.min_lr",
        "*.optim.weight_decay_incr_style",
        "*.optim.lr_wsd_*",
        "*.optim.use_checkpoint_opt_param_scheduler",
        "*.optim.override_optimizer_config",
        "actor_rollout_ref.rollout.layer_name_map",
    ),
    *alone(
        "*.fsdp_config.wrap_policy.*",
        "*.fsdp_config.reshard_after_forward",
        "*.fsdp_config.fsdp_size",
        "*.fsdp_config.forward_prefetch",
        "*.fsdp_config.mixed_precision.reduce_dtype",
        "*nccl_timeout",
        "actor_rollout_ref.rollout.update_weights_bucket_megabytes",
        "actor_rollout_ref.rollout.checkpoint_engine.*",
        "trainer.ray_wait_register_center_timeout",
        "ray_init.*",
        "transfer_queue.*",
    ),
    # engine
    Pending("actor_rollout_ref.rollout.*_parallel_size", "several processes"),
    Pending("actor_rollout_ref.rollout.enforce_eager", "CUDA graphs", "cpu", NO_GRAPHS),
    Pending("actor_rollout_ref.rollout.cudagraph_capture_sizes", "CUDA graphs", "cpu", NO_GRAPHS),
    Pending("actor_rollout_ref.rollout.over_sample_rate", "multi-turn"),
    Pending("actor_rollout_ref.rollout.enable_rollout_routing_replay", "mixtures of experts"),
    Pending("actor_rollout_ref.rollout.quantization", "foreign engines"),
    Pending("actor_rollout_ref.rollout.use_block_quant_rollout", "foreign engines"),
    Pending("actor_rollout_ref.rollout.multi_turn.*", "multi-turn"),
    Pending("actor_rollout_ref.rollout.agent.*", "multi-turn"),
    Pending("actor_rollout_ref.rollout.trace.*", "multi-turn"),
    Pending("actor_rollout_ref.rollout.prometheus.*", "foreign engines"),
    # rewards
    *_reward_model("several processes", "enable_resource_pool", "nnodes", "n_gpus_per_node"),
    *_reward_model("foreign engines", "rollout"),
    # algorithm
    # the run
    Pending("trainer.nnodes", "several processes"),
    Pending("trainer.n_gpus_per_node", "several processes"),
    Pending("rollout.*", "asynchronous training"),
    Pending("async_training.*", "asynchronous training"),
    Pending("*.profiler.*", "the profiler"),
    Pending("global_profiler.*", "the profiler"),
    Pending("trainer.profile_steps", "the profiler"),
    Pending("trainer.*_nsight_options.*", "the profiler"),
    Pending("trainer.npu_profile.*", "the profiler"),
)

_FUSED = Line("log-probs always come from the fused head", "对数概率始终由融合输出头计算")
NOT_SELECTED = Line("only that engine reads it, and it is not selected", "只有对应引擎读取，而它未被选用")

_FROZEN = Line("nothing of it is taught, so there is no optimizer", "不训练，因此没有优化器")
_ONE_FORMAT = Line("a frozen reward model is kept in what it computes in", "冻结的奖励模型以计算所用的类型保存")

# Keys that can have no effect here, and why.
INERT: dict[str, Line] = {
    "*.model.lora.merge": Line("the engine always gets merged weights", "引擎得到的始终是合并后的权重"),
    "actor_rollout_ref.rollout.layered_summon": Line(
        "weights are always sent one by one, merged on the way", "权重始终逐个发送，途中合并"
    ),
    "actor_rollout_ref.rollout.multi_stage_wake_up": Line(
        "weights always come first: the cache is taken with the first request",
        "总是先更新权重，收到首个请求时才分配缓存",
    ),
    "actor_rollout_ref.ref.fsdp_config.optimizer_offload": _FROZEN,
    "reward_model.model.fsdp_config.optimizer_offload": _FROZEN,
    "reward_model.model.fsdp_config.model_dtype": _ONE_FORMAT,
    "reward_model.model.fsdp_config.mixed_precision.buffer_dtype": _ONE_FORMAT,
    "*.use_remove_padding": Line("nothing is ever padded", "数据从不填充"),
    "reward_model.model.use_fused_kernels": Line(
        "a reward model has no language head to fuse", "奖励模型没有可融合的语言输出头"
    ),
    "*.use_fused_kernels": _FUSED,
    "*.entropy_from_logits_with_chunking": Line("the fused head always works in chunks", "融合输出头始终分块计算"),
    "*.entropy_checkpointing": Line("the fused head keeps no logits to save", "融合输出头不保留 logits"),
    "actor_rollout_ref.actor.calculate_entropy": Line("the entropy is always reported", "熵始终会被记录"),
    "*.strategy": Line("fsdp and fsdp2 name the same backend", "fsdp 与 fsdp2 是同一后端"),
    "*.fsdp_config.use_orig_params": Line("FSDP2 always keeps the original parameters", "FSDP2 始终保留原始参数"),
    "*.fsdp_config.forward_only": Line("the role decides", "由角色自身决定"),
    "actor_rollout_ref.hybrid_engine": Line("policy and engine share the device", "策略与引擎共用设备"),
    "actor_rollout_ref.rollout.calculate_log_probs": Line(
        "the engine always returns log-probs", "引擎始终返回对数概率"
    ),
    "actor_rollout_ref.rollout.mode": Line(
        "the engine is always a service, in this process: rewards overlap generation",
        "引擎始终是本进程内的服务，奖励计算与生成重叠",
    ),
    "actor_rollout_ref.rollout.detokenize": Line(
        "rewards read the text, so it is always made", "奖励需要文本，因此始终生成"
    ),
    "actor_rollout_ref.rollout.load_format": Line("the first weight sync overwrites it", "首次权重同步会覆盖它"),
    "actor_rollout_ref.rollout.trust_remote_code": Line(
        "model.trust_remote_code decides", "由 model.trust_remote_code 决定"
    ),
    "actor_rollout_ref.rollout.enable_sleep_mode": Line("free_cache_engine decides", "由 free_cache_engine 决定"),
    "actor_rollout_ref.rollout.skip_tokenizer_init": Line(
        "the engine takes and gives token ids", "引擎只收发 token id"
    ),
    "actor_rollout_ref.rollout.engine_kwargs.*": NOT_SELECTED,
    "critic.rollout_n": Line("rollout.n holds for all roles", "所有角色都使用 rollout.n"),
    "critic.model.tokenizer_path": Line("the critic reads the policy's tokens", "critic 直接读取策略的 token"),
    "data.dataloader_num_workers": Line("rows are read without a loader process", "读取数据不使用加载进程"),
    "reward_model.launch_reward_fn_async": Line("rewards always overlap generation", "奖励计算始终与生成重叠"),
    "reward_model.use_reward_loop": Line("rewards always overlap generation", "奖励计算始终与生成重叠"),
    "trainer.balance_batch": Line("one process has nothing to balance", "单进程无需均衡"),
    "trainer.use_legacy_worker_impl": Line("there is one implementation", "只有一种实现"),
}
