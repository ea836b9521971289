"""Our options in vLLM's words: the arguments of its engine, and the parameters of a request."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from burnish.errors import UserError, nearest
from burnish.models.load import ModelSource, load_config
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.memory import free_bytes

LEAST_TEMPERATURE = 0.01  # vLLM makes any smaller one this large
MOST_PENALTY = 2.0
# What the engine's way of working rests on.
FIXED = {
    "skip_tokenizer_init": True,
    "generation_config": "vllm",  # requests say everything; the model's file adds nothing
    "logprobs_mode": "raw_logprobs",
    "max_logprobs": -1,
    "scheduling_policy": "priority",
    "disable_log_stats": True,  # Burnish reports the engine's numbers itself
    "worker_extension_cls": "burnish.rollout.engines.vllm.worker.WorkerExtension",
}
# verl names some ways to send weights as if they were ways to load them; vLLM then reads the folder as it likes.
LOAD_FORMATS = {"dtensor": "auto", "hf": "auto", "megatron": "auto"}
OWN = ("base_url", "weight_dir", "start_timeout")  # entries of engine_kwargs.vllm that are ours


def engine_arguments(options: EngineOptions) -> dict[str, Any]:
    """All but the model's folder. engine_kwargs.vllm has the last word, null entries are left out."""
    on_cpu = options.device.type == "cpu"
    memory = (
        {"kv_cache_memory_bytes": cache_bytes(options)}
        if on_cpu
        else {"gpu_memory_utilization": options.memory_share, "enable_sleep_mode": options.sleeps}
    )
    asked = {
        "dtype": str(options.dtype).removeprefix("torch."),
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "enable_chunked_prefill": options.chunked_prefill,
        "enable_prefix_caching": options.prefix_caching,
        "enforce_eager": options.eager,
        "tensor_parallel_size": options.tensor_parallel,
        "trust_remote_code": options.model.trust_remote_code,
        "load_format": load_format(options.load_format),
        "cudagraph_capture_sizes": options.capture_sizes,
        **memory,
        **engine_kwargs(options),
    }
    return {name: value for name, value in asked.items() if value is not None} | FIXED


def engine_kwargs(options: EngineOptions) -> dict[str, Any]:
    return {name: value for name, value in options.extra.items() if name not in OWN and value is not None}


def check_kwargs(asked: Collection[str], known: Collection[str], section: str, version: str) -> None:
    """Refuse entries of engine_kwargs.vllm that the installed vLLM does not know, or that we must choose."""
    for name in asked:
        key = f"{section}.engine_kwargs.vllm.{name}"
        if name in FIXED or name == "model":
            raise UserError("Burnish chooses it: its own way to use vLLM rests on it", key=key)
        if name not in known and name not in OWN:
            meant = nearest(name, [*known, *OWN])
            problem = f"vLLM {version} has no such argument." + (f" Did you mean {meant!r}?" if meant else "")
            raise UserError(problem, key=key, hint=f"{section}.engine_kwargs.vllm.{meant}=..." if meant else None)


def load_format(asked: str) -> str:
    return "dummy" if asked.startswith("dummy") else LOAD_FORMATS.get(asked, asked)


def cache_bytes(options: EngineOptions) -> int:
    """On a CPU: its share of the free memory, but no more than the most and longest rows can fill."""
    config = load_config(options.model).get_text_config()
    heads = config.num_attention_heads
    width = (getattr(config, "head_dim", None) or config.hidden_size // heads) * getattr(
        config, "num_key_value_heads", heads
    )
    per_token = 2 * config.num_hidden_layers * width * options.dtype.itemsize
    rows = options.max_num_seqs * (options.max_model_len + CPU_BLOCK)
    return min(int(free_bytes(options.device) * options.memory_share), rows * per_token + (1 << 20))


CPU_BLOCK = 128  # tokens of a block of vLLM's cache on a CPU; a row's last block is half empty


def model_folder(source: ModelSource, work: Path) -> str:
    """The model's own folder; where its config is changed, one with that config and links to everything else."""
    path = source.checked_path()
    if not (source.override_config or source.config_path):
        return path
    folder = Path(tempfile.mkdtemp(dir=work))
    for file in Path(path).iterdir() if Path(path).is_dir() else ():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file.resolve())
    load_config(source).save_pretrained(folder)
    return str(folder)


def refusals(sampling: Sampling, section: str) -> Iterator[UserError]:
    """What vLLM cannot do as our keys say it is done."""
    if sampling.fire:
        problem = "the engine vllm cannot do this: the first token has no temperature of its own there"
        yield UserError(problem, key=f"{section}.use_fire_sampling", value=True)
    if not sampling.greedy and sampling.temperature < LEAST_TEMPERATURE:
        yield UserError(
            "the engine vllm samples at no temperature between 0 and 0.01",
            key=f"{section}.temperature",
            value=sampling.temperature,
            hint=f"{section}.do_sample=false, for the likeliest token",
        )
    for name in ("presence_penalty", "frequency_penalty"):
        if abs(getattr(sampling, name)) > MOST_PENALTY:
            allowed = f"{-MOST_PENALTY:g} to {MOST_PENALTY:g}"
            value = getattr(sampling, name)
            yield UserError("is more than vLLM takes", key=f"{section}.{name}", value=value, allowed=allowed)


def sampling_fields(request: Request, eos_ids: Sequence[int]) -> dict[str, Any]:
    """The fields of vLLM's SamplingParams, but for bad words, which it would read as text.

    EOS is one of the stop tokens: without a tokenizer vLLM knows no other. Stop strings are found by us.
    """
    sampling = request.sampling
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_ids)}
    return {
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_k": max(sampling.top_k, 0),
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop_token_ids": sorted(ends),
        "ignore_eos": True,
        "logprobs": sampling.logprobs or 0,
        "seed": request.seed,
        "detokenize": False,
    }
