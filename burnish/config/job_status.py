"""Pending and inert keys by job. The one place to ask: everything that is not listed acts."""

from __future__ import annotations

from burnish.config.megatron_status import MEGATRON_INERT, MEGATRON_PENDING
from burnish.config.names import Line
from burnish.config.pending import INERT, MEGATRON_ONLY, NOT_SELECTED, PENDING, REPLICAS, Pending, alone

_NO_RAY = Line("one process computes it, without Ray", "单进程计算，不使用 Ray")

SFT_PENDING: tuple[Pending, ...] = (
    Pending("model.strategy=megatron", "Megatron-Core itself"),
    Pending("model.aux_loss_coef", "mixtures of experts"),
    Pending("trainer.device=npu", "Ascend devices"),
    Pending("ulysses_sequence_parallel_size", "several processes"),
    Pending("trainer.nnodes", "several processes"),
    Pending("trainer.n_gpus_per_node", "several processes"),
    *alone(
        "*.fsdp_config.wrap_policy.*",
        "*.fsdp_config.reshard_after_forward",
        "*.fsdp_config.fsdp_size",
        "*.fsdp_config.forward_prefetch",
        "*.fsdp_config.mixed_precision.reduce_dtype",
    ),
)
SFT_INERT: dict[str, Line] = {
    "use_remove_padding": Line("nothing is ever padded", "数据从不填充"),
    "data.pad_mode": Line("nothing is ever padded", "数据从不填充"),
    "data.balance_dp_token": Line("the loss is always divided by the tokens of all ranks", "损失始终除以全部 token 数"),
    "model.strategy": Line("fsdp and fsdp2 name the same backend", "fsdp 与 fsdp2 是同一后端"),
    "*.fsdp_config.strategy": Line("fsdp and fsdp2 name the same backend", "fsdp 与 fsdp2 是同一后端"),
    "*.fsdp_config.use_orig_params": Line("FSDP2 always keeps the original parameters", "FSDP2 始终保留原始参数"),
    "*.fsdp_config.forward_only": Line("the role decides", "由角色自身决定"),
    "*.checkpoint.mbridge_config": MEGATRON_ONLY,
    "model.lora.merge": Line("there is no engine to send weights to", "没有需要同步权重的引擎"),
    "*.fsdp_config.offload_params": Line("cpu_offload always takes the weights along", "cpu_offload 总是一并卸载权重"),
}


def _engine_size(name: str) -> Pending:
    return Pending(f"rollout.{name}", "foreign engines", "whole engine alone", REPLICAS, served_if="sglang alone")


GENERATE_PENDING: tuple[Pending, ...] = (
    Pending("rollout.name=trtllm", "foreign engines"),
    *map(_engine_size, ("data_parallel_size", "expert_parallel_size", "pipeline_model_parallel_size")),
    Pending("trainer.nnodes", "several processes"),
    Pending("trainer.n_gpus_per_node", "several processes"),
    Pending("trainer.device=npu", "Ascend devices"),
)
GENERATE_INERT: dict[str, Line] = {
    "actor.*": Line("the engine alone generates, without a worker of training", "只有引擎参与生成，没有训练进程"),
    "ray_init.*": _NO_RAY,
    "rollout.n": Line("data.n_samples decides", "由 data.n_samples 决定"),
    "rollout.log_prob_*": Line("nothing reads the responses again", "没有谁会再次读取回答"),
    "rollout.logprobs": Line("only texts are written", "只写出文本"),
    "rollout.detokenize": Line("responses are written as text", "回答以文本写出"),
    "rollout.load_format": Line("the weights come from the model's folder", "权重来自模型目录"),
    "rollout.trust_remote_code": Line("model.trust_remote_code decides", "由 model.trust_remote_code 决定"),
    "rollout.free_cache_engine": Line("nothing is trained in between", "中间没有训练"),
    "rollout.engine_kwargs.trtllm*": NOT_SELECTED,
}

# The rows of each job.
PENDING_OF: dict[str, tuple[Pending, ...]] = {
    "train": (*PENDING, *MEGATRON_PENDING),
    "sft": SFT_PENDING,
    "eval": (),
    "generate": GENERATE_PENDING,
}
INERT_OF: dict[str, dict[str, Line]] = {
    "train": {**INERT, **MEGATRON_INERT},
    "generate": GENERATE_INERT,
    "sft": SFT_INERT,
    "eval": {
        "ray_init.*": _NO_RAY,
        **dict.fromkeys(
            ("reward.model_weight", "reward.function_weight"), Line("eval reads no reward model", "eval 不使用奖励模型")
        ),
        **dict.fromkeys(
            ("reward.stop_properly_penalty", "reward.scale", "reward.normalize", "reward.clip_range"),
            Line("eval reports what the reward gave", "eval 报告奖励给出的原始得分"),
        ),
    },
}
