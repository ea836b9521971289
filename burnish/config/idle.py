"""Keys that act, but not in some runs, and when: what a run then says at its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from burnish.config.adapters import wants_adapter
from burnish.config.async_rules import counts_prompts, has_queue, overlaps
from burnish.config.device import computes_on_cpu
from burnish.config.names import Line
from burnish.config.pending import (
    MEGATRON_ONLY,
    NO_GRAPHS,
    NO_REWARD_MODEL,
    NOT_SELECTED,
    ONE_PROCESS,
    REPLICAS,
    SHARES,
    WHOLE,
)
from burnish.config.ranks import alone, engine_pool, uses_megatron


@dataclass(frozen=True)
class Idle:
    """Keys that act, but not where the condition `when` holds."""

    when: str
    reason: Line
    patterns: tuple[str, ...]


_IN_CPU_MEMORY = Line("everything already lives in CPU memory", "一切本来就在 CPU 内存中")
_OWN_CLASS = Line(
    "the class of reward_model.model.custom_cls loads and reads as it likes", "custom_cls 指定的类自行加载与打分"
)
_MIXING = ("reward_model.normalize", "reward.model_weight", "reward.function_weight")
_READING = (
    "reward_model.micro_batch_size*",
    "reward_model.max_length",
    "reward_model.use_dynamic_bsz",
    "reward_model.forward_max_token_len_per_gpu",
)
_LOADING = (
    "reward_model.model.input_tokenizer",
    "reward_model.model.external_lib",
    "reward_model.model.trust_remote_code",
    "reward_model.model.use_shm",
)
_NO_SERVERS = Line("no reward server is asked (reward.remote_url)", "未使用奖励服务（reward.remote_url）")
_NO_FILTER = Line(
    "groups are not filtered (algorithm.filter_groups.enable)", "未启用分组过滤（algorithm.filter_groups.enable）"
)
_NO_BUFFER = Line(
    "there is no overlong penalty (reward_model.overlong_buffer.enable)",
    "未启用超长惩罚（reward_model.overlong_buffer.enable）",
)
_NO_SKIPPING = Line("responses are generated (rollout.skip_rollout)", "回答由引擎生成（rollout.skip_rollout）")
_NO_PAGES = Line(
    "transformers' generate has no paged cache to schedule", "transformers 的 generate 没有可调度的分页缓存"
)
_PAGED = (
    *("enable_chunked_prefill", "enable_prefix_caching", "max_num_batched_tokens"),
    *("gpu_memory_utilization", "invariant", "free_cache_engine"),
)
_OF_GRAPHS = ("enforce_eager", "cudagraph_capture_sizes")
_FOREIGN = ("vllm", "sglang")  # engines of other projects
_ONE_WAY = Line(
    "only vllm can be either; with every engine rewards overlap generation",
    "只有 vllm 两种方式皆可；任何引擎的奖励计算都与生成重叠",
)
_AS_IT_LIKES = Line("vLLM puts responses into batches as it likes", "vLLM 自行决定如何组批")
_SHARED_PROMPTS = Line(
    "SGLang shares a prompt among its responses through its prefix cache, which stays on",
    "SGLang 通过前缀缓存在多个回答间共享提示，该缓存始终开启",
)
_KEEPS_ALL = Line("SGLang gives no memory back on a CPU", "SGLang 在 CPU 上不会归还内存")
_RUNS_ALREADY = Line(
    "the server of engine_kwargs.sglang.base_url runs already", "engine_kwargs.sglang.base_url 指定的服务已在运行"
)
_OF_THE_START = (
    *("dtype", "gpu_memory_utilization", "max_num_batched_tokens", "enable_chunked_prefill", "invariant"),
    *("enforce_eager", "cudagraph_capture_sizes", "*_parallel_size"),
)
_FREES_NOTHING = Line("vLLM gives no memory back on a CPU", "vLLM 在 CPU 上不会归还内存")
_NO_PF_PPO = Line("responses are not drawn again (algorithm.use_pf_ppo)", "未启用策略过滤（algorithm.use_pf_ppo）")
_CORRECTION = "algorithm.rollout_correction"
_OF_WEIGHTS = ("threshold*", "batch_normalize")
_NO_WEIGHTS = Line(
    f"there are no importance weights ({_CORRECTION}.rollout_is)", f"未启用重要性权重（{_CORRECTION}.rollout_is）"
)
_NO_REJECTION = Line(f"nothing is rejected ({_CORRECTION}.rollout_rs)", f"未启用拒绝（{_CORRECTION}.rollout_rs）")
_OFFLOADS = (
    "*model.enable_activation_offload",
    *("*.fsdp_config.param_offload", "*.fsdp_config.optimizer_offload", "*.fsdp_config.offload_policy"),
    *("*.megatron.param_offload", "*.megatron.optimizer_offload"),
)
_OF_ADAPTERS = ("lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "lora.*")
_NO_ADAPTER = Line("no adapter is trained (lora_rank=0)", "未训练适配器（lora_rank=0）")
_SHARED = Line("with LoRA the reference is the policy without its adapters", "使用 LoRA 时参考模型就是关闭适配器的策略")
_NO_TRITON = Line("Triton runs on GPUs only", "Triton 只能在 GPU 上运行")
_IN_TURN = Line("nothing is generated ahead (async_training.mode)", "未提前生成（async_training.mode）")
_HALTS = Line(
    "one_step_off generates one batch ahead and halts between any two steps",
    "one_step_off 只提前生成一个批次，并在每两步之间停顿",
)
_AHEAD = ("use_rollout_log_probs", "compute_prox_log_prob")
_QUEUED = ("queue_size", "staleness_threshold", "trigger_parameter_sync_step", "require_batches", "partial_rollout")
_POOL = ("total_rollout_steps", "total_epochs", "test_freq")
_READ_ANYWAY = Line(
    "the policy reads them in any case (async_training.use_rollout_log_probs)",
    "策略本来就会计算（async_training.use_rollout_log_probs）",
)
_OWN_SIZE = Line("data.train_batch_size says how many prompts a step has", "一步的提示数由 data.train_batch_size 决定")
_WHOLE_BATCHES = Line("the hf engine finishes what it has begun", "hf 引擎总会完成已开始的批次")
_KEPT = Line("nothing is recomputed (enable_gradient_checkpointing)", "未启用重算（enable_gradient_checkpointing）")
_ONE_BACKEND = Line("fsdp and fsdp2 name the same backend", "fsdp 与 fsdp2 是同一后端")
_OF_RANKS = (
    "*.fsdp_config.wrap_policy.*",
    "*.fsdp_config.reshard_after_forward",
    "*.fsdp_config.fsdp_size",
    "*.fsdp_config.forward_prefetch",
    "*.fsdp_config.mixed_precision.reduce_dtype",
    "*nccl_timeout",
    "trainer.ray_wait_register_center_timeout",
    "trainer.launcher",
    "trainer.balance_batch",
    "ray_init.*",
)
_ENGINE_POOL = ("rollout.nnodes", "rollout.n_gpus_per_node")
_TRANSPORT = "actor_rollout_ref.rollout.checkpoint_engine.backend"
_REWARD_POOL = ("reward_model.nnodes", "reward_model.n_gpus_per_node")
_BESIDE = Line("the engine is in the policy's process", "引擎与策略在同一进程")
_NO_POOL = Line(
    "the reward model shares the policy's devices (reward_model.enable_resource_pool)",
    "奖励模型与策略共用设备（reward_model.enable_resource_pool）",
)
_CONTEXT = Line("megatron.context_parallel_size says it (strategy)", "由 megatron.context_parallel_size 决定")
_OF_MEGATRON = ("megatron.*", "optim.lr_warmup_init", "optim.lr_decay_*", "optim.min_lr", "optim.lr_wsd_*")
# Each role that Megatron's keys can spread, by its section.
SPREADABLE: dict[str, Callable[[Any], Any]] = {
    "actor_rollout_ref.actor": lambda cfg: cfg.actor_rollout_ref.actor,
    "actor_rollout_ref.ref": lambda cfg: cfg.actor_rollout_ref.ref,
    "critic": lambda cfg: cfg.critic,
    "reward_model": lambda cfg: cfg.reward_model,
}

# Keys that have no effect in some runs only, by job.
IDLE: dict[str, tuple[Idle, ...]] = {
    "generate": (
        Idle("hf engine alone", _NO_PAGES, tuple(f"rollout.{name}" for name in _PAGED)),
        Idle("whole engine alone", REPLICAS, ("rollout.tensor_model_parallel_size",)),
        Idle("no graphs alone", NO_GRAPHS, tuple(f"rollout.{name}" for name in _OF_GRAPHS)),
        Idle("vllm alone", _AS_IT_LIKES, ("rollout.invariant",)),
        Idle("without vllm alone", NOT_SELECTED, ("rollout.engine_kwargs.vllm*",)),
        Idle("without vllm alone", _ONE_WAY, ("rollout.mode",)),
        Idle("without sglang alone", NOT_SELECTED, ("rollout.engine_kwargs.sglang*",)),
        Idle("sglang alone", _SHARED_PROMPTS, ("rollout.enable_prefix_caching",)),
        Idle("running sglang alone", _RUNS_ALREADY, tuple(f"rollout.{name}" for name in _OF_THE_START)),
    ),
    "train": (
        Idle(
            "without reward model",
            NO_REWARD_MODEL,
            (*_MIXING, "reward_model.model.path", "reward_model.model.custom_cls.*", *_READING, *_LOADING),
        ),
        Idle("custom reward model", _OWN_CLASS, (*_READING, *_LOADING)),
        Idle("vllm", _AS_IT_LIKES, ("actor_rollout_ref.rollout.invariant",)),
        Idle("vllm on cpu", _FREES_NOTHING, ("actor_rollout_ref.rollout.free_cache_engine",)),
        Idle("without vllm", NOT_SELECTED, ("actor_rollout_ref.rollout.engine_kwargs.vllm*",)),
        Idle("without vllm", _ONE_WAY, ("actor_rollout_ref.rollout.mode",)),
        Idle("without sglang", NOT_SELECTED, ("actor_rollout_ref.rollout.engine_kwargs.sglang*",)),
        Idle("sglang", _SHARED_PROMPTS, ("actor_rollout_ref.rollout.enable_prefix_caching",)),
        Idle("sglang on cpu", _KEEPS_ALL, ("actor_rollout_ref.rollout.free_cache_engine",)),
        Idle("running sglang", _RUNS_ALREADY, tuple(f"actor_rollout_ref.rollout.{name}" for name in _OF_THE_START)),
        Idle("hf engine", _NO_PAGES, tuple(f"actor_rollout_ref.rollout.{name}" for name in _PAGED)),
        Idle("no graphs", NO_GRAPHS, tuple(f"actor_rollout_ref.rollout.{name}" for name in _OF_GRAPHS)),
        Idle("without filter", _NO_FILTER, ("algorithm.filter_groups.*", "data.gen_batch_size")),
        Idle("without overlong buffer", _NO_BUFFER, ("reward_model.overlong_buffer.*",)),
        Idle("without skipping", _NO_SKIPPING, ("actor_rollout_ref.rollout.skip_dump_dir",)),
        Idle("without pf_ppo", _NO_PF_PPO, ("algorithm.pf_ppo.*",)),
        Idle("without weights", _NO_WEIGHTS, tuple(f"{_CORRECTION}.rollout_is_{name}" for name in _OF_WEIGHTS)),
        Idle("without rejection", _NO_REJECTION, (f"{_CORRECTION}.rollout_rs_threshold*",)),
        Idle("without megatron", _ONE_BACKEND, ("*.strategy",)),
        *(
            Idle(f"{section} without megatron", MEGATRON_ONLY, tuple(f"{section}.{name}" for name in _OF_MEGATRON))
            for section in SPREADABLE
        ),
        *(
            Idle(f"{section} with megatron", _CONTEXT, (f"{section}.ulysses_sequence_parallel_size",))
            for section in SPREADABLE
        ),
        Idle("alone", ONE_PROCESS, _OF_RANKS),
        Idle("engines share devices", SHARES, ("actor_rollout_ref.hybrid_engine", *_ENGINE_POOL, _TRANSPORT)),
        Idle(WHOLE, REPLICAS, ("actor_rollout_ref.rollout.tensor_model_parallel_size",)),
        Idle("sends nothing", _BESIDE, ("actor_rollout_ref.rollout.update_weights_bucket_megabytes",)),
        Idle("without reward model", NO_REWARD_MODEL, ("reward_model.enable_resource_pool", *_REWARD_POOL)),
        Idle("reward model shares devices", _NO_POOL, _REWARD_POOL),
        Idle("cpu", _IN_CPU_MEMORY, _OFFLOADS),
        Idle("cpu", _NO_TRITON, ("*.fused_kernel_options.impl_backend",)),
        Idle(
            "adapted policy",
            _SHARED,
            ("actor_rollout_ref.ref.fsdp_config.*", "actor_rollout_ref.ref.use_torch_compile"),
        ),
        Idle("plain policy", _NO_ADAPTER, tuple(f"actor_rollout_ref.model.{name}" for name in _OF_ADAPTERS)),
        Idle("plain critic", _NO_ADAPTER, tuple(f"critic.model.{name}" for name in _OF_ADAPTERS)),
        Idle("policy keeps all", _KEPT, ("actor_rollout_ref.model.recompute.*",)),
        Idle("critic keeps all", _KEPT, ("critic.model.recompute.*",)),
        Idle("without servers", _NO_SERVERS, ("reward.remote_timeout", "reward.remote_retries", "reward.remote_wait")),
        Idle(
            "in turn",
            _IN_TURN,
            (*(f"async_training.{name}" for name in (*_AHEAD, *_QUEUED)), *(f"rollout.{name}" for name in _POOL)),
        ),
        Idle("one step off", _HALTS, tuple(f"async_training.{name}" for name in _QUEUED)),
        Idle("reads old log-probs", _READ_ANYWAY, ("async_training.compute_prox_log_prob",)),
        Idle("counts prompts", _OWN_SIZE, ("async_training.require_batches",)),
        Idle("hf engine", _WHOLE_BATCHES, ("async_training.partial_rollout",)),
    ),
    "sft": (
        Idle("cpu", _IN_CPU_MEMORY, (*_OFFLOADS, "*.fsdp_config.cpu_offload", "*.fsdp_config.offload_params")),
        Idle("plain model", _NO_ADAPTER, tuple(f"model.{name}" for name in _OF_ADAPTERS)),
        Idle("model keeps all", _KEPT, ("model.recompute.*",)),
    ),
    "eval": (
        Idle("without servers", _NO_SERVERS, ("reward.remote_timeout", "reward.remote_retries", "reward.remote_wait")),
    ),
}


def _sglang_is(rollout: Any, running: bool) -> bool:
    """Is SGLang chosen, as a server that runs already, or as one that we start?"""
    return rollout.name == "sglang" and ("base_url" in rollout.engine_kwargs.sglang) is running


def _has_no_graphs(rollout: Any, device: str) -> bool:
    """Transformers' generate has none, and the built-in engine none on a CPU."""
    return rollout.name not in _FOREIGN and (rollout.name == "hf" or computes_on_cpu(device))


# When a pending or idle key cannot matter anyway.
CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "cpu": lambda cfg: computes_on_cpu(cfg.trainer.device),
    "alone": alone,
    "one rank": lambda cfg: cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node == 1,
    "engines share devices": lambda cfg: not engine_pool(cfg),
    WHOLE: lambda cfg: not (cfg.actor_rollout_ref.rollout.name in _FOREIGN and alone(cfg)),
    "whole engine alone": lambda cfg: cfg.rollout.name not in _FOREIGN,
    "one sglang": lambda cfg: cfg.actor_rollout_ref.rollout.name == "sglang" and alone(cfg),
    "sends nothing": lambda cfg: not engine_pool(cfg) and cfg.actor_rollout_ref.rollout.name != "sglang",
    "reward model shares devices": lambda cfg: not cfg.reward_model.enable_resource_pool,
    "without megatron": lambda cfg: not any(uses_megatron(role(cfg)) for role in SPREADABLE.values()),
    **{f"{key} without megatron": lambda cfg, of=role: not uses_megatron(of(cfg)) for key, role in SPREADABLE.items()},
    **{f"{key} with megatron": lambda cfg, of=role: uses_megatron(of(cfg)) for key, role in SPREADABLE.items()},
    "without reward model": lambda cfg: not cfg.reward_model.enable,
    "in turn": lambda cfg: not overlaps(cfg),
    "one step off": lambda cfg: overlaps(cfg) and not has_queue(cfg),
    "reads old log-probs": lambda cfg: overlaps(cfg) and not cfg.async_training.use_rollout_log_probs,
    "counts prompts": lambda cfg: has_queue(cfg) and counts_prompts(cfg),
    "without servers": lambda cfg: all(url.endswith(".py") for url in cfg.reward.remote_url),
    "without filter": lambda cfg: not cfg.algorithm.filter_groups.enable,
    "without overlong buffer": lambda cfg: not cfg.reward_model.overlong_buffer.enable,
    "without skipping": lambda cfg: not cfg.actor_rollout_ref.rollout.skip_rollout,
    "without pf_ppo": lambda cfg: not cfg.algorithm.use_pf_ppo,
    "without weights": lambda cfg: cfg.algorithm.rollout_correction.rollout_is is None,
    "adapted policy": lambda cfg: wants_adapter(cfg.actor_rollout_ref.model),
    "plain model": lambda cfg: not wants_adapter(cfg.model),
    "model keeps all": lambda cfg: not cfg.model.enable_gradient_checkpointing,
    "plain policy": lambda cfg: not wants_adapter(cfg.actor_rollout_ref.model),
    "plain critic": lambda cfg: not wants_adapter(cfg.critic.model),
    "policy keeps all": lambda cfg: not cfg.actor_rollout_ref.model.enable_gradient_checkpointing,
    "critic keeps all": lambda cfg: not cfg.critic.model.enable_gradient_checkpointing,
    "without rejection": lambda cfg: not cfg.algorithm.rollout_correction.rollout_rs,
    "no graphs": lambda cfg: _has_no_graphs(cfg.actor_rollout_ref.rollout, cfg.trainer.device),
    "no graphs alone": lambda cfg: _has_no_graphs(cfg.rollout, cfg.trainer.device),
    "hf engine alone": lambda cfg: cfg.rollout.name == "hf",
    "without vllm": lambda cfg: cfg.actor_rollout_ref.rollout.name != "vllm",
    "without vllm alone": lambda cfg: cfg.rollout.name != "vllm",
    "vllm": lambda cfg: cfg.actor_rollout_ref.rollout.name == "vllm",
    "vllm alone": lambda cfg: cfg.rollout.name == "vllm",
    "sglang": lambda cfg: cfg.actor_rollout_ref.rollout.name == "sglang",
    "sglang alone": lambda cfg: cfg.rollout.name == "sglang",
    "without sglang": lambda cfg: cfg.actor_rollout_ref.rollout.name != "sglang",
    "without sglang alone": lambda cfg: cfg.rollout.name != "sglang",
    "sglang on cpu": lambda cfg: (
        _sglang_is(cfg.actor_rollout_ref.rollout, False) and computes_on_cpu(cfg.trainer.device)
    ),
    "running sglang": lambda cfg: _sglang_is(cfg.actor_rollout_ref.rollout, True),
    "running sglang alone": lambda cfg: _sglang_is(cfg.rollout, True),
    "vllm on cpu": lambda cfg: cfg.actor_rollout_ref.rollout.name == "vllm" and computes_on_cpu(cfg.trainer.device),
    "hf engine": lambda cfg: cfg.actor_rollout_ref.rollout.name == "hf",
    "custom reward model": lambda cfg: cfg.reward_model.model.custom_cls.path is not None,
}
