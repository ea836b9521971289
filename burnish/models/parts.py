"""Backbone and head of a Hugging Face language model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from burnish.errors import UserError
from burnish.models.logprobs import chunk_logits
from burnish.models.vision.family import vision_family


def backbone(model: PreTrainedModel) -> nn.Module:
    """Everything before the head: token ids -> hidden states. Of a vision-language model, its language model."""
    family = vision_family(model.config)
    return getattr(model, model.base_model_prefix) if family is None else family.language_model(model)


def modules_outside(model: nn.Module, skip: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """All modules of a model but those below `skip`."""
    skipped = {id(module) for part in skip for module in part.modules()}
    return (module for module in model.modules() if id(module) not in skipped)


def saved_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Buffers that are in a model's files, under their names: they belong to its weights (DeepSeek-V3's routers)."""
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}".lstrip("."), buffer


def all_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and saved buffers, tied weights once."""
    yield from model.named_parameters()
    yield from saved_buffers(model)


def head_weight(model: PreTrainedModel) -> Tensor:
    """[vocabulary, hidden]; the embedding itself if they are tied."""
    head = model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise UserError(f"{type(model).__name__} has no linear head without bias", key="actor_rollout_ref.model.path")
    return head.weight


def token_values(model: PreTrainedModel, inputs: dict[str, Any]) -> Tensor:
    """A value model's prediction at every token, [1, T]."""
    if vision_family(model.config) is None:
        return model(**inputs).logits[..., 0]
    return model.get_submodule("score")(backbone(model)(**inputs).last_hidden_state)[..., 0]


def logit_softcap(model: PreTrainedModel) -> float | None:
    """Gemma's tanh cap on the final logits."""
    return getattr(model.config, "final_logit_softcapping", None)


@torch.no_grad()
def check_head(model: PreTrainedModel, **kwargs: object) -> None:
    """Refuse a model whose logits are not a linear (soft-capped) function of its hidden states.

    Takes arguments of the model, such as `inputs_embeds` for one without an embedding.
    """
    if "inputs_embeds" not in kwargs:
        kwargs["input_ids"] = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    theirs = model(use_cache=False, **kwargs).logits[0].float()
    hidden = backbone(model)(use_cache=False, **kwargs).last_hidden_state[0]
    ours = chunk_logits(hidden, head_weight(model), 1.0, logit_softcap(model))
    if not torch.allclose(ours, theirs, rtol=2e-2, atol=2e-2 * float(theirs.abs().max() + 1e-6)):
        raise UserError(
            f"{type(model).__name__} computes its logits in a way that Burnish does not support",
            key="actor_rollout_ref.model.path",
        )
