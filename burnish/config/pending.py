"""Which keys of `burnish train` are pending and which are inert; jobs.py's other trees are in job_status.py."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config.names import Line


@dataclass(frozen=True)
class Pending:
    """Keys (or, as key=value, values) whose behaviour comes later.

    `inert_if` and `served_if` name when they cannot matter anyway, and when they act already.
    """

    pattern: str  # * is any text; "key=value" is one value
    waits_for: str
    inert_if: str | None = None
    reason: Line | None = None
    served_if: str | None = None  # when they act already


# What pending keys wait for, in words.
WAITS = {
    "several processes": "多进程训练",
    "foreign engines": "外部推理引擎",
    "other transports": "其他传输方式",
    "multi-turn": "多轮对话",
    "vision": "视觉模型",
    "the profiler": "性能分析",
    "Megatron-Core itself": "Megatron-Core 本身",
    "pipeline stages": "流水线并行",
    "mixtures of experts": "混合专家模型",
    "Ascend devices": "昇腾设备",
}

ONE_PROCESS = Line("one process shards and sends nothing", "单进程无需切分或传输")
SHARES = Line(
    "the engines share the policy's devices (hybrid_engine, rollout.n_gpus_per_node)",
    "引擎与策略共用设备（hybrid_engine、rollout.n_gpus_per_node）",
)
REPLICAS = Line(
    "every device has a whole engine, and prompts are shared out over them",
    "每个设备各有一个完整引擎，提示在它们之间分配",
)
WHOLE = "whole engines"
MEGATRON_ONLY = Line("only strategy=megatron reads it", "只有 strategy=megatron 时读取")
NO_REWARD_MODEL = Line("there is no reward model (reward_model.enable)", "未启用奖励模型（reward_model.enable）")
NO_GRAPHS = Line(
    "CUDA graphs are those of the built-in engine on a GPU, or of a foreign engine",
    "只有 GPU 上的内置引擎和外部引擎使用 CUDA graph",
)


def _reward_model(waits_for: str, *names: str) -> tuple[Pending, ...]:
    return tuple(Pending(f"reward_model.{name}", waits_for, "without reward model", NO_REWARD_MODEL) for name in names)


def _transport(pattern: str, waits_for: str = "other transports") -> Pending:
    key = f"actor_rollout_ref.rollout.checkpoint_engine.{pattern}"
    return Pending(key, waits_for, "engines share devices", SHARES)


def _engine_size(name: str) -> Pending:
    """A way to spread one engine over devices that only SGLang has."""
    return Pending(f"actor_rollout_ref.rollout.{name}", "foreign engines", WHOLE, REPLICAS, served_if="one sglang")


def alone(*patterns: str) -> tuple[Pending, ...]:
    return tuple(Pending(one, "several processes", "one rank", ONE_PROCESS) for one in patterns)


PENDING: tuple[Pending, ...] = (
    # values
    Pending("actor_rollout_ref.rollout.name=trtllm", "foreign engines"),
    # data
    Pending("data.tool_config_path", "multi-turn"),
    Pending("data.image_key", "vision"),
    Pending("data.video_key", "vision"),
    Pending("data.image_patch_size", "vision"),
    Pending("data.return_multi_modal_inputs", "vision"),
    # roles
    Pending("actor_rollout_ref.actor.freeze_vision_tower", "vision"),
    Pending("actor_rollout_ref.actor.router_replay.*", "mixtures of experts"),
    Pending("actor_rollout_ref.actor.aux_loss_scope", "mixtures of experts"),
    # engine
    _transport("backend=hccl", "Ascend devices"),
    *(_transport(f"backend={name}") for name in ("nixl", "kimi_ckpt_engine", "mooncake")),
    _transport("engine_kwargs"),
    *map(_engine_size, ("data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size")),
    Pending("actor_rollout_ref.rollout.over_sample_rate", "multi-turn"),
    Pending("actor_rollout_ref.rollout.enable_rollout_routing_replay", "mixtures of experts"),
    Pending("actor_rollout_ref.rollout.quantization", "foreign engines"),
    Pending("actor_rollout_ref.rollout.use_block_quant_rollout", "foreign engines"),
    Pending("actor_rollout_ref.rollout.multi_turn.*", "multi-turn"),
    Pending("actor_rollout_ref.rollout.agent.*", "multi-turn"),
    Pending("actor_rollout_ref.rollout.trace.*", "multi-turn"),
    Pending("actor_rollout_ref.rollout.prometheus.*", "foreign engines"),
    # rewards
    *_reward_model("foreign engines", "rollout"),
    # algorithm
    # the run
    Pending("*.profiler.*", "the profiler"),
    Pending("global_profiler.*", "the profiler"),
    Pending("trainer.profile_steps", "the profiler"),
    Pending("trainer.*_nsight_options.*", "the profiler"),
    Pending("trainer.npu_profile.*", "the profiler"),
)

_FUSED = Line("log-probs always come from the fused head", "对数概率始终由融合输出头计算")
NOT_SELECTED = Line("only that engine reads it, and it is not selected", "只有对应引擎读取，而它未被选用")

_FROZEN = Line("nothing of it is taught, so there is no optimizer", "不训练，因此没有优化器")
_NO_GRADIENTS = Line("nothing of it is taught, so there are no gradients to sum", "不训练，因此没有需要求和的梯度")
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
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.reduce_dtype": _NO_GRADIENTS,
    "reward_model.model.fsdp_config.optimizer_offload": _FROZEN,
    "reward_model.model.fsdp_config.mixed_precision.reduce_dtype": _NO_GRADIENTS,
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
    "*.fsdp_config.use_orig_params": Line("FSDP2 always keeps the original parameters", "FSDP2 始终保留原始参数"),
    "*.fsdp_config.forward_only": Line("the role decides", "由角色自身决定"),
    "actor_rollout_ref.rollout.calculate_log_probs": Line(
        "the engine always returns log-probs", "引擎始终返回对数概率"
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
    "actor_rollout_ref.rollout.engine_kwargs.trtllm*": NOT_SELECTED,
    "critic.rollout_n": Line("rollout.n holds for all roles", "所有角色都使用 rollout.n"),
    "critic.model.tokenizer_path": Line("the critic reads the policy's tokens", "critic 直接读取策略的 token"),
    "data.dataloader_num_workers": Line("rows are read without a loader process", "读取数据不使用加载进程"),
    "reward_model.launch_reward_fn_async": Line("rewards always overlap generation", "奖励计算始终与生成重叠"),
    "reward_model.use_reward_loop": Line("rewards always overlap generation", "奖励计算始终与生成重叠"),
    "transfer_queue.*": Line("the controller hands batches to the ranks itself", "批次由控制进程直接交给各进程"),
    "trainer.use_legacy_worker_impl": Line("there is one implementation", "只有一种实现"),
}
