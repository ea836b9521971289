"""Pending, refused and inert keys of every job. A key that is not listed acts."""

from __future__ import annotations

from burnish.config.megatron_status import MEGATRON_INERT
from burnish.config.names import Line
from burnish.config.pending import (
    ASCEND,
    INERT,
    MEGATRON_CORE,
    MEGATRON_ONLY,
    MOE_OPTIONS,
    NOT_SELECTED,
    PENDING,
    Pending,
)
from burnish.config.refused import REFUSED, Refused, no_trt_llm

_NO_REWARDS = Line("this job computes no rewards", "该任务不计算奖励")
_NO_TOOLS = Line("this job calls no tools", "该任务不调用工具")
_PACKED = Line("sequences are always packed, never padded", "序列始终打包，从不填充")
_SAME_BACKEND = Line("fsdp and fsdp2 are the same backend", "fsdp 与 fsdp2 是同一后端")

SFT_PENDING: tuple[Pending, ...] = (
    Pending("model.strategy=megatron", MEGATRON_CORE),
    Pending("model.aux_loss_coef", MOE_OPTIONS),
    Pending("trainer.device=npu", ASCEND),
)
SFT_INERT: dict[str, Line] = {
    "use_remove_padding": _PACKED,
    "data.pad_mode": _PACKED,
    "data.balance_dp_token": Line(
        "the loss is always normalized over the tokens of all ranks", "损失始终按所有进程的 token 数归一化"
    ),
    "ray_init.reward_nodes": _NO_REWARDS,
    "ray_init.tool_nodes": _NO_TOOLS,
    "model.strategy": _SAME_BACKEND,
    "*.fsdp_config.strategy": _SAME_BACKEND,
    "*.fsdp_config.use_orig_params": Line("FSDP2 always keeps the original parameters", "FSDP2 始终保留原始参数"),
    "*.fsdp_config.forward_only": Line("the model is always trained", "模型总会训练"),
    "*.checkpoint.mbridge_config": MEGATRON_ONLY,
    "model.lora.merge": Line("there is no engine to synchronize", "没有需要同步权重的引擎"),
    "*.fsdp_config.offload_params": Line("cpu_offload always includes the weights", "cpu_offload 总是一并卸载权重"),
}


GENERATE_PENDING: tuple[Pending, ...] = (Pending("trainer.device=npu", ASCEND),)
GENERATE_INERT: dict[str, Line] = {
    "actor.*": Line("generation has no training worker", "只有引擎参与生成，没有训练进程"),
    "ray_init.reward_nodes": _NO_REWARDS,
    "ray_init.tool_nodes": _NO_TOOLS,
    "rollout.n": Line("data.n_samples decides", "由 data.n_samples 决定"),
    "rollout.log_prob_*": Line("log-probs are not recomputed", "不重新计算对数概率"),
    "rollout.logprobs": Line("only text is written", "只写出文本"),
    "rollout.detokenize": Line("responses are written as text", "回答以文本写出"),
    "rollout.load_format": Line("weights are read from the model folder", "权重来自模型目录"),
    "rollout.trust_remote_code": Line("model.trust_remote_code decides", "由 model.trust_remote_code 决定"),
    "rollout.free_cache_engine": Line("the engine is never idle for training", "引擎无需为训练让出内存"),
    "rollout.engine_kwargs.trtllm*": NOT_SELECTED,
}

# By job.
PENDING_OF: dict[str, tuple[Pending, ...]] = {
    "train": PENDING,
    "sft": SFT_PENDING,
    "eval": (),
    "generate": GENERATE_PENDING,
}
REFUSED_OF: dict[str, tuple[Refused, ...]] = {
    "train": REFUSED,
    "sft": (),
    "eval": (),
    "generate": (no_trt_llm("rollout"),),
}
INERT_OF: dict[str, dict[str, Line]] = {
    "train": {**INERT, **MEGATRON_INERT},
    "generate": GENERATE_INERT,
    "sft": SFT_INERT,
    "eval": {
        **dict.fromkeys(
            ("reward.model_weight", "reward.function_weight"), Line("eval uses no reward model", "eval 不使用奖励模型")
        ),
        "ray_init.tool_nodes": _NO_TOOLS,
        "reward.failure_threshold": Line(
            "eval scores all rows; it exits with status 1 if all responses of a data source fail",
            "eval 会给所有行打分；某个数据源的回答全部失败时以状态 1 退出",
        ),
        **dict.fromkeys(
            ("reward.stop_properly_penalty", "reward.scale", "reward.normalize", "reward.clip_range"),
            Line("eval reports raw scores", "eval 报告奖励给出的原始得分"),
        ),
    },
}
