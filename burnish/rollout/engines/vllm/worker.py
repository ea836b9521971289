"""What we add to vLLM's workers. vLLM mixes this class into its own; the methods run where the model is.

vLLM knows two kinds of log-probs: of the logits as they are, and of what its sampler draws from, after temperature,
penalties and cuts. Ours are of logits / temperature over all tokens, so we hand its sampler the missing kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

GREEDY = 1e-5  # below this temperature vLLM takes the likeliest token; its log-prob is that at temperature 1


class WorkerExtension:
    """`model_runner` and `reload_weights` are vLLM's own worker's."""

    model_runner: Any
    reload_weights: Callable[..., None]

    def burnish_prepare(self) -> None:
        report_at_temperature(self.model_runner.sampler)

    def burnish_score_at(self, temperature: str) -> None:
        """The temperature of the log-probs of prompts, from now on. As text: a server's calls carry nothing else."""
        self.model_runner.sampler.burnish_prompts_at = float(temperature)

    def burnish_load(self, stream: Iterable[tuple[str, Tensor]]) -> None:
        """New weights into the storage of the old ones, whatever layout the kernels want them in."""
        self.reload_weights(weights_iterator=stream)

    def burnish_load_files(self, folder: str) -> None:
        self.burnish_load(read_files(folder))


def report_at_temperature(sampler: Any) -> None:
    """From now on the sampler reports log-softmax(logits / temperature), and prompts at a temperature of their own."""
    if not hasattr(sampler, "compute_logprobs"):
        raise RuntimeError(f"vLLM's {type(sampler).__qualname__} is not the sampler of its first model runner")
    if hasattr(sampler, "burnish_prompts_at"):
        return
    own_forward, own_log_probs = sampler.forward, sampler.compute_logprobs
    sampler.burnish_prompts_at = 1.0

    def of_prompts(logits: Tensor) -> Tensor:
        at = sampler.burnish_prompts_at
        return own_log_probs(logits if at == 1 else logits.float() / at)

    def forward(logits: Tensor, sampling_metadata: Any, *more: Any, **named: Any) -> Any:
        at = sampling_metadata.temperature  # [rows], or None where all are greedy
        if at is None:
            return own_forward(logits, sampling_metadata, *more, **named)
        divisor = torch.where(at < GREEDY, 1.0, at)[:, None]
        sampler.compute_logprobs = lambda given: own_log_probs(given.float() / divisor)
        try:
            return own_forward(logits, sampling_metadata, *more, **named)
        finally:
            sampler.compute_logprobs = of_prompts

    sampler.compute_logprobs = of_prompts
    sampler.forward = forward


def read_files(folder: str) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every safetensors file of a folder, one tensor in memory at a time."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a safetensors file is no mapping
                yield name, file.get_tensor(name)
