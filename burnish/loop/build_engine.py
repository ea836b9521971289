"""The engine of a rollout section: how its keys become the options that every engine is built from."""

from __future__ import annotations

import dataclasses
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from burnish.config.expert_rules import RECORD
from burnish.config.ranks import PARALLEL_SIZES
from burnish.config.rollout import RolloutConfig
from burnish.errors import UserError
from burnish.loop.sampling import decoder
from burnish.models.device import pick_device, pick_dtype
from burnish.models.load import ModelSource
from burnish.models.tensor_group import TensorGroup
from burnish.rollout.engine import ENGINES, DraftOptions, Engine, EngineOptions, check_engine, engine_row
from burnish.rollout.engines.devices import device_entries
from burnish.rollout.engines.supervised import Supervised

if TYPE_CHECKING:
    from burnish.config import TrainConfig
    from burnish.config.rollout import SamplingConfig

Section = TypeVar("Section", bound="SamplingConfig")  # of an engine


def engine_of(
    rollout: SamplingConfig,
    source: ModelSource,
    device: torch.device,
    generation: Any,
    tokenizer: Any,
    section: str = "actor_rollout_ref.rollout",
    own_thread: bool | None = None,
    bucket_megabytes: int = 512,
    beside: bool = False,
    data: Any = None,
    group: TensorGroup | None = None,
) -> Engine:
    """The engine of a rollout section, still without weights; `group`: the ranks that share it.

    `generation` is the model's generation config, `data` the section that says how images are processed.
    """
    options = EngineOptions(
        model=source,
        dtype=pick_dtype(rollout.dtype, device, f"{section}.dtype"),
        device=device,
        eos_ids=eos_ids(generation, tokenizer),
        max_model_len=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        memory_share=rollout.gpu_memory_utilization,
        invariant=rollout.invariant,
        own_thread=device.type != "cpu" if own_thread is None else own_thread,
        chunked_prefill=rollout.enable_chunked_prefill,
        prefix_caching=rollout.enable_prefix_caching,
        decode=decoder(tokenizer),
        eager=device.type == "cpu" if rollout.enforce_eager is None else rollout.enforce_eager,
        capture_sizes=rollout.cudagraph_capture_sizes,
        load_format=rollout.load_format,
        sleeps=rollout.free_cache_engine,
        beside=beside,
        tensor_group=group,
        tensor_parallel=rollout.tensor_model_parallel_size,
        data_parallel=rollout.data_parallel_size,
        expert_parallel=rollout.expert_parallel_size,
        pipeline_parallel=rollout.pipeline_model_parallel_size,
        bucket_megabytes=bucket_megabytes,
        devices=() if group is None else tuple(itertools.chain(*group.gather(device_entries(device)))),
        extra=engine_kwargs(rollout),
        max_images=None if data is None else data.max_images_per_prompt,
        media_settings={} if data is None else data.mm_processor_kwargs,
        quantization=quantization(rollout),
        drafts=draft_options(rollout),
        record_experts=records_experts(rollout),
        section=section,
    )
    entry = engine_row(rollout.name, engine_mode(rollout, group is not None), group is not None and not group.leads)
    create = partial(entry.load(), options)
    return Supervised(create) if "out_of_process" in entry.metadata else create()


def engine_mode(rollout: SamplingConfig, shared: bool = False) -> str:
    """rollout.mode. Only a server can use the devices of several ranks, or run data-parallel engines."""
    return "async" if shared or rollout.data_parallel_size > 1 else rollout.mode


def one_device(rollout: Section) -> Section:
    """The section for one of several engines: every device holds a whole one."""
    return dataclasses.replace(rollout, **dict.fromkeys(PARALLEL_SIZES, 1))


def engine_kwargs(rollout: Any) -> dict[str, Any]:
    """The section of rollout.engine_kwargs for the chosen engine."""
    sections = rollout.engine_kwargs
    given = {"builtin": sections.builtin, "vllm": sections.vllm, "sglang": sections.sglang}
    return dict(given.get(rollout.name, {}))


def draft_options(rollout: SamplingConfig) -> DraftOptions | None:
    drafts = rollout.speculative
    return DraftOptions(drafts.num_speculative_tokens, drafts.max_num_seqs) if drafts.enable else None


def records_experts(rollout: SamplingConfig) -> bool:
    """Whether the engine reports which experts it has sent each token to."""
    return isinstance(rollout, RolloutConfig) and rollout.enable_rollout_routing_replay


def quantization(rollout: SamplingConfig) -> Literal["block", "tensor"] | None:
    """What has a scale of its own in the engine's 8-bit weights; None where they are not rounded."""
    if not isinstance(rollout, RolloutConfig) or rollout.quantization is None:
        return None
    return "block" if rollout.use_block_quant_rollout else "tensor"


def check_quantization(rollout: SamplingConfig, device: torch.device, section: str) -> None:
    """Raise where the engine cannot round its weights."""
    if quantization(rollout) is None:
        return
    key, devices = f"{section}.quantization", ENGINES[rollout.name].metadata.get("quantizes", ())
    if device.type in devices:
        return
    able = " and ".join(name for name in ENGINES.names() if ENGINES[name].metadata.get("quantizes"))
    problem = f"weights are sent unrounded, and only the engines {able} round what they receive"
    if devices:
        problem = f"the {rollout.name} engine computes with 8-bit weights on GPUs only"
    raise UserError(problem, key=key, value="fp8", hint=f"{section}.name=builtin, or {key}=null")


def check_engine_of(
    rollout: SamplingConfig, device: torch.device, section: str = "actor_rollout_ref.rollout", shared: bool = False
) -> None:
    """Raise where the engine is not installed or does not accept these arguments; `shared`: by several ranks."""
    if records_experts(rollout) and not ENGINES[rollout.name].metadata.get("records_experts"):
        able = [name for name in ENGINES.names() if ENGINES[name].metadata.get("records_experts")]
        problem = f"not supported yet with rollout.name={rollout.name}, whose choices of experts are not read"
        raise UserError(problem, key=RECORD, value=True, hint=f"{section}.name={able[0]}")
    check_quantization(rollout, device, section)
    entry = engine_row(rollout.name, engine_mode(rollout, shared))
    check_engine(entry.load(), engine_kwargs(rollout), device, section)


def compared_dtype(cfg: TrainConfig) -> torch.dtype | None:
    """The engine's dtype, in which its weights are compared with the policy's; None disables the comparison."""
    rollout = cfg.actor_rollout_ref.rollout
    if not rollout.verify_weights:
        return None
    return pick_dtype(rollout.dtype, pick_device(cfg.trainer.device), "actor_rollout_ref.rollout.dtype")


def eos_ids(generation: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends a response: those of the generation config and of the tokenizer."""
    configured = getattr(generation, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({token for token in [*ids, tokenizer.eos_token_id] if token is not None}))
