"""Which keys are pending and which are inert. The one place: everything not listed here acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from burnish.config.device import computes_on_cpu
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
    "an engine server": "引擎服务模式",
    "multi-turn": "多轮对话",
    "vision": "视觉模型",
    "the profiler": "性能分析",
    "the options work": "其余选项的实现",
    "LoRA": "LoRA",
    "the Megatron backend": "Megatron 后端",
    "offloading": "显存卸载",
    "mixed precision": "混合精度",
    "CUDA graphs": "CUDA graph",
    "the engine's next form": "内置引擎的下一阶段",
    "GPU kernels": "GPU 算子",
    "mixtures of experts": "混合专家模型",
    "quantised rollout": "量化推理",
    "importance correction": "重要性校正",
    "dynamic sampling": "动态采样",
    "exact KL": "精确 KL",
    "the reward managers": "奖励管理器",
    "the reward model": "奖励模型",
    "the code sandbox": "代码沙箱",
    "asynchronous training": "异步训练",
    "remote storage": "远程存储",
    "Ascend devices": "昇腾设备",
    "the sft command": "sft 命令",
    "the eval command": "eval 命令",
    "the generate command": "generate 命令",
}

_IN_CPU_MEMORY = Line("weights already live in CPU memory", "权重本来就在内存中")
_ONE_PROCESS = Line("one process shards and sends nothing", "单进程无需切分或传输")
_MEGATRON_ONLY = Line("only the Megatron backend reads it", "只有 Megatron 后端读取")
_NO_REWARD_MODEL = Line("there is no reward model (reward_model.enable)", "未启用奖励模型（reward_model.enable）")
_NO_GRAPHS = Line("CUDA graphs exist on GPUs only", "CUDA graph 仅存在于 GPU")
_FLOAT32 = Line("training on CPU is float32 throughout", "CPU 上全程使用 float32 训练")


def _megatron(*patterns: str) -> tuple[Pending, ...]:
    return tuple(Pending(one, "the Megatron backend", "without megatron", _MEGATRON_ONLY) for one in patterns)


def _reward_model(*names: str) -> tuple[Pending, ...]:
    return tuple(
        Pending(f"reward_model.{name}", "the reward model", "without reward model", _NO_REWARD_MODEL) for name in names
    )


def _alone(*patterns: str) -> tuple[Pending, ...]:
    return tuple(Pending(one, "several processes", "alone", _ONE_PROCESS) for one in patterns)


PENDING: tuple[Pending, ...] = (
    # values
    Pending("*strategy=megatron", "the Megatron backend"),
    Pending("actor_rollout_ref.rollout.name=vllm", "foreign engines"),
    Pending("actor_rollout_ref.rollout.name=sglang", "foreign engines"),
    Pending("actor_rollout_ref.rollout.name=trtllm", "foreign engines"),
    Pending("actor_rollout_ref.hybrid_engine=false", "asynchronous training"),
    Pending("actor_rollout_ref.actor.kl_loss_type=full", "exact KL"),
    Pending("actor_rollout_ref.actor.kl_loss_type=full+", "exact KL"),
    Pending("algorithm.kl_penalty=full", "exact KL"),
    Pending("algorithm.kl_penalty=full+", "exact KL"),
    Pending("reward_model.reward_manager=batch", "the reward managers"),
    Pending("reward_model.reward_manager=prime", "the reward managers"),
    Pending("reward_model.reward_manager=dapo", "the reward managers"),
    Pending("trainer.device=npu", "Ascend devices"),
    # data
    Pending("data.gen_batch_size", "dynamic sampling"),
    Pending("data.tool_config_path", "multi-turn"),
    Pending("data.image_key", "vision"),
    Pending("data.video_key", "vision"),
    Pending("data.image_patch_size", "vision"),
    Pending("data.return_multi_modal_inputs", "vision"),
    Pending("data.sampler.*", "the options work"),
    Pending("data.datagen.*", "the options work"),
    Pending("*.use_shm", "the options work"),
    # model
    Pending("actor_rollout_ref.model.hf_config_path", "the options work"),
    Pending("actor_rollout_ref.model.custom_chat_template", "the options work"),
    Pending("actor_rollout_ref.model.torch_dtype", "mixed precision"),
    Pending(
        "*.model.enable_activation_offload",
        "offloading",
        "cpu",
        Line("activations already live in CPU memory", "激活值本来就在内存中"),
    ),
    Pending("*.model.lora*", "LoRA"),
    Pending("*.model.target_modules", "LoRA"),
    Pending("*.model.exclude_modules", "LoRA"),
    Pending("*.model.use_liger", "GPU kernels"),
    Pending(
        "*.fused_kernel_options.impl_backend",
        "GPU kernels",
        "cpu",
        Line("Triton runs on GPUs only", "Triton 只能在 GPU 上运行"),
    ),
    Pending("*.use_torch_compile", "GPU kernels"),
    # roles
    Pending("actor_rollout_ref.actor.tis_imp_ratio_cap", "importance correction"),
    Pending("actor_rollout_ref.actor.freeze_vision_tower", "vision"),
    Pending("actor_rollout_ref.actor.router_replay.*", "mixtures of experts"),
    Pending("actor_rollout_ref.ref.model", "the options work"),
    Pending("*.ulysses_sequence_parallel_size", "several processes"),
    Pending("*.checkpoint.async_save", "the options work"),
    *_megatron(
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
    Pending("*.fsdp_config.param_offload", "offloading", "cpu", _IN_CPU_MEMORY),
    Pending("*.fsdp_config.optimizer_offload", "offloading", "cpu", _IN_CPU_MEMORY),
    Pending("*.fsdp_config.offload_policy", "offloading", "cpu", _IN_CPU_MEMORY),
    Pending("*.fsdp_config.model_dtype", "mixed precision"),
    Pending("*.fsdp_config.mixed_precision.*", "mixed precision", "cpu", _FLOAT32),
    *_alone(
        "*.fsdp_config.wrap_policy.*",
        "*.fsdp_config.reshard_after_forward",
        "*.fsdp_config.fsdp_size",
        "*.fsdp_config.forward_prefetch",
        "*nccl_timeout",
        "actor_rollout_ref.rollout.update_weights_bucket_megabytes",
        "actor_rollout_ref.rollout.checkpoint_engine.*",
        "trainer.ray_wait_register_center_timeout",
        "ray_init.*",
        "transfer_queue.*",
    ),
    # engine
    Pending("actor_rollout_ref.rollout.mode", "an engine server"),
    Pending("actor_rollout_ref.rollout.*_parallel_size", "several processes"),
    Pending("actor_rollout_ref.rollout.enforce_eager", "CUDA graphs", "cpu", _NO_GRAPHS),
    Pending("actor_rollout_ref.rollout.cudagraph_capture_sizes", "CUDA graphs", "cpu", _NO_GRAPHS),
    Pending("actor_rollout_ref.rollout.enable_chunked_prefill", "the engine's next form"),
    Pending("actor_rollout_ref.rollout.enable_prefix_caching", "the engine's next form"),
    Pending("actor_rollout_ref.rollout.use_fire_sampling", "the options work"),
    Pending("actor_rollout_ref.rollout.over_sample_rate", "dynamic sampling"),
    Pending(
        "actor_rollout_ref.rollout.multi_stage_wake_up",
        "offloading",
        "cpu",
        Line("nothing sleeps on CPU", "CPU 上没有休眠"),
    ),
    Pending("actor_rollout_ref.rollout.enable_rollout_routing_replay", "mixtures of experts"),
    Pending("actor_rollout_ref.rollout.layered_summon", "LoRA"),
    Pending("actor_rollout_ref.rollout.quantization", "quantised rollout"),
    Pending("actor_rollout_ref.rollout.use_block_quant_rollout", "quantised rollout"),
    Pending("actor_rollout_ref.rollout.skip_rollout", "the options work"),
    Pending("actor_rollout_ref.rollout.skip_dump_dir", "the options work"),
    Pending("actor_rollout_ref.rollout.multi_turn.*", "multi-turn"),
    Pending("actor_rollout_ref.rollout.agent.*", "multi-turn"),
    Pending("actor_rollout_ref.rollout.trace.*", "multi-turn"),
    Pending("actor_rollout_ref.rollout.prometheus.*", "foreign engines"),
    # rewards
    Pending("reward_model.enable", "the reward model"),
    Pending("reward_model.reward_kwargs", "the reward managers"),
    Pending("reward_model.overlong_buffer.*", "the reward managers"),
    Pending("reward_model.sandbox_fusion.*", "the code sandbox"),
    *_reward_model("micro_batch_size*", "max_length", "use_dynamic_bsz", "forward_max_token_len_per_gpu"),
    *_reward_model("enable_resource_pool", "nnodes", "n_gpus_per_node", "rollout", "model.*"),
    # algorithm
    Pending("algorithm.use_pf_ppo", "the options work"),
    Pending("algorithm.pf_ppo.*", "the options work"),
    Pending("algorithm.filter_groups.*", "dynamic sampling"),
    Pending("algorithm.rollout_correction.*", "importance correction"),
    # the run
    Pending("trainer.nnodes", "several processes"),
    Pending("trainer.n_gpus_per_node", "several processes"),
    Pending("trainer.esi_redundant_time", "the options work"),
    Pending("trainer.default_hdfs_dir", "remote storage"),
    Pending("trainer.del_local_ckpt_after_load", "remote storage"),
    Pending("rollout.*", "asynchronous training"),
    Pending("async_training.*", "asynchronous training"),
    Pending("*.profiler.*", "the profiler"),
    Pending("global_profiler.*", "the profiler"),
    Pending("trainer.profile_steps", "the profiler"),
    Pending("trainer.*_nsight_options.*", "the profiler"),
    Pending("trainer.npu_profile.*", "the profiler"),
)

_FUSED = Line("log-probs always come from the fused head", "对数概率始终由融合输出头计算")
_NOT_SELECTED = Line("only that engine reads it, and it is not selected", "只有对应引擎读取，而它未被选用")

# Keys that can have no effect here, and why.
INERT: dict[str, Line] = {
    "*.use_remove_padding": Line("nothing is ever padded", "数据从不填充"),
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
    "actor_rollout_ref.rollout.load_format": Line("the first weight sync overwrites it", "首次权重同步会覆盖它"),
    "actor_rollout_ref.rollout.trust_remote_code": Line(
        "model.trust_remote_code decides", "由 model.trust_remote_code 决定"
    ),
    "actor_rollout_ref.rollout.enable_sleep_mode": Line("free_cache_engine decides", "由 free_cache_engine 决定"),
    "actor_rollout_ref.rollout.skip_tokenizer_init": Line(
        "the engine takes and gives token ids", "引擎只收发 token id"
    ),
    "actor_rollout_ref.rollout.engine_kwargs.*": _NOT_SELECTED,
    "critic.rollout_n": Line("rollout.n holds for all roles", "所有角色都使用 rollout.n"),
    "critic.model.tokenizer_path": Line("the critic reads the policy's tokens", "critic 直接读取策略的 token"),
    "data.dataloader_num_workers": Line("rows are read without a loader process", "读取数据不使用加载进程"),
    "reward_model.launch_reward_fn_async": Line("rewards always overlap generation", "奖励计算始终与生成重叠"),
    "reward_model.use_reward_loop": Line("rewards always overlap generation", "奖励计算始终与生成重叠"),
    "trainer.balance_batch": Line("one process has nothing to balance", "单进程无需均衡"),
    "trainer.use_legacy_worker_impl": Line("there is one implementation", "只有一种实现"),
}

# When a pending key cannot matter anyway.
CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "cpu": lambda cfg: computes_on_cpu(cfg.trainer.device),
    "alone": lambda cfg: cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node == 1,
    "without megatron": lambda cfg: cfg.actor_rollout_ref.actor.strategy != "megatron",
    "without reward model": lambda cfg: not cfg.reward_model.enable,
}
