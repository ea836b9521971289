"""The model library: the shapes that `defaults: - model: NAME` selects from, and how they compare with a config.json.

The numbers stand under Megatron's names. A model's own config.json decides what is trained; a shape only has to agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_COMMON: dict[str, Any] = {
    "make_vocab_size_divisible_by": 1,
    "untie_embeddings_and_output_weights": True,
    "disable_bias_linear": True,
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "swiglu": True,
}


def _shape(
    layers: int, hidden: int, ffn: int, heads: int, groups: int | None, vocab: int, **more: Any
) -> dict[str, Any]:
    grouped = {} if groups is None else {"group_query_attention": True, "num_query_groups": groups}
    return {
        **_COMMON,
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "num_attention_heads": heads,
        **grouped,
        "padded_vocab_size": vocab,
        **more,
    }


def _qwen25(*numbers: int, **more: Any) -> dict[str, Any]:
    fixed = {"rotary_base": 1000000, "max_position_embeddings": 32768, "add_qkv_bias": True}
    return _shape(*numbers, 152064, **fixed, **more)


def _qwen3(*numbers: int, **more: Any) -> dict[str, Any]:
    fixed = {"rotary_base": 1000000, "max_position_embeddings": 40960, "qk_layernorm": True}
    return _shape(*numbers, 151936, **fixed, **more)


def _experts(count: int, chosen: int, width: int, **more: Any) -> dict[str, Any]:
    return {
        "num_experts": count,
        "moe_router_topk": chosen,
        "moe_ffn_hidden_size": width,
        "norm_topk_prob": True,
        **more,
    }


_BALANCED = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.001}

SHAPES: dict[str, dict[str, Any]] = {
    "qwen25_7b": _qwen25(28, 3584, 18944, 28, 4, norm_epsilon=1e-6),
    "qwen25_32b": _qwen25(64, 5120, 27648, 40, 8, norm_epsilon=1e-5),
    "qwen3_8b": _qwen3(36, 4096, 12288, 32, 8),
    "qwen3_32b": _qwen3(64, 5120, 25600, 64, 8, kv_channels=128),
    "qwen3_30b_a3b": _qwen3(48, 2048, 8192, 32, 4, kv_channels=128, **_experts(128, 8, 768, **_BALANCED)),
    "qwen3_235b_a22b": _qwen3(
        *(94, 4096, 12288, 64, 4), kv_channels=128, norm_epsilon=1e-6, **_experts(128, 8, 1536, **_BALANCED)
    ),
    "deepseekv3_671b": _shape(
        *(61, 7168, 18432, 128, None, 129280),
        rotary_base=10000,
        max_position_embeddings=163840,
        norm_epsilon=1e-6,
        qk_layernorm=True,
        multi_latent_attention=True,
        qk_pos_emb_head_dim=64,
        qk_head_dim=128,
        q_lora_rank=1536,
        kv_lora_rank=512,
        v_head_dim=128,
        first_k_dense_replace=3,
        moe_layer_freq=1,
        n_shared_experts=1,
        **_experts(256, 8, 2048, moe_router_load_balancing_type="seq_aux_loss"),
        moe_router_num_groups=8,
        moe_router_group_topk=4,
        moe_router_topk_scaling_factor=2.5,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        rope_scaling_type="yarn",
        beta_fast=32,
        beta_slow=1,
        rope_scaling_factor=40,
        rope_scaling_mscale=1.0,
        rope_scaling_mscale_all_dim=1.0,
        rope_scaling_original_max_position_embeddings=4096,
    ),
}

# Megatron's name -> the names in a Hugging Face config.json.
_MUST_AGREE: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "ffn_hidden_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads",),
    "num_query_groups": ("num_key_value_heads",),
    "kv_channels": ("head_dim",),
    "num_experts": ("num_experts", "n_routed_experts", "num_local_experts"),
    "moe_router_topk": ("num_experts_per_tok",),
    "moe_ffn_hidden_size": ("moe_intermediate_size",),
    "q_lora_rank": ("q_lora_rank",),
    "kv_lora_rank": ("kv_lora_rank",),
    "v_head_dim": ("v_head_dim",),
}
_MAY_DIFFER: dict[str, tuple[str, ...]] = {
    "norm_epsilon": ("rms_norm_eps", "layer_norm_eps"),
    "rotary_base": ("rope_theta",),
}


def read_hf_config(path: str, folder: str = ".") -> dict[str, Any] | None:
    """config.json of a model folder that is here; None where it is not."""
    file = Path(folder, str(path)).expanduser() / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    rope = config.get("rope_parameters") or {}
    return {**({"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}), **config}


def disagreements(shape: Mapping[str, Any], hf: Mapping[str, Any]) -> Iterator[str]:
    """Numbers by which this is another model than the one of the config.json, in words."""
    skipped = _not_compared(shape)
    for name, value, there in _pairs({**shape, "num_layers": _real_layers(shape)}, hf, _MUST_AGREE):
        if name not in skipped and value != there:
            yield f"{name} is {value}, config.json says {there}"
    vocab, there = shape.get("padded_vocab_size"), hf.get("vocab_size")
    if vocab is not None and there is not None and vocab < there:
        yield f"padded_vocab_size is {vocab}, config.json has {there} tokens"


def other_numbers(shape: Mapping[str, Any], hf: Mapping[str, Any]) -> Iterator[str]:
    """Numbers that differ though it is the same model: those of config.json hold here."""
    for name, value, there in _pairs(shape, hf, _MAY_DIFFER):
        if float(value) != float(there):
            yield f"{name} {there:g} of config.json holds, not {float(value):g}"


def in_words(shape: Mapping[str, Any]) -> str:
    """A shape in one line."""
    heads, groups = shape.get("num_attention_heads"), shape.get("num_query_groups")
    parts = [
        f"{shape.get('num_layers')} layers of {shape.get('hidden_size')}",
        f"{heads} heads" + (f" in {groups} groups" if shape.get("group_query_attention") else ""),
    ]
    if shape.get("num_experts"):
        parts.append(f"{shape['num_experts']} experts, {shape.get('moe_router_topk')} at a time")
    return ", ".join(parts)


def _pairs(
    shape: Mapping[str, Any], hf: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, Any, Any]]:
    for name, theirs in names.items():
        there = next((hf[one] for one in theirs if hf.get(one) is not None), None)
        if shape.get(name) is not None and there is not None:
            yield name, shape[name], there


def _not_compared(shape: Mapping[str, Any]) -> set[str]:
    """Numbers that mean nothing for this kind of model."""
    skipped = set() if shape.get("group_query_attention") else {"num_query_groups"}
    if shape.get("multi_latent_attention"):
        skipped |= {"kv_channels"}
    if not shape.get("num_experts"):
        return skipped | {"moe_router_topk", "moe_ffn_hidden_size"}
    return skipped if shape.get("first_k_dense_replace") else skipped | {"ffn_hidden_size"}


def _real_layers(shape: Mapping[str, Any]) -> int | None:
    """Layers that compute: noop_layers only fill pipeline stages."""
    layers, idle = shape.get("num_layers"), str(shape.get("noop_layers") or "")
    return None if layers is None else layers - len([one for one in idle.split(",") if one.strip()])
