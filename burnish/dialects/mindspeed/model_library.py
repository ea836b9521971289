"""The model library that `defaults: - model: NAME` selects from, and its comparison with a model's config.json.

Entries use Megatron's key names. Burnish builds the model from config.json; an entry only has to match it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.untrusted import read_json_object

_COMMON: dict[str, Any] = {
    "make_vocab_size_divisible_by": 1,
    "untie_embeddings_and_output_weights": True,
    "disable_bias_linear": True,
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "swiglu": True,
}


def _architecture(
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


def _qwen25(layers: int, hidden: int, ffn: int, heads: int, groups: int, **more: Any) -> dict[str, Any]:
    fixed = {"rotary_base": 1000000, "max_position_embeddings": 32768, "add_qkv_bias": True}
    return _architecture(layers, hidden, ffn, heads, groups, 152064, **fixed, **more)


def _qwen3(layers: int, hidden: int, ffn: int, heads: int, groups: int, **more: Any) -> dict[str, Any]:
    fixed = {"rotary_base": 1000000, "max_position_embeddings": 40960, "qk_layernorm": True}
    return _architecture(layers, hidden, ffn, heads, groups, 151936, **fixed, **more)


def _experts(num_experts: int, top_k: int, hidden_size: int, **more: Any) -> dict[str, Any]:
    return {
        "num_experts": num_experts,
        "moe_router_topk": top_k,
        "moe_ffn_hidden_size": hidden_size,
        "norm_topk_prob": True,
        **more,
    }


_BALANCED = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.001}

MODELS: dict[str, dict[str, Any]] = {
    "qwen25_7b": _qwen25(28, 3584, 18944, 28, 4, norm_epsilon=1e-6),
    "qwen25_32b": _qwen25(64, 5120, 27648, 40, 8, norm_epsilon=1e-5),
    "qwen3_8b": _qwen3(36, 4096, 12288, 32, 8),
    "qwen3_32b": _qwen3(64, 5120, 25600, 64, 8, kv_channels=128),
    "qwen3_30b_a3b": _qwen3(48, 2048, 8192, 32, 4, kv_channels=128, **_experts(128, 8, 768, **_BALANCED)),
    "qwen3_235b_a22b": _qwen3(
        *(94, 4096, 12288, 64, 4), kv_channels=128, norm_epsilon=1e-6, **_experts(128, 8, 1536, **_BALANCED)
    ),
    "deepseekv3_671b": _architecture(
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

# Megatron key -> possible keys in a Hugging Face config.json.
_MUST_MATCH: dict[str, tuple[str, ...]] = {
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
    """config.json of a local model folder, or None if there is none."""
    file = Path(folder, str(path)).expanduser() / "config.json"
    try:
        config = read_json_object(file)
    except (OSError, UserError):
        return None
    rope = config.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}
    return {**({"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}), **config}


def mismatches(shape: Mapping[str, Any], hf: Mapping[str, Any]) -> Iterator[str]:
    """Messages about values that show that config.json belongs to another model."""
    skipped = _not_compared(shape)
    for name, value, hf_value in _pairs({**shape, "num_layers": _num_real_layers(shape)}, hf, _MUST_MATCH):
        if name not in skipped and value != hf_value:
            yield f"{name} is {value}, but {hf_value} in config.json"
    vocab_size, hf_vocab_size = shape.get("padded_vocab_size"), hf.get("vocab_size")
    if vocab_size is not None and hf_vocab_size is not None and vocab_size < hf_vocab_size:
        yield f"padded_vocab_size is {vocab_size}, but config.json has {hf_vocab_size} tokens"


def replaced_values(shape: Mapping[str, Any], hf: Mapping[str, Any]) -> Iterator[str]:
    """Messages about values that may differ for the same model; Burnish uses those of config.json."""
    for name, value, hf_value in _pairs(shape, hf, _MAY_DIFFER):
        if float(value) != float(hf_value):
            yield f"{name} is {hf_value:g} as in config.json, not {float(value):g}"


def summarize(shape: Mapping[str, Any]) -> str:
    """A one-line description."""
    heads, groups = shape.get("num_attention_heads"), shape.get("num_query_groups")
    parts = [
        f"{shape.get('num_layers')} layers, hidden size {shape.get('hidden_size')}",
        f"{heads} heads" + (f" in {groups} KV groups" if shape.get("group_query_attention") else ""),
    ]
    if shape.get("num_experts"):
        parts.append(f"{shape['num_experts']} experts, {shape.get('moe_router_topk')} active")
    return ", ".join(parts)


def _pairs(
    shape: Mapping[str, Any], hf: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, Any, Any]]:
    for name, hf_names in names.items():
        hf_value = next((hf[hf_name] for hf_name in hf_names if hf.get(hf_name) is not None), None)
        if shape.get(name) is not None and hf_value is not None:
            yield name, shape[name], hf_value


def _not_compared(shape: Mapping[str, Any]) -> set[str]:
    """Keys that do not apply to this kind of model."""
    skipped = set() if shape.get("group_query_attention") else {"num_query_groups"}
    if shape.get("multi_latent_attention"):
        skipped |= {"kv_channels"}
    if not shape.get("num_experts"):
        return skipped | {"moe_router_topk", "moe_ffn_hidden_size"}
    return skipped if shape.get("first_k_dense_replace") else skipped | {"ffn_hidden_size"}


def _num_real_layers(shape: Mapping[str, Any]) -> int | None:
    """The number of layers without noop_layers, which only fill pipeline stages."""
    num_layers, noop_layers = shape.get("num_layers"), str(shape.get("noop_layers") or "")
    return None if num_layers is None else num_layers - len([part for part in noop_layers.split(",") if part.strip()])
