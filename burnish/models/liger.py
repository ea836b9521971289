"""Liger kernels for a model's norms, rotary embedding and MLPs."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig, PreTrainedModel

from burnish.errors import UserError, install_extra
from burnish.models.vision.family import vision_family


def check_liger(device: torch.device, key: str) -> None:
    """Refuse Liger where it cannot run, before a model is loaded."""
    if device.type == "cpu":
        raise UserError("Liger kernels run on GPUs only", key=key, value=True, hint=f"{key}=false")
    try:
        import liger_kernel.transformers  # noqa: F401
    except ImportError as error:
        problem = f"the liger-kernel library is not installed: {install_extra('liger')}"
        raise UserError(problem, key=key, value=True, hint=f"{key}=false") from error


def check_liger_model(config: PretrainedConfig, key: str) -> None:
    """Refuse Liger for models with images: its patches are of their text path."""
    if vision_family(config) is not None:
        problem = f"not supported for models with images (type {config.model_type!r})"
        raise UserError(problem, key=key, value=True, hint=f"{key}=false")


def apply_liger(model: PreTrainedModel) -> None:
    """Patch this instance, without its head: our head never materializes the logits that Liger's loss would fuse."""
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    _apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=False, cross_entropy=False)
