"""generate_config: the engine, and sampling_config, which replaces the default as a whole."""

from __future__ import annotations

from burnish.dialects.mindspeed.reading import Reading
from burnish.dialects.mindspeed.roles import ROLLOUT

_SAME = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enforce_eager", "enable_prefix_caching")


def read_generation(reading: Reading) -> None:
    generate, sampling = reading.generate, reading.sampling
    for name in _SAME:
        reading.put(generate[name], f"{ROLLOUT}.{name}")
    reading.read.add(generate["sampling_config"].theirs)
    temperature = sampling["temperature"]
    if temperature.value is None:
        why = (
            "sampling_config replaces the default as a whole, and MindSpeed RL stops without it: write temperature: 1.0"
        )
        reading.refuse(temperature, why)
    else:
        reading.put(temperature, f"{ROLLOUT}.temperature")
    for name in ("top_p", "top_k", "min_p"):
        reading.put(sampling[name], f"{ROLLOUT}.{name}")
    reading.put(sampling["seed"], f"{ROLLOUT}.seed", why="the same seed, other random numbers than vLLM's")
    if sampling["detokenize"].given:
        reading.put(sampling["detokenize"], f"{ROLLOUT}.detokenize")
