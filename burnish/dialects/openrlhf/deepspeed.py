"""Sharding, offloading, precision, attention kernels, LoRA."""

from __future__ import annotations

from burnish.config.names import ATTENTIONS
from burnish.dialects.openrlhf.roles import (
    ACTOR,
    MODEL,
    REF,
    ROLLOUT,
    frozen_sections,
    has_critic,
    has_reference,
    has_reward_model,
    trained_models,
    trained_sections,
)
from burnish.dialects.openrlhf.translator import Translator

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Kernels from the Hugging Face hub that are builds of supported ones.
HUB_KERNELS = {
    "kernels-community/flash-attn": "flash_attention_2",
    "kernels-community/flash-attn2": "flash_attention_2",
    "kernels-community/flash-attn3": "flash_attention_3",
    "kernels-community/vllm-flash-attn3": "flash_attention_3",
}
# Flags that only affect speed or memory of DeepSpeed.
INERT = {
    "overlap_comm": "FSDP always overlaps communication and computation",
    "ring_head_stride": "Burnish's ring attention sends all heads at once; affects speed only",
    "deepcompile": "compilation in DeepSpeed; affects speed only",
    "torch_compile": "compilation in DeepSpeed; affects speed only",
    "disable_trace_cache": "a cache of DeepSpeed",
    "actor_init_on_gpu": "unused in OpenRLHF v0.9.2 too",
    "perf": "unused in OpenRLHF v0.9.2 too",
    "local_rank": "set by the launcher",
    "gradient_checkpointing_use_reentrant": "another implementation of checkpointing with the same results",
    "grad_accum_dtype": "gradients are accumulated in float32, the dtype of the master weights",
    "full_determinism": "random numbers are counter-based: runs are always reproducible",
    "experts_implementation": "another implementation of expert layers with the same results",
}
# The choice depends on the number of heads, which is known when the model is loaded.
SEQUENCE_PARALLEL = "sequence parallelism: Ulysses if the size divides the number of heads, else ring attention"


def translate(t: Translator) -> None:
    for name, why in INERT.items():
        t.inert(name, why)
    _sharding(t)
    _offloading(t)
    _precision(t)
    attention(t, trained_models(t))
    adapters(t, trained_models(t))
    t.set("gradient_checkpointing", [f"{model}.enable_gradient_checkpointing" for model in trained_models(t)])
    t.set("use_liger_kernel", f"{MODEL}.use_liger")
    t.set("packing_samples", f"{MODEL}.use_remove_padding", True)


def _sharding(t: Translator) -> None:
    stage = t.get("zero_stage")
    zero_stage(t, trained_sections(t))
    if stage != 3:
        why = f"frozen models are replicated on every rank unless {t.spelling('zero_stage')} is 3"
        t.set("zero_stage", [f"{section}.fsdp_size" for section in frozen_sections(t)], 1, why)
    sequence, tensor = t.get("ring_attn_size"), t.get("ds_tensor_parallel_size")
    keys = [f"{ACTOR}.ulysses_sequence_parallel_size"]
    keys += ["critic.ulysses_sequence_parallel_size"] if has_critic(t) else []
    keys += ["reward_model.ulysses_sequence_parallel_size"] if has_reward_model(t) else []
    t.set("ring_attn_size", keys, why=SEQUENCE_PARALLEL if sequence > 1 else "")
    if tensor == 1:
        t.inert("ds_tensor_parallel_size", "1 is off")
    else:
        why = "tensor parallelism requires strategy=megatron"
        t.set("ds_tensor_parallel_size", f"{ACTOR}.strategy", "megatron", why)
        t.set("ds_tensor_parallel_size", f"{ACTOR}.megatron.tensor_model_parallel_size", why=why)


def zero_stage(t: Translator, sections: tuple[str, ...]) -> None:
    """Translate ZeRO stages to FSDP sharding; zpg is the size of ZeRO++'s secondary partition."""
    stage, partition = t.get("zero_stage"), t.get("zpg")
    keys = [f"{section}.reshard_after_forward" for section in sections]
    if stage not in (0, 1, 2, 3):
        t.refuse("zero_stage", "must be 0, 1, 2 or 3")
    elif stage == 3 and partition > 1:
        t.set("zpg", keys, partition, f"weights are resharded over {partition} ranks after the forward pass")
        t.converted("zero_stage", f"weights, gradients and optimizer are sharded; see {t.spelling('zpg')}")
    elif stage == 3:
        t.set("zero_stage", keys, True, "weights, gradients and optimizer are sharded")
        t.inert("zpg", "1 is off")
    elif stage == 0:
        t.set("zero_stage", [f"{section}.fsdp_size" for section in sections], 1, "nothing is sharded")
    else:
        note = "gradients are sharded too, as in stage 2; " if stage == 1 else ""
        t.set("zero_stage", keys, False, f"{note}weights are not resharded after the forward pass")
    if stage != 3:
        t.inert("zpg", f"only {t.spelling('zero_stage')} 3 shards weights")


def _offloading(t: Translator) -> None:
    trained = trained_sections(t)
    why = "optimizer state is kept and updated in CPU memory" if t.get("adam_offload") else ""
    t.set("adam_offload", [f"{section}.offload_policy" for section in trained], why=why)
    if t.get("deepspeed_enable_sleep") and t.get("adam_offload"):
        t.inert("deepspeed_enable_sleep", f"{t.spelling('adam_offload')} already keeps the optimizer in CPU memory")
    else:
        t.set("deepspeed_enable_sleep", [f"{section}.optimizer_offload" for section in trained])
    ref = [f"{REF}.fsdp_config"] if has_reference(t) else []
    reward = ["reward_model.model.fsdp_config"] if has_reward_model(t) else []
    for name, targets in (("ref_offload", ref), ("reward_offload", reward), ("ref_reward_offload", ref + reward)):
        t.set(name, [f"{section}.param_offload" for section in targets])
        if not targets:
            t.inert(name, "this run has no such model")


def _precision(t: Translator) -> None:
    dtype = t.get("param_dtype")
    sections = (*trained_sections(t), *frozen_sections(t))
    why = "compute dtype; master weights are float32, as with ZeRO"
    t.set("param_dtype", [f"{section}.mixed_precision.param_dtype" for section in sections], dtype, why)
    t.set("param_dtype", f"{ROLLOUT}.dtype", DTYPES[dtype], "dtype of the engine's weights")


def attention(t: Translator, models: tuple[str, ...]) -> None:
    """The attention kernel. OpenRLHF's default is not written out, because not every machine has it."""
    kernel, keys = t.get("attn_implementation"), [f"{model}.attn_implementation" for model in models]
    ours = HUB_KERNELS.get(kernel, kernel)
    if not t.has("attn_implementation"):
        t.handled.add("attn_implementation")
    elif ours not in ATTENTIONS:
        t.refuse("attn_implementation", f"must be one of {', '.join(ATTENTIONS)}")
    elif t.get("packing_samples") and not ours.startswith("flash_attention"):
        why = f"OpenRLHF replaces it with {t.spelling('packing_samples')}"
        t.set("attn_implementation", keys, "flash_attention_2", why)
    else:
        t.set("attn_implementation", keys, ours)


def adapters(t: Translator, models: tuple[str, ...]) -> None:
    """LoRA and 4-bit base weights."""
    rank = t.get("lora_rank")
    t.set("lora_rank", [f"{model}.lora_rank" for model in models])
    if rank == 0:
        for name in ("lora_alpha", "lora_dropout", "target_modules"):
            t.inert(name, f"{t.spelling('lora_rank')} is 0: LoRA is off")
    else:
        t.set("lora_alpha", [f"{model}.lora_alpha" for model in models], float(t.get("lora_alpha")))
        t.set("lora_dropout", [f"{model}.lora_dropout" for model in models])
        modules = t.get("target_modules")
        targets = modules[0] if isinstance(modules, list) and len(modules) == 1 else modules
        t.set("target_modules", [f"{model}.target_modules" for model in models], targets)
    if t.get("load_in_4bit") and rank == 0:
        t.refuse("load_in_4bit", f"4-bit weights cannot be trained: add {t.spelling('lora_rank')} 16")
    else:
        t.set("load_in_4bit", [f"{model}.load_in_4bit" for model in models])
