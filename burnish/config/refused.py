"""Keys and values that Burnish will not support: why not, and what to type instead."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.config.conditions import Condition, engines_share_devices, scores_without_engine
from burnish.config.names import Line
from burnish.config.pending import SHARED_DEVICES


@dataclass(frozen=True)
class Refused:
    """A key, or one value of it, that runs refuse."""

    pattern: str  # * matches any text; "key=value" is one value
    why: Line
    instead: str  # what to type
    inert_if: Condition | None = None  # when the key has no effect in any case, and is accepted
    reason: Line | None = None  # why it has none then


_ROLLOUT = "actor_rollout_ref.rollout"
_TRANSPORT = f"{_ROLLOUT}.checkpoint_engine.backend"
_NO_TRT_LLM = Line("Burnish has no engine for TensorRT-LLM", "Burnish 没有 TensorRT-LLM 引擎")
_OTHER_TRANSPORT = Line(
    "weights travel over NCCL or gloo; verl's other transports are not supported",
    "权重通过 NCCL 或 gloo 传输；不支持 verl 的其他传输方式",
)
_NO_TORCHAO = Line(
    "its scheme is in rollout.quantization_config_file, which is not read",
    "其方案在 rollout.quantization_config_file 中，该文件不会被读取",
)
_NO_MANAGER = Line(
    "it replaces verl's manager of agent loops and its Ray actors, which do not exist here",
    "它替换 verl 的智能体循环管理器及其 Ray actor，此处没有这些类",
)
_NO_SERVER_CLASS = Line(
    "it replaces verl's class of a vLLM or SGLang server, which does not exist here",
    "它替换 verl 的 vLLM 或 SGLang 服务类，此处没有这些类",
)
_NO_REWARD_ENGINE = Line(
    "no engine serves the reward model to reward functions", "没有引擎为奖励函数提供奖励模型的推理服务"
)
_SCORED_BY_BACKEND = Line(
    "a reward model is scored by the training backend, not by an engine", "奖励模型由训练后端打分，不使用推理引擎"
)


def no_trt_llm(section: str) -> Refused:
    """`section` is the key of the rollout section."""
    return Refused(f"{section}.name=trtllm", _NO_TRT_LLM, f"{section}.name=vllm or {section}.name=sglang")


REFUSED: tuple[Refused, ...] = (
    no_trt_llm(_ROLLOUT),
    *(
        Refused(
            f"{_TRANSPORT}={name}",
            _OTHER_TRANSPORT,
            f"{_TRANSPORT}=nccl, or {_TRANSPORT}=gloo without GPUs",
            engines_share_devices,
            SHARED_DEVICES,
        )
        for name in ("hccl", "nixl", "kimi_ckpt_engine", "mooncake")
    ),
    Refused(f"{_ROLLOUT}.quantization=torchao", _NO_TORCHAO, f"{_ROLLOUT}.quantization=fp8"),
    Refused(
        f"{_ROLLOUT}.agent.agent_loop_manager_class",
        _NO_MANAGER,
        f"{_ROLLOUT}.agent.default_agent_loop=FILE.py:CLASS (an agent loop)",
    ),
    Refused(f"{_ROLLOUT}.agent.custom_async_server.*", _NO_SERVER_CLASS, f"{_ROLLOUT}.name=FILE.py:CLASS (an engine)"),
    Refused(
        "reward_model.rollout",
        _NO_REWARD_ENGINE,
        "custom_reward_function.reward_kwargs.url=http://HOST:PORT (a server that you start)",
        scores_without_engine,
        _SCORED_BY_BACKEND,
    ),
)
