"""The plain transformers model of a trained one, without adapters and quantization, for saving and loading."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

from burnish.errors import UserError
from burnish.models.load import model_class
from burnish.models.vision.tower import without_stream_attention


def plain_config(model: PreTrainedModel) -> PretrainedConfig:
    """The model's config without its quantization config."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # pyright: ignore[reportAttributeAccessIssue]
    without_stream_attention(config)
    return config


def plain_model(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """A model of the same class with these weights (not copied), ready for save_pretrained."""
    config = plain_config(model)
    config.dtype = next(iter(weights.values())).dtype
    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(dict(weights), assign=True)
    plain.tie_weights()
    generation = model.generation_config if model.can_generate() else None
    plain.generation_config = generation  # pyright: ignore[reportAttributeAccessIssue]
    return plain


def build_model(
    config: PretrainedConfig,
    weights: Mapping[str, Tensor] | None,
    *,
    values: bool,
    generation: Path | None = None,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """A language (or value) model of this config with these weights; without weights, on the meta device."""
    family = model_class(config, values=values, key="CHECKPOINT")
    with torch.device("meta"):
        model = family.from_config(config, trust_remote_code=trust_remote_code)
    if weights is None:
        return model
    missing, unknown = model.load_state_dict(dict(weights), assign=True, strict=False)
    missing = [name for name in missing if name not in tied_names(model)]
    if missing or unknown:
        problem = f"the weights do not match the config: {', '.join([*missing, *unknown][:3])}"
        raise UserError(problem, key="CHECKPOINT")
    model.tie_weights()
    model.config.dtype = next(iter(weights.values())).dtype
    if generation is not None:
        model.generation_config = GenerationConfig.from_pretrained(generation.parent)
    return model


def tied_names(model: PreTrainedModel) -> set[str]:
    """Names of tied weights, which a checkpoint may leave out."""
    return set(model.all_tied_weights_keys or ())
