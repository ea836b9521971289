"""Shapes of public models by their lower-case Hugging Face names, for models without a local config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from burnish.doctor.latent import Latent
from burnish.doctor.tower import Tower

_COLUMNS = ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_dim", "vocab", "tied")

# name: hidden, intermediate, layers, heads, key/value heads, head size, vocabulary, tied head
_QWEN2 = {
    "qwen2.5-0.5b": (896, 4864, 24, 14, 2, 64, 151936, True),
    "qwen2.5-1.5b": (1536, 8960, 28, 12, 2, 128, 151936, True),
    "qwen2.5-3b": (2048, 11008, 36, 16, 2, 128, 151936, True),
    "qwen2.5-7b": (3584, 18944, 28, 28, 4, 128, 152064, False),
    "qwen2.5-14b": (5120, 13824, 48, 40, 8, 128, 152064, False),
    "qwen2.5-32b": (5120, 27648, 64, 40, 8, 128, 152064, False),
    "qwen2.5-72b": (8192, 29568, 80, 64, 8, 128, 152064, False),
    "qwen2-0.5b": (896, 4864, 24, 14, 2, 64, 151936, True),
    "qwen2-1.5b": (1536, 8960, 28, 12, 2, 128, 151936, True),
    "qwen2-7b": (3584, 18944, 28, 28, 4, 128, 152064, False),
    "qwen2-72b": (8192, 29568, 80, 64, 8, 128, 152064, False),
    "qwq-32b": (5120, 27648, 64, 40, 8, 128, 152064, False),
    "deepseek-r1-distill-qwen-1.5b": (1536, 8960, 28, 12, 2, 128, 151936, False),
    "deepseek-r1-distill-qwen-7b": (3584, 18944, 28, 28, 4, 128, 152064, False),
    "deepseek-r1-distill-qwen-14b": (5120, 13824, 48, 40, 8, 128, 152064, False),
    "deepseek-r1-distill-qwen-32b": (5120, 27648, 64, 40, 8, 128, 152064, False),
}
_QWEN3 = {
    "qwen3-0.6b": (1024, 3072, 28, 16, 8, 128, 151936, True),
    "qwen3-1.7b": (2048, 6144, 28, 16, 8, 128, 151936, True),
    "qwen3-4b": (2560, 9728, 36, 32, 8, 128, 151936, True),
    "qwen3-8b": (4096, 12288, 36, 32, 8, 128, 151936, False),
    "qwen3-14b": (5120, 17408, 40, 40, 8, 128, 151936, False),
    "qwen3-32b": (5120, 25600, 64, 64, 8, 128, 151936, False),
}
_QWEN3_MOE = {
    "qwen3-30b-a3b": (2048, 768, 48, 32, 4, 128, 151936, False),
    "qwen3-235b-a22b": (4096, 1536, 94, 64, 4, 128, 151936, False),
}
_DEEPSEEK3 = {
    "deepseek-v3": (7168, 2048, 61, 128, 128, 192, 129280, False),
}
_LLAMA = {
    "llama-3.2-1b": (2048, 8192, 16, 32, 8, 64, 128256, True),
    "llama-3.2-3b": (3072, 8192, 28, 24, 8, 128, 128256, True),
    "llama-3-8b": (4096, 14336, 32, 32, 8, 128, 128256, False),
    "llama-3.1-8b": (4096, 14336, 32, 32, 8, 128, 128256, False),
    "llama-3-70b": (8192, 28672, 80, 64, 8, 128, 128256, False),
    "llama-3.1-70b": (8192, 28672, 80, 64, 8, 128, 128256, False),
    "llama-3.3-70b": (8192, 28672, 80, 64, 8, 128, 128256, False),
    "llama-2-7b": (4096, 11008, 32, 32, 32, 128, 32000, False),
    "llama-2-13b": (5120, 13824, 40, 40, 40, 128, 32000, False),
    "llama-2-70b": (8192, 28672, 80, 64, 8, 128, 32000, False),
    "deepseek-r1-distill-llama-8b": (4096, 14336, 32, 32, 8, 128, 128256, False),
    "fsfairx-llama3-rm": (4096, 14336, 32, 32, 8, 128, 128256, False),
    "deepseek-llm-7b": (4096, 11008, 30, 32, 32, 128, 102400, False),
    "deepseek-math-7b": (4096, 11008, 30, 32, 32, 128, 102400, False),
    "deepseek-coder-6.7b": (4096, 11008, 32, 32, 32, 128, 32256, False),
    "smollm2-135m": (576, 1536, 30, 9, 3, 64, 49152, True),
    "smollm2-360m": (960, 2560, 32, 15, 5, 64, 49152, True),
    "smollm2-1.7b": (2048, 8192, 24, 32, 32, 64, 49152, True),
}
_MISTRAL = {
    "mistral-7b": (4096, 14336, 32, 32, 8, 128, 32000, False),
    "mistral-7b-v0.3": (4096, 14336, 32, 32, 8, 128, 32768, False),
    "mistral-7b-instruct-v0.3": (4096, 14336, 32, 32, 8, 128, 32768, False),
}
_GEMMA = {
    "gemma-2b": (2048, 16384, 18, 8, 1, 256, 256000, True),
    "gemma-7b": (3072, 24576, 28, 16, 16, 256, 256000, True),
    "gemma-1.1-7b": (3072, 24576, 28, 16, 16, 256, 256000, True),
}
_GEMMA2 = {
    "gemma-2-2b": (2304, 9216, 26, 8, 4, 256, 256000, True),
    "gemma-2-9b": (3584, 14336, 42, 16, 8, 256, 256000, True),
    "gemma-2-27b": (4608, 36864, 46, 32, 16, 128, 256000, True),
}

_QWEN2_VL = {
    "qwen2-vl-2b": (1536, 8960, 28, 12, 2, 128, 151936, True),
    "qwen2-vl-7b": (3584, 18944, 28, 28, 4, 128, 152064, False),
    "qwen2-vl-72b": (8192, 29568, 80, 64, 8, 128, 152064, False),
}
_QWEN25_VL = {
    "qwen2.5-vl-3b": (2048, 11008, 36, 16, 2, 128, 151936, True),
    "qwen2.5-vl-7b": (3584, 18944, 28, 28, 4, 128, 152064, False),
    "qwen2.5-vl-32b": (5120, 27648, 64, 40, 8, 128, 152064, False),
    "qwen2.5-vl-72b": (8192, 29568, 80, 64, 8, 128, 152064, False),
}
_QWEN3_VL = {
    "qwen3-vl-2b": (2048, 6144, 28, 16, 8, 128, 151936, True),
    "qwen3-vl-4b": (2560, 9728, 36, 32, 8, 128, 151936, True),
    "qwen3-vl-8b": (4096, 12288, 36, 32, 8, 128, 151936, False),
    "qwen3-vl-32b": (5120, 25600, 64, 64, 8, 128, 151936, False),
}
_QWEN3_VL_MOE = {
    "qwen3-vl-30b-a3b": (2048, 768, 48, 32, 4, 128, 151936, False),
    "qwen3-vl-235b-a22b": (4096, 1536, 94, 64, 4, 128, 151936, False),
}
_SMOLVLM = {
    "smolvlm-256m": (576, 1536, 30, 9, 3, 64, 49280, False),
    "smolvlm-500m": (960, 2560, 32, 15, 5, 64, 49280, False),
    "smolvlm2-256m": (576, 1536, 30, 9, 3, 64, 49280, False),
    "smolvlm2-500m": (960, 2560, 32, 15, 5, 64, 49280, False),
    "smolvlm-instruct": (2048, 8192, 24, 32, 32, 64, 49155, False),
    "smolvlm2-2.2b": (2048, 8192, 24, 32, 32, 64, 49280, False),
}
_GEMMA3 = {
    "gemma-3-4b": (2560, 10240, 34, 8, 4, 256, 262208, True),
    "gemma-3-12b": (3840, 15360, 48, 16, 8, 256, 262208, True),
    "gemma-3-27b": (5376, 21504, 62, 32, 16, 128, 262208, True),
}

# Vision towers: hidden, intermediate, layers, heads, patch size, patches per side of a token.
_QWEN2_TOWER = Tower("qwen2_vl", 1280, 5120, 32, 16, 14, 2, output=0)
_QWEN25_TOWER = Tower("qwen2_5_vl", 1280, 3420, 32, 16, 14, 2, output=0)
_QWEN3_TOWER = Tower("qwen3_vl", 1152, 4304, 27, 16, 16, 2, output=0, num_positions=2304, num_deepstack=3)
_SMOL_TOWER = Tower("smolvlm", 768, 3072, 12, 12, 16, 4, output=0, num_positions=32 * 32)
_SO400M = Tower("gemma3", 1152, 4304, 27, 16, 14, 4, output=0, num_positions=64 * 64)
# Towers of single models that differ from those of their family.
_TOWERS = {
    **dict.fromkeys(("qwen2.5-vl-32b", "qwen2.5-vl-72b"), replace(_QWEN25_TOWER, intermediate=3456)),
    **dict.fromkeys(("qwen3-vl-2b", "qwen3-vl-4b"), replace(_QWEN3_TOWER, hidden=1024, intermediate=4096, layers=24)),
    **dict.fromkeys(
        ("smolvlm-instruct", "smolvlm2-2.2b"), replace(_SO400M, family="smolvlm", merge=3, num_positions=27 * 27)
    ),
}


def _seeing(table: dict[str, tuple], tower: Tower, **common: Any) -> dict[str, dict[str, Any]]:
    """Rows of vision models: the tower's output has the language model's hidden size."""
    return {
        name: row | {"tower": replace(_TOWERS.get(name, tower), output=row["hidden"])}
        for name, row in _rows(table, **common).items()
    }


def _rows(table: dict[str, tuple], **common: Any) -> dict[str, dict[str, Any]]:
    return {name: dict(zip(_COLUMNS, row, strict=True)) | common for name, row in table.items()}


KNOWN: dict[str, dict[str, Any]] = {
    **_rows(_QWEN2, family="qwen2", qkv_bias=True),
    **_rows(_QWEN3, family="qwen3"),
    **_rows(_QWEN3_MOE, family="qwen3_moe", experts=128, active_experts=8),
    **_rows(
        _DEEPSEEK3,
        family="deepseek_v3",
        experts=256,
        active_experts=8,
        shared_intermediate=2048,
        dense_layers=3,
        dense_intermediate=18432,
        latent=Latent(rank=512, query_rank=1536, rope=64, nope=128, value=128),
    ),
    **_rows(_LLAMA, family="llama"),
    **_rows(_MISTRAL, family="mistral"),
    **_rows(_GEMMA, family="gemma"),
    **_rows(_GEMMA2, family="gemma2", softcap=True),
    **_seeing(_QWEN2_VL, _QWEN2_TOWER, family="qwen2", qkv_bias=True),
    **_seeing(_QWEN25_VL, _QWEN25_TOWER, family="qwen2", qkv_bias=True),
    **_seeing(_QWEN3_VL, _QWEN3_TOWER, family="qwen3"),
    **_seeing(_QWEN3_VL_MOE, _QWEN3_TOWER, family="qwen3_moe", experts=128, active_experts=8),
    **_seeing(_SMOLVLM, _SMOL_TOWER, family="llama"),
    **_seeing(_GEMMA3, _SO400M, family="gemma3_text"),
}
