"""Keys of `burnish train` that are not supported yet (pending), and those that never have an effect (inert)."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config.conditions import Condition
from burnish.config.names import Line


@dataclass(frozen=True)
class Pending:
    """A key, or one value of it, that is not supported yet."""

    pattern: str  # * matches any text; "key=value" is one value
    feature: Line  # the missing feature
    inert_if: Condition | None = None  # when the key has no effect in any case, and is accepted
    reason: Line | None = None  # why it has none then
    supported_if: Condition | None = None  # when the key already acts
    supported: Line | None = None  # that condition in words


# Features that are not supported yet.
MEGATRON_CORE = Line("Megatron-Core", "Megatron-Core")
MOE_OPTIONS = Line("MoE options", "混合专家模型的选项")
ASCEND = Line("Ascend devices", "昇腾设备")
FEATURES = (MEGATRON_CORE, MOE_OPTIONS, ASCEND)

ONE_PROCESS = Line("the run has one process", "只有一个进程")
SHARED_DEVICES = Line(
    "the engines share the policy's devices (hybrid_engine, rollout.n_gpus_per_node)",
    "引擎与策略共用设备（hybrid_engine、rollout.n_gpus_per_node）",
)
MEGATRON_ONLY = Line("only used with strategy=megatron", "仅在 strategy=megatron 时使用")
NO_REWARD_MODEL = Line("no reward model is used (reward_model.enable=false)", "未启用奖励模型（reward_model.enable）")
NO_CUDA_GRAPHS = Line(
    "only external engines, and the built-in engine on a GPU, use CUDA graphs",
    "只有 GPU 上的内置引擎和外部引擎使用 CUDA graph",
)


PENDING: tuple[Pending, ...] = ()

NOT_SELECTED = Line("its engine is not selected (rollout.name)", "未选用对应的引擎（rollout.name）")

_FUSED = Line("log-probs always come from the fused head", "对数概率始终由融合输出头计算")
_NO_OPTIMIZER = Line("this role is not trained and has no optimizer", "该角色不训练，没有优化器")
_NO_GRADIENTS = Line("this role is not trained and has no gradients to reduce", "该角色不训练，没有需要归约的梯度")
_COMPUTE_DTYPE = Line("a frozen reward model is stored in its compute dtype", "冻结的奖励模型以其计算类型保存")
_REWARDS_OVERLAP = Line("rewards always overlap generation", "奖励计算始终与生成重叠")

_CHOICES_TRAVEL = Line(
    "recorded choices of experts travel with the batch, not in files", "记录的专家选择随批次传递，不写入文件"
)
_NO_UPDATES = Line("this role is not trained and has no mini-batches", "该角色不训练，没有 mini-batch")

# Keys that never have an effect, and why.
INERT: dict[str, Line] = {
    **{
        f"{role}.profiler.tool_config.torch.step_{end}": _NO_UPDATES
        for role in ("actor_rollout_ref.ref", "actor_rollout_ref.rollout", "reward_model")
        for end in ("start", "end")
    },
    "actor_rollout_ref.actor.router_replay.record_file": _CHOICES_TRAVEL,
    "actor_rollout_ref.actor.router_replay.replay_file": _CHOICES_TRAVEL,
    "*.model.lora.merge": Line("the engine always receives merged weights", "引擎得到的始终是合并后的权重"),
    "actor_rollout_ref.rollout.layered_summon": Line(
        "weights are always gathered, merged and sent one by one", "权重始终逐个收集、合并并发送"
    ),
    "actor_rollout_ref.rollout.agent.num_workers": Line(
        "all agents run in one event loop, and their blocking functions in threads",
        "所有智能体运行在同一事件循环中，其阻塞函数在线程中运行",
    ),
    "actor_rollout_ref.rollout.multi_stage_wake_up": Line(
        "weights are always synchronized first; the KV cache is allocated at the first request",
        "总是先同步权重，收到首个请求时才分配 KV 缓存",
    ),
    "actor_rollout_ref.ref.fsdp_config.optimizer_offload": _NO_OPTIMIZER,
    "actor_rollout_ref.ref.fsdp_config.mixed_precision.reduce_dtype": _NO_GRADIENTS,
    "reward_model.model.fsdp_config.optimizer_offload": _NO_OPTIMIZER,
    "reward_model.model.fsdp_config.mixed_precision.reduce_dtype": _NO_GRADIENTS,
    "reward_model.model.fsdp_config.model_dtype": _COMPUTE_DTYPE,
    "reward_model.model.fsdp_config.mixed_precision.buffer_dtype": _COMPUTE_DTYPE,
    "*.use_remove_padding": Line("sequences are always packed, never padded", "序列始终打包，从不填充"),
    "reward_model.model.use_fused_kernels": Line(
        "a reward model has no language head to fuse", "奖励模型没有可融合的语言输出头"
    ),
    "*.use_fused_kernels": _FUSED,
    "*.entropy_from_logits_with_chunking": Line("the fused head always works in chunks", "融合输出头始终分块计算"),
    "*.entropy_checkpointing": Line("the fused head stores no logits", "融合输出头不保留 logits"),
    "actor_rollout_ref.actor.calculate_entropy": Line("the entropy is always logged", "熵始终会被记录"),
    "actor_rollout_ref.actor.calculate_sum_pi_squared": Line(
        "computed if algorithm.adv_estimator needs it", "algorithm.adv_estimator 需要时才计算"
    ),
    "actor_rollout_ref.actor.sum_pi_squared_checkpointing": Line("it is computed without gradients", "计算时不带梯度"),
    "*.fsdp_config.use_orig_params": Line("FSDP2 always keeps the original parameters", "FSDP2 始终保留原始参数"),
    "*.fsdp_config.forward_only": Line("the role decides whether it is trained", "由角色自身决定是否训练"),
    "actor_rollout_ref.rollout.calculate_log_probs": Line(
        "the engine always returns log-probs", "引擎始终返回对数概率"
    ),
    "actor_rollout_ref.rollout.detokenize": Line(
        "rewards need the text, so responses are always decoded", "奖励需要文本，因此回答始终会被解码"
    ),
    "actor_rollout_ref.rollout.load_format": Line("the first weight sync overwrites it", "首次权重同步会覆盖它"),
    "actor_rollout_ref.rollout.trust_remote_code": Line(
        "model.trust_remote_code decides", "由 model.trust_remote_code 决定"
    ),
    "actor_rollout_ref.rollout.enable_sleep_mode": Line("free_cache_engine decides", "由 free_cache_engine 决定"),
    "actor_rollout_ref.rollout.skip_tokenizer_init": Line(
        "the engine takes and returns token ids", "引擎只收发 token id"
    ),
    "actor_rollout_ref.rollout.engine_kwargs.trtllm*": NOT_SELECTED,
    "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs*": Line(
        "every weight sync forms a process group of its own, which needs no further arguments",
        "每次权重同步都新建进程组，不需要其他参数",
    ),
    "critic.rollout_n": Line("rollout.n applies to all roles", "所有角色都使用 rollout.n"),
    "critic.model.tokenizer_path": Line("the critic uses the policy's tokenizer", "critic 使用策略的分词器"),
    "data.image_patch_size": Line(
        "the model's processor has its own patch size, to which it aligns pictures",
        "模型的处理器自带 patch 大小，并据此对齐图片",
    ),
    "data.return_multi_modal_inputs": Line(
        "pictures are processed once, and engine and trainer get the same tensors",
        "图片只处理一次，引擎与训练端得到同样的张量",
    ),
    "data.dataloader_num_workers": Line("data is read without loader processes", "读取数据不使用加载进程"),
    "reward_model.launch_reward_fn_async": _REWARDS_OVERLAP,
    "reward_model.use_reward_loop": _REWARDS_OVERLAP,
    "transfer_queue.*": Line("the controller sends batches to the ranks directly", "批次由控制进程直接发送给各进程"),
    "trainer.use_legacy_worker_impl": Line("only one worker implementation exists", "只有一种 worker 实现"),
}
