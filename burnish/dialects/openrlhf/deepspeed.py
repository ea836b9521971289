"""Sharding, memory, precision and adapters."""

from __future__ import annotations

from burnish.config.names import ATTENTIONS
from burnish.dialects.openrlhf.estimators import (
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
from burnish.dialects.openrlhf.writing import Writing

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
# Kernels of the hub that are versions of what there is.
HUB_KERNELS = {
    "kernels-community/flash-attn": "flash_attention_2",
    "kernels-community/flash-attn2": "flash_attention_2",
    "kernels-community/flash-attn3": "flash_attention_3",
    "kernels-community/vllm-flash-attn3": "flash_attention_3",
}
# What changes speed or memory in DeepSpeed alone.
INERT = {
    "overlap_comm": "FSDP always overlaps communication with computing",
    "ring_head_stride": "where keys and values travel in a ring, those of all heads travel at once: speed only",
    "deepcompile": "DeepSpeed's compiler: it changed speed only",
    "torch_compile": "DeepSpeed's compiler: it changed speed only",
    "disable_trace_cache": "DeepSpeed's own cache",
    "actor_init_on_gpu": "nothing reads it in v0.9.2 either",
    "perf": "nothing reads it in v0.9.2 either",
    "local_rank": "the launcher says which rank this is",
    "gradient_checkpointing_use_reentrant": "a way of recomputing with the same numbers",
    "grad_accum_dtype": "gradients are summed in the dtype of the kept weights, float32",
    "full_determinism": "every random number is addressed: runs can always be repeated",
    "experts_implementation": "a way of computing experts with the same numbers",
}
# How ranks share a sequence; the number of heads decides, once the model is known.
SHARED = "ranks that share one sequence: by Ulysses where they divide the heads, else by ring attention"


def write(w: Writing) -> None:
    for name, why in INERT.items():
        w.inert(name, why)
    _sharding(w)
    _offloading(w)
    _precision(w)
    attention(w, trained_models(w))
    adapters(w, trained_models(w))
    w.put("gradient_checkpointing", [f"{model}.enable_gradient_checkpointing" for model in trained_models(w)])
    w.put("use_liger_kernel", f"{MODEL}.use_liger")
    w.put("packing_samples", f"{MODEL}.use_remove_padding", True)


def _sharding(w: Writing) -> None:
    stage = w.get("zero_stage")
    zero_stage(w, trained_sections(w))
    if stage != 3:
        why = f"models that are only read are whole on every rank, unless {w.name('zero_stage')} is 3"
        w.put("zero_stage", [f"{section}.fsdp_size" for section in frozen_sections(w)], 1, why)
    sequence, tensor = w.get("ring_attn_size"), w.get("ds_tensor_parallel_size")
    keys = [f"{ACTOR}.ulysses_sequence_parallel_size"]
    keys += ["critic.ulysses_sequence_parallel_size"] if has_critic(w) else []
    keys += ["reward_model.ulysses_sequence_parallel_size"] if has_reward_model(w) else []
    w.put("ring_attn_size", keys, why=SHARED if sequence > 1 else "")
    if tensor == 1:
        w.inert("ds_tensor_parallel_size", "1 is off")
    else:
        why = "ranks that share one layer: strategy=megatron has that"
        w.put("ds_tensor_parallel_size", f"{ACTOR}.strategy", "megatron", why)
        w.put("ds_tensor_parallel_size", f"{ACTOR}.megatron.tensor_model_parallel_size", why=why)


def zero_stage(w: Writing, sections: tuple[str, ...]) -> None:
    """ZeRO's stages as FSDP's sharding; zpg is the size of ZeRO++'s second partition."""
    stage, inner = w.get("zero_stage"), w.get("zpg")
    keys = [f"{section}.reshard_after_forward" for section in sections]
    if stage not in (0, 1, 2, 3):
        w.refuse("zero_stage", "must be 0, 1, 2 or 3")
    elif stage == 3 and inner > 1:
        w.put("zpg", keys, inner, f"weights gathered again from {inner} ranks")
        w.elsewhere("zero_stage", f"weights, gradients and optimizer are sharded; see {w.name('zpg')}")
    elif stage == 3:
        w.put("zero_stage", keys, True, "weights, gradients and optimizer are sharded")
        w.inert("zpg", "1 is off")
    elif stage == 0:
        w.put("zero_stage", [f"{section}.fsdp_size" for section in sections], 1, "nothing is sharded")
    else:
        more = "as with stage 2 the gradients are sharded too; " if stage == 1 else ""
        w.put("zero_stage", keys, False, f"{more}gathered weights stay after the forward pass")
    if stage != 3:
        w.inert("zpg", f"only {w.name('zero_stage')} 3 shards weights")


def _offloading(w: Writing) -> None:
    trained = trained_sections(w)
    why = "the optimizer's state is kept in CPU memory and updated there" if w.get("adam_offload") else ""
    w.put("adam_offload", [f"{section}.offload_policy" for section in trained], why=why)
    if w.get("deepspeed_enable_sleep") and w.get("adam_offload"):
        w.inert("deepspeed_enable_sleep", f"{w.name('adam_offload')} keeps the optimizer in CPU memory anyway")
    else:
        w.put("deepspeed_enable_sleep", [f"{section}.optimizer_offload" for section in trained])
    sections = {"ref_offload": (f"{REF}.fsdp_config",) if has_reference(w) else ()}
    sections["reward_offload"] = ("reward_model.model.fsdp_config",) if has_reward_model(w) else ()
    sections["ref_reward_offload"] = sections["ref_offload"] + sections["reward_offload"]
    for name, there in sections.items():
        w.put(name, [f"{section}.param_offload" for section in there])
        if not there:
            w.inert(name, "there is no such model in this run")


def _precision(w: Writing) -> None:
    asked = w.get("param_dtype")
    sections = (*trained_sections(w), *frozen_sections(w))
    why = "products are computed in it; the kept weights are float32, as under ZeRO"
    w.put("param_dtype", [f"{section}.mixed_precision.param_dtype" for section in sections], asked, why)
    w.put("param_dtype", f"{ROLLOUT}.dtype", DTYPES[asked], "the engine's weights")


def attention(w: Writing, models: tuple[str, ...]) -> None:
    """A kernel: the numbers are the same, so their default is not forced on machines that lack it."""
    asked, keys = w.get("attn_implementation"), [f"{model}.attn_implementation" for model in models]
    ours = HUB_KERNELS.get(asked, asked)
    if not w.given("attn_implementation"):
        w.told.add("attn_implementation")
    elif ours not in ATTENTIONS:
        w.refuse("attn_implementation", f"there are {', '.join(ATTENTIONS)}")
    elif w.get("packing_samples") and not ours.startswith("flash_attention"):
        why = f"theirs changes it for {w.name('packing_samples')}"
        w.put("attn_implementation", keys, "flash_attention_2", why)
    else:
        w.put("attn_implementation", keys, ours)


def adapters(w: Writing, models: tuple[str, ...]) -> None:
    """LoRA, and 4-bit weights under it."""
    rank = w.get("lora_rank")
    w.put("lora_rank", [f"{model}.lora_rank" for model in models])
    if rank == 0:
        for name in ("lora_alpha", "lora_dropout", "target_modules"):
            w.inert(name, f"{w.name('lora_rank')} is 0: no adapter")
    else:
        w.put("lora_alpha", [f"{model}.lora_alpha" for model in models], float(w.get("lora_alpha")))
        w.put("lora_dropout", [f"{model}.lora_dropout" for model in models])
        modules = w.get("target_modules")
        one = modules[0] if isinstance(modules, list) and len(modules) == 1 else modules
        w.put("target_modules", [f"{model}.target_modules" for model in models], one)
    if w.get("load_in_4bit") and rank == 0:
        w.refuse("load_in_4bit", f"4-bit weights cannot be trained: add {w.name('lora_rank')} 16")
    else:
        w.put("load_in_4bit", [f"{model}.load_in_4bit" for model in models])
