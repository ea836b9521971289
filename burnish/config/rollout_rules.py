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
    if not rollout.enable_chunked_prefill and rollout.max_num_batched_tokens < rollout.prompt_length:
        yield UserError(
            f"a prompt of {section}.prompt_length={rollout.prompt_length} tokens does not fit into one engine step",
            key=f"{section}.max_num_batched_tokens",
            value=rollout.max_num_batched_tokens,
            allowed=f">= {rollout.prompt_length}",
            hint=f"{section}.enable_chunked_prefill=true",
        )
