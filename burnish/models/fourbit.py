"""4-bit weights (nf4, double quantization) through bitsandbytes: loading and dequantizing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import BitsAndBytesConfig, PreTrainedModel

from burnish.errors import UserError, install_extra


def four_bits(compute_dtype: torch.dtype, heads: tuple[str, ...], key: str) -> BitsAndBytesConfig:
    """Quantization config for transformers; `heads` are not quantized. `key` is the model's config section."""
    _library(key)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
        llm_int8_skip_modules=list(heads),
    )


def is_packed(parameter: Tensor) -> bool:
    """Whether the parameter holds packed 4-bit numbers, with another shape than the weight."""
    return getattr(parameter, "quant_state", None) is not None


def unpacked(parameter: Tensor) -> Tensor:
    """The full-precision weight of a parameter."""
    if not is_packed(parameter):
        return parameter.detach()
    state = parameter.quant_state  # pyright: ignore[reportAttributeAccessIssue]
    return _library("model").functional.dequantize_4bit(parameter.data, state)


def disable_inference_kernels(model: PreTrainedModel) -> PreTrainedModel:
    """Disable bitsandbytes' inference-only CPU kernel: its log-probs differ from those of the training forward pass."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # pyright: ignore[reportArgumentType]
    return model


def _library(key: str) -> Any:
    try:
        import bitsandbytes
    except ImportError as error:
        raise UserError(
            f"4-bit weights need the bitsandbytes library: {install_extra('bitsandbytes')}",
            key=f"{key}.load_in_4bit",
            value=True,
            hint=f"{key}.load_in_4bit=false",
        ) from error
    return bitsandbytes
