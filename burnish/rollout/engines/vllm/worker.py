"""Extension of vLLM's workers: vLLM mixes this class into its own; the methods run in the worker's process.

vLLM reports log-probs either of the raw logits or of what it samples from, after temperature, penalties and top-k or
top-p. Ours are log-softmax(logits / temperature) over all tokens, so we patch that into its sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from burnish.rollout.engines.private import use_private_stores

GREEDY = 1e-5  # below this temperature vLLM is greedy; we report its log-prob at temperature 1


class WorkerExtension:
    """`model_runner` and `reload_weights` are attributes of vLLM's worker."""

    model_runner: Any
    reload_weights: Callable[..., None]

    def __new__(cls, *arguments: Any, **named: Any) -> WorkerExtension:
        """Runs before the worker opens its process group."""
        use_private_stores()
        return super().__new__(cls)

    def burnish_prepare(self) -> None:
        report_at_temperature(self.model_runner.sampler)

    def burnish_score_at(self, temperature: str) -> None:
        """Set the temperature of prompt log-probs. As text, because calls to a server carry strings only."""
        self.model_runner.sampler.burnish_prompts_at = float(temperature)

    def burnish_load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """Load into the storage of the old weights, in the layout that the kernels use."""
        self.reload_weights(weights_iterator=stream)

    def burnish_load_files(self, folder: str) -> None:
        self.burnish_load(read_files(folder))


def report_at_temperature(sampler: Any) -> None:
    """Let the sampler report log-softmax(logits / temperature), and prompts at `burnish_prompts_at`."""
    if not hasattr(sampler, "compute_logprobs"):
        raise RuntimeError(f"vLLM's {type(sampler).__qualname__} is not the sampler of the V1 model runner")
    if hasattr(sampler, "burnish_prompts_at"):
        return
    original_forward, original_log_probs = sampler.forward, sampler.compute_logprobs
    sampler.burnish_prompts_at = 1.0

    def prompt_log_probs(logits: Tensor) -> Tensor:
        temperature = sampler.burnish_prompts_at
        return original_log_probs(logits if temperature == 1 else logits.float() / temperature)

    def forward(logits: Tensor, sampling_metadata: Any, *more: Any, **named: Any) -> Any:
        temperature = sampling_metadata.temperature  # [B], or None where all are greedy
        if temperature is None:
            return original_forward(logits, sampling_metadata, *more, **named)
        divisor = torch.where(temperature < GREEDY, 1.0, temperature)[:, None]
        sampler.compute_logprobs = lambda logits: original_log_probs(logits.float() / divisor)
        try:
            return original_forward(logits, sampling_metadata, *more, **named)
        finally:
            sampler.compute_logprobs = prompt_log_probs

    sampler.compute_logprobs = prompt_log_probs
    sampler.forward = forward


def read_files(folder: str) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every safetensors file of a folder, one tensor in memory at a time."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a safetensors file is not a mapping
                yield name, file.get_tensor(name)
