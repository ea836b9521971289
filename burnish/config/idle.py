"""Keys that act, but not in some runs, and when: what a run then says at its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from burnish.config.adapters import wants_adapter
from burnish.config.device import computes_on_cpu
from burnish.config.names import Line
from burnish.config.pending import NO_REWARD_MODEL


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
)
_OF_ADAPTERS = ("lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "lora.*")
_NO_ADAPTER = Line("no adapter is trained (lora_rank=0)", "未训练适配器（lora_rank=0）")
_SHARED = Line("with LoRA the reference is the policy without its adapters", "使用 LoRA 时参考模型就是关闭适配器的策略")
_KEPT = Line("nothing is recomputed (enable_gradient_checkpointing)", "未启用重算（enable_gradient_checkpointing）")

# Keys that have no effect in some runs only, by job.
IDLE: dict[str, tuple[Idle, ...]] = {
    "generate": (Idle("hf engine alone", _NO_PAGES, tuple(f"rollout.{name}" for name in _PAGED)),),
    "train": (
        Idle(
            "without reward model",
            NO_REWARD_MODEL,
            (*_MIXING, "reward_model.model.path", "reward_model.model.custom_cls.*", *_READING, *_LOADING),
        ),
        Idle("custom reward model", _OWN_CLASS, (*_READING, *_LOADING)),
        Idle("hf engine", _NO_PAGES, tuple(f"actor_rollout_ref.rollout.{name}" for name in _PAGED)),
        Idle("without filter", _NO_FILTER, ("algorithm.filter_groups.*", "data.gen_batch_size")),
        Idle("without overlong buffer", _NO_BUFFER, ("reward_model.overlong_buffer.*",)),
        Idle("without skipping", _NO_SKIPPING, ("actor_rollout_ref.rollout.skip_dump_dir",)),
        Idle("without pf_ppo", _NO_PF_PPO, ("algorithm.pf_ppo.*",)),
        Idle("without weights", _NO_WEIGHTS, tuple(f"{_CORRECTION}.rollout_is_{name}" for name in _OF_WEIGHTS)),
        Idle("without rejection", _NO_REJECTION, (f"{_CORRECTION}.rollout_rs_threshold*",)),
        Idle("cpu", _IN_CPU_MEMORY, _OFFLOADS),
        Idle("cpu", Line("the head is compiled on GPUs only", "只在 GPU 上编译输出头"), ("*.use_torch_compile",)),
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

# When a pending or idle key cannot matter anyway.
CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "cpu": lambda cfg: computes_on_cpu(cfg.trainer.device),
    "alone": lambda cfg: cfg.trainer.nnodes * cfg.trainer.n_gpus_per_node == 1,
    "without megatron": lambda cfg: cfg.actor_rollout_ref.actor.strategy != "megatron",
    "without reward model": lambda cfg: not cfg.reward_model.enable,
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
    "hf engine alone": lambda cfg: cfg.rollout.name == "hf",
    "hf engine": lambda cfg: cfg.actor_rollout_ref.rollout.name == "hf",
    "custom reward model": lambda cfg: cfg.reward_model.model.custom_cls.path is not None,
}
