"""generate_config: engine settings and sampling_config."""

from __future__ import annotations

from burnish.dialects.mindspeed.roles import ROLLOUT
from burnish.dialects.mindspeed.translator import Translator

_SAME_NAME = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "enforce_eager",
    "enable_prefix_caching",
)


def translate_generation(t: Translator) -> None:
    generate, sampling = t.generate, t.sampling
    for name in _SAME_NAME:
        t.set(generate[name], f"{ROLLOUT}.{name}")
    t.handled.add(generate["sampling_config"].theirs)
    temperature = sampling["temperature"]
    if temperature.value is None:
        why = "required: sampling_config replaces all defaults, also in MindSpeed RL: write temperature: 1.0"
        t.refuse(temperature, why)
    else:
        t.set(temperature, f"{ROLLOUT}.temperature")
    for name in ("top_p", "top_k", "min_p"):
        t.set(sampling[name], f"{ROLLOUT}.{name}")
    t.set(sampling["seed"], f"{ROLLOUT}.seed", why="same seed, but not the same random numbers as vLLM")
    if sampling["detokenize"].explicit:
        t.set(sampling["detokenize"], f"{ROLLOUT}.detokenize")
