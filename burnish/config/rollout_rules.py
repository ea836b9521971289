"""Rules of the rollout section, common to `burnish train` and `burnish generate`."""

from __future__ import annotations

from collections.abc import Iterator

from burnish.config.rollout import SamplingConfig
from burnish.errors import UserError


def check_rollout(rollout: SamplingConfig, section: str) -> Iterator[UserError]:
    """`section` is the key of the rollout section."""
    if rollout.top_p == 0:
        yield UserError("excludes all tokens", key=f"{section}.top_p", value=0, allowed="> 0 and <= 1")
    if rollout.min_tokens > rollout.response_length:
        yield UserError(
            f"exceeds {section}.response_length={rollout.response_length}",
            key=f"{section}.min_tokens",
            value=rollout.min_tokens,
            allowed=f"0 to {rollout.response_length}",
        )
    experts = rollout.tensor_model_parallel_size * rollout.data_parallel_size
    if rollout.name == "vllm" and rollout.expert_parallel_size not in (1, experts):
        key = f"{section}.expert_parallel_size"
        problem = "vLLM divides experts over all tensor and data ranks of an engine, or over none"
        allowed = sorted({1, experts})
        yield UserError(
            problem, key=key, value=rollout.expert_parallel_size, allowed=allowed, hint=f"{key}={allowed[-1]}"
        )
    if not rollout.enable_chunked_prefill and rollout.max_num_batched_tokens < rollout.prompt_length:
        yield UserError(
            f"a prompt of {section}.prompt_length={rollout.prompt_length} tokens does not fit into one engine step",
            key=f"{section}.max_num_batched_tokens",
            value=rollout.max_num_batched_tokens,
            allowed=f">= {rollout.prompt_length}",
            hint=f"{section}.enable_chunked_prefill=true",
        )
