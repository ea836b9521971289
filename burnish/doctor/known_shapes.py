"""Shapes of public models by their lower-case Hugging Face names, for models without a local config.json."""

from __future__ import annotations

from typing import Any

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


def _rows(table: dict[str, tuple], **common: Any) -> dict[str, dict[str, Any]]:
    return {name: dict(zip(_COLUMNS, row, strict=True)) | common for name, row in table.items()}


KNOWN: dict[str, dict[str, Any]] = {
    **_rows(_QWEN2, family="qwen2", qkv_bias=True),
    **_rows(_QWEN3, family="qwen3"),
    **_rows(_QWEN3_MOE, family="qwen3_moe", experts=128, active_experts=8),
    **_rows(_LLAMA, family="llama"),
    **_rows(_MISTRAL, family="mistral"),
    **_rows(_GEMMA, family="gemma"),
    **_rows(_GEMMA2, family="gemma2", softcap=True),
}
