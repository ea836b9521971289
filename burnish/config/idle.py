"""Keys that have no effect in some runs: the condition, and the reason that the run reports at start-up."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config import conditions as when
from burnish.config.conditions import Condition
from burnish.config.idle_algorithm import ALGORITHM_ROWS
from burnish.config.megatron_status import FROZEN, ONE_STAGE, STAGE_FIELDS
from burnish.config.names import Line
from burnish.config.optim import ARGUMENTS
from burnish.config.pending import (
    MEGATRON_ONLY,
    NO_CUDA_GRAPHS,
    NO_REWARD_MODEL,
    NOT_SELECTED,
    ONE_PROCESS,
    SHARED_DEVICES,
)
from burnish.config.profiled import profiles_no_role, profiles_no_step, without_tool
from burnish.config.ranks import is_single_process


@dataclass(frozen=True)
class Idle:
    """Keys that have no effect in runs where `condition` holds."""

    condition: Condition
    reason: Line
    patterns: tuple[str, ...]


_ON_CPU = Line("everything already lives in CPU memory", "一切本来就在 CPU 内存中")
_CUSTOM_CLASS = Line(
    "the class of reward_model.model.custom_cls loads and scores by itself", "custom_cls 指定的类自行加载与打分"
)
_NO_SERVERS = Line("no reward server is used (reward.remote_url)", "未使用奖励服务（reward.remote_url）")
_NO_NODES = Line(
    "responses are scored on this machine (ray_init.reward_nodes=0)", "回答在本机打分（ray_init.reward_nodes=0）"
)
_NO_FILTER = Line(
    "groups are not filtered (algorithm.filter_groups.enable=false)", "未启用分组过滤（algorithm.filter_groups.enable）"
)
_NO_OVERLONG_PENALTY = Line(
    "there is no overlong penalty (reward_model.overlong_buffer.enable=false)",
    "未启用超长惩罚（reward_model.overlong_buffer.enable）",
)
_NO_PROFILED_STEP = Line("no step is profiled (trainer.profile_steps)", "没有要分析的步（trainer.profile_steps）")
_NO_PROFILED_ROLE = Line(
    "no rank is profiled (all_ranks or ranks of a role's profiler)",
    "没有要分析的进程（各角色 profiler 的 all_ranks 或 ranks）",
)
_OTHER_PROFILER = Line(
    "another profiling tool is used (global_profiler.tool)", "使用的是其他分析工具（global_profiler.tool）"
)
_NO_TRACES = Line("conversations are not traced (rollout.trace.backend)", "未记录对话轨迹（rollout.trace.backend）")
_NO_PROMETHEUS = Line("rollout.prometheus.enable is false", "未启用 rollout.prometheus.enable")
_NO_ENDPOINT = Line("there is no endpoint (trainer.metrics_port)", "没有指标端口（trainer.metrics_port）")
_NOT_SKIPPED = Line("responses are generated (rollout.skip_rollout=false)", "回答由引擎生成（rollout.skip_rollout）")
_NO_PAGED_CACHE = Line("transformers' generate has no paged KV cache", "transformers 的 generate 没有分页 KV 缓存")
_VLLM_MODE_ONLY = Line(
    "only vllm has both modes; rewards always overlap generation", "只有 vllm 有两种模式；奖励计算始终与生成重叠"
)
_VLLM_BATCHING = Line("vLLM decides how to batch responses", "vLLM 自行决定如何组批")
_SGLANG_PREFIX_CACHE = Line(
    "SGLang shares a prompt among its responses through its prefix cache, which stays on",
    "SGLang 通过前缀缓存在多个回答间共享提示，该缓存始终开启",
)
_DRAFTS_BUILTIN = Line("only the built-in engine drafts from other responses", "只有内置引擎以其他回答作为草稿")
_DRAFTS_INVARIANT = Line(
    "with rollout.invariant=true on a GPU no drafts are verified", "在 GPU 上 rollout.invariant=true 时不验证草稿"
)
_DEVICE_LOOP_ONLY = Line(
    "decoding runs token by token on a CPU, and not in the loop on the device",
    "在 CPU 上逐 token 解码，不使用设备上的循环",
)
_NO_DRAFTS = Line(
    "speculative decoding is off (rollout.speculative.enable)", "未启用推测解码（rollout.speculative.enable）"
)
_SGLANG_CPU_MEMORY = Line("SGLang cannot release its memory on a CPU", "SGLang 在 CPU 上无法释放内存")
_VLLM_CPU_MEMORY = Line("vLLM cannot release its memory on a CPU", "vLLM 在 CPU 上无法释放内存")
_SERVER_RUNNING = Line(
    "the server of engine_kwargs.sglang.base_url is already running", "engine_kwargs.sglang.base_url 指定的服务已在运行"
)
_NO_PF_PPO = Line("policy filtration is off (algorithm.use_pf_ppo=false)", "未启用策略过滤（algorithm.use_pf_ppo）")
_CORRECTION = "algorithm.rollout_correction"
_NO_WEIGHTS = Line(
    f"there are no importance weights ({_CORRECTION}.rollout_is=null)", f"未启用重要性权重（{_CORRECTION}.rollout_is）"
)
_NO_REJECTION = Line(
    f"rejection sampling is off ({_CORRECTION}.rollout_rs=null)", f"未启用拒绝采样（{_CORRECTION}.rollout_rs）"
)
_NO_ADAPTER = Line("no adapter is trained (lora_rank=0)", "未训练适配器（lora_rank=0）")
_ADAPTER_REFERENCE = Line(
    "with LoRA the reference is the policy with its adapters disabled", "使用 LoRA 时参考模型就是关闭适配器的策略"
)
_NO_TRITON = Line("Triton runs on GPUs only", "Triton 只能在 GPU 上运行")
_SYNCHRONOUS = Line(
    "generation and training alternate (async_training.mode=sync)", "生成与训练交替进行（async_training.mode=sync）"
)
_ONE_STEP_OFF = Line("one_step_off always generates exactly one batch ahead", "one_step_off 总是恰好提前生成一个批次")
_RECOMPUTED = Line(
    "the trainer computes them in any case (async_training.use_rollout_log_probs=false)",
    "训练端总会计算（async_training.use_rollout_log_probs=false）",
)
_BATCH_SIZE = Line(
    "data.train_batch_size sets the number of prompts per step", "每步的提示数由 data.train_batch_size 决定"
)
_HF_UNINTERRUPTED = Line("the hf engine cannot interrupt a batch", "hf 引擎无法中断已开始的批次")
_NO_RECOMPUTE = Line(
    "activations are not recomputed (enable_gradient_checkpointing=false)",
    "未启用重算（enable_gradient_checkpointing）",
)
_PLANNED = Line(
    "the memory plan chooses the number of layers (recompute.method=auto)",
    "层数由内存规划决定（recompute.method=auto）",
)
_SAME_BACKEND = Line("fsdp and fsdp2 are the same backend", "fsdp 与 fsdp2 是同一后端")
_ENGINE_IN_PROCESS = Line("the engine runs in the policy's process", "引擎与策略在同一进程")
_VLLM_RUNNING = Line(
    "the server of engine_kwargs.vllm.base_url is already running", "engine_kwargs.vllm.base_url 指定的服务已在运行"
)
_ENGINE_PER_DEVICE = Line(
    "every device of `burnish generate` has a whole engine, and prompts are distributed over them",
    "`burnish generate` 的每个设备各有一个完整的引擎，提示在它们之间分配",
)
_HF_ON_ONE_DEVICE = Line(
    "every device has a whole hf engine, and prompts are distributed over them",
    "每个设备各有一个完整的 hf 引擎，提示在它们之间分配",
)
_TENSOR_RANKS_ONLY = Line(
    "prompts are distributed over the built-in engines, and each divides all its layers and experts over its tensor"
    " ranks (tensor_model_parallel_size)",
    "内置引擎之间分配提示；每个引擎把所有层（含专家）切分到其张量并行进程（tensor_model_parallel_size）",
)
_TENSOR_RANKS_EAGER = Line(
    "built-in engines on several ranks (tensor_model_parallel_size) decode token by token, without CUDA graphs",
    "跨多个进程的内置引擎（tensor_model_parallel_size）逐 token 解码，不使用 CUDA graph",
)
_VLLM_SERVER = Line(
    "a vLLM engine that uses the devices of several ranks, or data parallelism, is a server in any mode",
    "使用多个进程的设备或数据并行的 vLLM 引擎总以服务方式运行",
)
_NO_REWARD_POOL = Line(
    "the reward model shares the policy's devices (reward_model.enable_resource_pool=false)",
    "奖励模型与策略共用设备（reward_model.enable_resource_pool）",
)
_CONTEXT_PARALLEL = Line(
    "with strategy=megatron, megatron.context_parallel_size decides",
    "strategy=megatron 时由 megatron.context_parallel_size 决定",
)

_ONE_RANK = Line("one process holds this model as a whole", "该模型完整地位于一个进程")
_NOT_ROUNDED = Line(
    "the engine's weights are not rounded (rollout.quantization)", "引擎的权重未量化（rollout.quantization）"
)
_NO_BALANCING_LOSS = Line(
    "experts are balanced without a loss (moe_router_load_balancing_type)",
    "专家不用损失来均衡负载（moe_router_load_balancing_type）",
)

_OTHER_OPTIMIZER = Line(
    "it is an argument of another optimizer (optim.optimizer)", "它是另一种优化器的参数（optim.optimizer）"
)
# Optimizer -> arguments that it does not have.
_OTHER_ARGUMENTS = {
    "adam": tuple(f"override_optimizer_config.{name}" for name in ARGUMENTS["sgd"]),
    "sgd": ("betas", *(f"override_optimizer_config.{name}" for name in (*ARGUMENTS["adam"], "adam_beta*"))),
}
_SCORE_WEIGHTS = ("reward_model.normalize", "reward.model_weight", "reward.function_weight")
_REWARD_MODEL_BATCHES = (
    "reward_model.micro_batch_size*",
    "reward_model.max_length",
    "reward_model.use_dynamic_bsz",
    "reward_model.forward_max_token_len_per_gpu",
)
_REWARD_MODEL_LOADING = (
    "reward_model.model.input_tokenizer",
    "reward_model.model.external_lib",
    "reward_model.model.trust_remote_code",
    "reward_model.model.use_shm",
    "reward_model.load_weight",
)
_REWARD_POOL = ("reward_model.nnodes", "reward_model.n_gpus_per_node")
_REMOTE_REWARD = ("reward.remote_timeout", "reward.remote_retries", "reward.remote_wait")
_PAGED_CACHE = (
    *("enable_chunked_prefill", "enable_prefix_caching", "max_num_batched_tokens"),
    *("gpu_memory_utilization", "invariant", "free_cache_engine"),
)
_OTHER_SIZES = ("data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size")
_CUDA_GRAPHS = ("enforce_eager", "cudagraph_capture_sizes")
_SERVER_START = (
    *("dtype", "gpu_memory_utilization", "max_num_batched_tokens", "enable_chunked_prefill", "invariant"),
    *("enforce_eager", "cudagraph_capture_sizes", "*_parallel_size"),
)
_OFFLOADS = (
    "*model.enable_activation_offload",
    *("*.fsdp_config.param_offload", "*.fsdp_config.optimizer_offload", "*.fsdp_config.offload_policy"),
    *("*.megatron.param_offload", "*.megatron.optimizer_offload"),
)
_ADAPTER = ("lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "lora.*")
_ASYNC = ("use_rollout_log_probs", "compute_prox_log_prob")
_QUEUE = ("queue_size", "staleness_threshold", "trigger_parameter_sync_step", "require_batches", "partial_rollout")
_ASYNC_POOL = ("total_rollout_steps", "total_epochs", "test_freq")
_SHARDING = (
    *("wrap_policy.*", "reshard_after_forward", "fsdp_size", "forward_prefetch"),
    "mixed_precision.reduce_dtype",
)
_SHARDED = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.model.fsdp_config")
_MULTI_PROCESS = ("*nccl_timeout", "trainer.balance_batch")
_LAUNCH = ("trainer.ray_wait_register_center_timeout", "trainer.launcher", "ray_init.*")
_ENGINE_POOL = (
    "actor_rollout_ref.hybrid_engine",
    *("rollout.nnodes", "rollout.n_gpus_per_node"),
    "actor_rollout_ref.rollout.checkpoint_engine.backend",
)
_NSYS = ("trainer.controller_nsight_options.*", "trainer.worker_nsight_options.*")
_NPU_PROFILER = ("*.profiler.tool_config.npu.*", "trainer.npu_profile.*")
_MEMORY_PROFILER = ("*.profiler.tool_config.torch_memory.*", "global_profiler.global_tool_config.torch_memory.*")
_PROFILERS = ("*.profiler.*", "global_profiler.*", *_NSYS, *_NPU_PROFILER)
_STAGES = (
    *("megatron.virtual_pipeline_model_parallel_size", "megatron.pipeline_schedule"),
    *(f"megatron.override_transformer_config.{name}" for name in STAGE_FIELDS),
)
_MEGATRON = ("megatron.*", "optim.lr_warmup_init", "optim.lr_decay_*", "optim.min_lr", "optim.lr_wsd_*")


def _keys(section: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names)


def _engine_rows(section: str) -> tuple[Idle, ...]:
    """Keys of the engine's section, which `train` and `generate` have in different places."""
    return (
        Idle(when.uses_running_sglang, _SERVER_RUNNING, _keys(section, _SERVER_START)),
        Idle(when.uses_hf_engine, _NO_PAGED_CACHE, _keys(section, _PAGED_CACHE)),
        Idle(when.generates_over_ranks, _ENGINE_PER_DEVICE, (f"{section}.*_parallel_size",)),
        Idle(when.uses_running_vllm, _VLLM_RUNNING, (f"{section}.*_parallel_size",)),
        Idle(when.uses_hf_engine, _HF_ON_ONE_DEVICE, (f"{section}.*_parallel_size",)),
        Idle(when.uses_builtin_engine, _TENSOR_RANKS_ONLY, _keys(section, _OTHER_SIZES)),
        Idle(when.has_one_builtin_engine, ONE_PROCESS, (f"{section}.tensor_model_parallel_size",)),
        Idle(when.without_cuda_graphs, NO_CUDA_GRAPHS, _keys(section, _CUDA_GRAPHS)),
        Idle(when.uses_vllm, _VLLM_BATCHING, (f"{section}.invariant",)),
        Idle(when.has_builtin_tensor_ranks, _TENSOR_RANKS_EAGER, _keys(section, _CUDA_GRAPHS)),
        Idle(when.without_builtin_engine, NOT_SELECTED, (f"{section}.engine_kwargs.builtin*",)),
        Idle(when.without_device_loop, _DEVICE_LOOP_ONLY, (f"{section}.engine_kwargs.builtin*",)),
        Idle(when.without_vllm, NOT_SELECTED, (f"{section}.engine_kwargs.vllm*",)),
        Idle(when.needs_vllm_server, _VLLM_SERVER, (f"{section}.mode",)),
        Idle(when.without_vllm, _VLLM_MODE_ONLY, (f"{section}.mode",)),
        Idle(when.without_sglang, NOT_SELECTED, (f"{section}.engine_kwargs.sglang*",)),
        Idle(when.uses_sglang, _SGLANG_PREFIX_CACHE, (f"{section}.enable_prefix_caching",)),
        Idle(when.without_builtin_engine, _DRAFTS_BUILTIN, (f"{section}.speculative.*",)),
        Idle(when.uses_invariant_loop, _DRAFTS_INVARIANT, (f"{section}.speculative.*",)),
        Idle(
            when.without_drafts, _NO_DRAFTS, _keys(f"{section}.speculative", ("num_speculative_tokens", "max_num_seqs"))
        ),
    )


# The first row that matches a key and whose condition holds gives the reason.
IDLE: dict[str, tuple[Idle, ...]] = {
    "generate": (
        *_engine_rows("rollout"),
        Idle(is_single_process, ONE_PROCESS, _MULTI_PROCESS),
        Idle(when.starts_no_processes, ONE_PROCESS, _LAUNCH),
    ),
    "train": (
        Idle(
            when.without_reward_model,
            NO_REWARD_MODEL,
            (
                *_SCORE_WEIGHTS,
                *("reward_model.model.path", "reward_model.model.custom_cls.*"),
                *_REWARD_MODEL_BATCHES,
                *_REWARD_MODEL_LOADING,
                *("reward_model.enable_resource_pool", *_REWARD_POOL),
            ),
        ),
        *(Idle(condition, reason, patterns) for condition, reason, patterns in ALGORITHM_ROWS),
        Idle(when.uses_custom_reward_model, _CUSTOM_CLASS, (*_REWARD_MODEL_BATCHES, *_REWARD_MODEL_LOADING)),
        *_engine_rows("actor_rollout_ref.rollout"),
        Idle(when.uses_vllm_on_cpu, _VLLM_CPU_MEMORY, ("actor_rollout_ref.rollout.free_cache_engine",)),
        Idle(when.starts_sglang_on_cpu, _SGLANG_CPU_MEMORY, ("actor_rollout_ref.rollout.free_cache_engine",)),
        Idle(when.without_group_filter, _NO_FILTER, ("algorithm.filter_groups.*", "data.gen_batch_size")),
        Idle(when.without_overlong_penalty, _NO_OVERLONG_PENALTY, ("reward_model.overlong_buffer.*",)),
        Idle(
            when.without_traces,
            _NO_TRACES,
            _keys("actor_rollout_ref.rollout.trace", ("token2text", "max_samples_per_step_per_worker")),
        ),
        Idle(
            when.without_prometheus,
            _NO_PROMETHEUS,
            _keys("actor_rollout_ref.rollout.prometheus", ("port", "file", "served_model_name")),
        ),
        Idle(when.serves_no_metrics, _NO_ENDPOINT, ("trainer.metrics_host",)),
        Idle(profiles_no_step, _NO_PROFILED_STEP, _PROFILERS),
        Idle(profiles_no_role, _NO_PROFILED_ROLE, ("trainer.profile_steps", *_PROFILERS)),
        Idle(without_tool("nsys"), _OTHER_PROFILER, _NSYS),
        Idle(without_tool("npu"), _OTHER_PROFILER, _NPU_PROFILER),
        Idle(without_tool("torch"), _OTHER_PROFILER, ("*.profiler.tool_config.torch.*",)),
        Idle(without_tool("torch_memory"), _OTHER_PROFILER, _MEMORY_PROFILER),
        Idle(when.without_quantization, _NOT_ROUNDED, ("actor_rollout_ref.rollout.use_block_quant_rollout",)),
        Idle(when.generates_responses, _NOT_SKIPPED, ("actor_rollout_ref.rollout.skip_dump_dir",)),
        Idle(when.without_pf_ppo, _NO_PF_PPO, ("algorithm.pf_ppo.*",)),
        Idle(
            when.without_importance_weights,
            _NO_WEIGHTS,
            (f"{_CORRECTION}.rollout_is_threshold*", f"{_CORRECTION}.rollout_is_batch_normalize"),
        ),
        Idle(when.without_rejection_sampling, _NO_REJECTION, (f"{_CORRECTION}.rollout_rs_threshold*",)),
        Idle(when.no_role_uses_megatron, _SAME_BACKEND, ("*.strategy",)),
        *(
            Idle(when.role_without_megatron(section), MEGATRON_ONLY, _keys(section, _MEGATRON))
            for section in when.MEGATRON_ROLES
        ),
        *(
            Idle(when.role_has_one_stage(section), ONE_STAGE, _keys(section, _STAGES))
            for section in when.MEGATRON_ROLES
        ),
        *(
            Idle(when.role_has_one_stage(section), FROZEN, (f"{section}.megatron.override_transformer_config",))
            for section in ("actor_rollout_ref.ref", "reward_model")
        ),
        *(
            Idle(when.uses_optimizer(section, name), _OTHER_OPTIMIZER, _keys(f"{section}.optim", patterns))
            for section in ("actor_rollout_ref.actor", "critic")
            for name, patterns in _OTHER_ARGUMENTS.items()
        ),
        *(
            Idle(
                when.role_balances_without_loss(section),
                _NO_BALANCING_LOSS,
                (f"{section}.megatron.override_transformer_config.moe_aux_loss_coeff",),
            )
            for section in ("actor_rollout_ref.actor", "critic")
        ),
        *(
            Idle(when.role_uses_megatron(section), _CONTEXT_PARALLEL, (f"{section}.ulysses_sequence_parallel_size",))
            for section in when.MEGATRON_ROLES
        ),
        *(Idle(when.has_one_training_rank, _ONE_RANK, _keys(section, _SHARDING)) for section in _SHARDED),
        Idle(when.reward_model_has_one_rank, _ONE_RANK, _keys("reward_model.model.fsdp_config", _SHARDING)),
        Idle(is_single_process, ONE_PROCESS, _MULTI_PROCESS),
        Idle(when.starts_no_processes, ONE_PROCESS, _LAUNCH),
        Idle(when.engines_share_devices, SHARED_DEVICES, _ENGINE_POOL),
        Idle(
            when.shares_weights_in_process,
            _ENGINE_IN_PROCESS,
            ("actor_rollout_ref.rollout.update_weights_bucket_megabytes",),
        ),
        Idle(when.reward_model_shares_devices, _NO_REWARD_POOL, _REWARD_POOL),
        Idle(when.on_cpu, _ON_CPU, _OFFLOADS),
        Idle(when.on_cpu, _NO_TRITON, ("*.fused_kernel_options.impl_backend",)),
        Idle(
            when.reference_shares_policy,
            _ADAPTER_REFERENCE,
            ("actor_rollout_ref.ref.fsdp_config.*", "actor_rollout_ref.ref.use_torch_compile"),
        ),
        Idle(when.policy_without_adapter, _NO_ADAPTER, _keys("actor_rollout_ref.model", _ADAPTER)),
        Idle(when.critic_without_adapter, _NO_ADAPTER, _keys("critic.model", _ADAPTER)),
        Idle(when.policy_without_checkpointing, _NO_RECOMPUTE, ("actor_rollout_ref.model.recompute.*",)),
        Idle(when.critic_without_checkpointing, _NO_RECOMPUTE, ("critic.model.recompute.*",)),
        Idle(when.policy_plans_recompute, _PLANNED, ("actor_rollout_ref.model.recompute.num_layers",)),
        Idle(when.critic_plans_recompute, _PLANNED, ("critic.model.recompute.num_layers",)),
        Idle(when.without_reward_servers, _NO_SERVERS, _REMOTE_REWARD),
        Idle(
            when.is_synchronous,
            _SYNCHRONOUS,
            (*_keys("async_training", (*_ASYNC, *_QUEUE)), *_keys("rollout", _ASYNC_POOL)),
        ),
        Idle(when.is_one_step_off, _ONE_STEP_OFF, _keys("async_training", _QUEUE)),
        Idle(when.recomputes_old_log_probs, _RECOMPUTED, ("async_training.compute_prox_log_prob",)),
        Idle(when.queue_counts_prompts, _BATCH_SIZE, ("async_training.require_batches",)),
        Idle(when.uses_hf_engine, _HF_UNINTERRUPTED, ("async_training.partial_rollout",)),
    ),
    "sft": (
        Idle(is_single_process, ONE_PROCESS, _MULTI_PROCESS),
        Idle(when.starts_no_processes, ONE_PROCESS, _LAUNCH),
        Idle(when.on_cpu, _ON_CPU, (*_OFFLOADS, "*.fsdp_config.cpu_offload", "*.fsdp_config.offload_params")),
        Idle(when.sft_without_adapter, _NO_ADAPTER, _keys("model", _ADAPTER)),
        Idle(when.sft_without_checkpointing, _NO_RECOMPUTE, ("model.recompute.*",)),
        Idle(when.sft_plans_recompute, _PLANNED, ("model.recompute.num_layers",)),
        Idle(when.sft_profiles_no_step, _NO_PROFILED_STEP, ("profiler.*",)),
        Idle(when.sft_profiles_otherwise, _OTHER_PROFILER, ("profiler.contents",)),
    ),
    "eval": (
        Idle(when.without_reward_servers, _NO_SERVERS, _REMOTE_REWARD),
        Idle(when.scores_on_this_machine, _NO_NODES, ("ray_init.*",)),
    ),
}
