"""Backend: one trainable or frozen model on one device. In one process it is the plain module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from burnish.models.logprobs import token_log_probs
from burnish.models.parts import backbone, head_weight, logit_softcap
from burnish.train.packing import PackedRows


class Backend:
    """Holds the module; knows how to run it on packed rows and how to stream its weights."""

    def __init__(self, model: PreTrainedModel, device: torch.device, compute_dtype: torch.dtype) -> None:
        self.model = model.to(device)
        self.device = device
        self.compute_dtype = compute_dtype

    def autocast(self) -> AbstractContextManager:
        """Products in the compute format where the weights are kept in another."""
        if self.compute_dtype == next(self.model.parameters()).dtype:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)

    def log_probs(self, rows: PackedRows, temperature: float, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
        """Log-prob (and entropy) of each response token, [R]."""
        with self.autocast():
            hidden = backbone(self.model)(**rows.inputs()).last_hidden_state[0]
        weight = head_weight(self.model)
        chosen = hidden[rows.predicts].to(self.compute_dtype)
        return token_log_probs(
            chosen, weight.to(self.compute_dtype), rows.targets, temperature, with_entropy, logit_softcap(self.model)
        )

    def values(self, rows: PackedRows) -> Tensor:
        """The value head's prediction before each response token, [R]."""
        with self.autocast():
            output = self.model(**rows.inputs()).logits
        return output[0, rows.predicts, 0].float()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of every parameter, tied ones under all their names."""
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            yield name, parameter.detach()


def has_dropout(module: nn.Module) -> bool:
    """Would two passes in training mode differ?"""
    dropping = any(isinstance(m, nn.Dropout) and m.p > 0 for m in module.modules())
    return dropping or any(getattr(m, "attention_dropout", 0.0) > 0 for m in module.modules())
