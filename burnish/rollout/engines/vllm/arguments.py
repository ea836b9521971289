"""vLLM's engine arguments and sampling parameters from our options."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from burnish.errors import UserError, nearest
from burnish.models.load import ModelSource, load_config
from burnish.rollout.engine import EngineOptions, Request, Sampling
from burnish.rollout.engines.builtin.memory import free_bytes
from burnish.rollout.engines.vllm.media import kinds_of

MIN_TEMPERATURE = 0.01  # vLLM raises smaller temperatures to this
MAX_PENALTY = 2.0
# Arguments that VllmEngine depends on.
FIXED = {
    "skip_tokenizer_init": True,
    "generation_config": "vllm",  # ignore generation_config.json: requests are complete
    "logprobs_mode": "raw_logprobs",
    "max_logprobs": -1,
    "scheduling_policy": "priority",
    "disable_log_stats": True,  # Burnish reports the engine's numbers itself
    "worker_extension_cls": "burnish.rollout.engines.vllm.worker.WorkerExtension",
}
# verl also uses load_format for ways to send weights; vLLM then loads the folder by its default.
LOAD_FORMATS = {"dtensor": "auto", "hf": "auto", "megatron": "auto"}
NO_CACHE = "disable_mm_preprocessor_cache"  # in vLLM before 0.11; all of verl's scripts for images set it
# Normalizing pixels inside of the model, vLLM's default from 0.32 on, gives other pixels after a weight sync.
NORMALIZE = "mm_device_do_normalize"
# vLLM rounds weights as it loads them, also those of a weight sync.
QUANTIZATIONS = {"block": "fp8_per_block", "tensor": "fp8_per_tensor"}
OWN = ("base_url", "python", "weight_dir", "start_timeout")  # entries of engine_kwargs.vllm that vLLM does not get


def engine_arguments(options: EngineOptions, known: Collection[str] = ()) -> dict[str, Any]:
    """All except the model folder. Entries of engine_kwargs.vllm win; null entries are left out.

    `known`: arguments of the installed version, where it matters."""
    on_cpu = options.device.type == "cpu"
    memory = (
        {"kv_cache_memory_bytes": cache_bytes(options)}
        if on_cpu
        else {"gpu_memory_utilization": options.memory_share, "enable_sleep_mode": options.sleeps}
    )
    arguments = {
        "dtype": str(options.dtype).removeprefix("torch."),
        "max_model_len": options.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "enable_chunked_prefill": options.chunked_prefill,
        "enable_prefix_caching": options.prefix_caching,
        "enforce_eager": options.eager,
        "tensor_parallel_size": options.tensor_parallel,
        "pipeline_parallel_size": options.pipeline_parallel,
        "data_parallel_size": options.data_parallel,
        "enable_expert_parallel": options.expert_parallel > 1,
        "trust_remote_code": options.model.trust_remote_code,
        "load_format": load_format(options.load_format),
        "cudagraph_capture_sizes": options.capture_sizes,
        "quantization": options.quantization and QUANTIZATIONS[options.quantization],
        **memory,
        **media_arguments(options, known),
        **engine_kwargs(options),
    }
    fixed = FIXED | {"skip_tokenizer_init": False} if kinds_of(options.model) else FIXED
    return {name: value for name, value in arguments.items() if value is not None} | fixed


def media_arguments(options: EngineOptions, known: Collection[str]) -> dict[str, Any]:
    """For a model that is shown images; vLLM's processor needs the tokenizer."""
    if not kinds_of(options.model):
        return {}
    return {
        "limit_mm_per_prompt": None if options.max_images is None else {"image": options.max_images},
        "mm_processor_kwargs": dict(options.media_settings) or None,
        "tokenizer": options.model.tokenizer_path or None,
        NORMALIZE: False if NORMALIZE in known else None,
    }


def engine_kwargs(options: EngineOptions) -> dict[str, Any]:
    given = {name: value for name, value in options.extra.items() if name not in OWN and value is not None}
    if given.pop(NO_CACHE, False):
        given["mm_processor_cache_gb"] = 0
    return given


def check_kwargs(names: Collection[str], known: Collection[str], section: str, version: str) -> None:
    """Refuse entries of engine_kwargs.vllm that the installed vLLM does not know, or that Burnish sets itself."""
    for name in names:
        key = f"{section}.engine_kwargs.vllm.{name}"
        if name in FIXED or name == "model":
            raise UserError("Burnish sets this argument itself", key=key)
        if name not in known and name not in (*OWN, NO_CACHE):
            similar = nearest(name, [*known, *OWN])
            problem = f"vLLM {version} has no such argument." + (f" Did you mean {similar!r}?" if similar else "")
            raise UserError(problem, key=key, hint=f"{section}.engine_kwargs.vllm.{similar}=..." if similar else None)


def load_format(name: str) -> str:
    return "dummy" if name.startswith("dummy") else LOAD_FORMATS.get(name, name)


def cache_bytes(options: EngineOptions) -> int:
    """On a CPU: the configured share of free memory, but no more than the largest batch can use."""
    config = load_config(options.model).get_text_config()
    heads = config.num_attention_heads
    width = (getattr(config, "head_dim", None) or config.hidden_size // heads) * getattr(
        config, "num_key_value_heads", heads
    )
    per_token = 2 * config.num_hidden_layers * width * options.dtype.itemsize
    num_tokens = options.max_num_seqs * (options.max_model_len + CPU_BLOCK)
    return min(int(free_bytes(options.device) * options.memory_share), num_tokens * per_token + (1 << 20))


CPU_BLOCK = 128  # block size of vLLM's cache on a CPU; a sequence's last block is partly empty


def model_folder(source: ModelSource, work: Path) -> str:
    """The model folder; if its config is overridden, a folder with that config and links to all other files."""
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
    """Sampling settings that vLLM does not support."""
    if sampling.fire:
        problem = "not supported by the vllm engine: it has no separate temperature for the first token"
        yield UserError(problem, key=f"{section}.use_fire_sampling", value=True)
    if not sampling.greedy and sampling.temperature < MIN_TEMPERATURE:
        yield UserError(
            "the vllm engine does not support temperatures between 0 and 0.01",
            key=f"{section}.temperature",
            value=sampling.temperature,
            hint=f"{section}.do_sample=false, for greedy decoding",
        )
    for name in ("presence_penalty", "frequency_penalty"):
        if abs(getattr(sampling, name)) > MAX_PENALTY:
            allowed = f"{-MAX_PENALTY:g} to {MAX_PENALTY:g}"
            value = getattr(sampling, name)
            yield UserError(
                "outside the range that vLLM supports", key=f"{section}.{name}", value=value, allowed=allowed
            )


def sampling_fields(request: Request, eos_ids: Sequence[int]) -> dict[str, Any]:
    """Fields of vLLM's SamplingParams, without bad words, which it expects as text.

    EOS is passed as a stop token, because vLLM runs without a tokenizer. We match stop strings ourselves.
    """
    sampling = request.sampling
    end_ids = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_ids)}
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
        "stop_token_ids": sorted(end_ids),
        "ignore_eos": True,
        "logprobs": sampling.logprobs or 0,
        "seed": request.seed,
        "detokenize": False,
    }
