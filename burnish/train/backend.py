"""Backend: one trainable or frozen model on one device. In one process it is the plain module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from burnish.models.exact_kl import HeadInput
from burnish.models.fourbit import is_packed
from burnish.models.logprobs import token_log_probs
from burnish.models.lora import Adapters
from burnish.models.parts import backbone, head_weight, logit_softcap
from burnish.models.reward_model import last_token_scores
from burnish.models.router import balance_loss
from burnish.train.offload import Offload, activations_on_cpu
from burnish.train.packing import PackedRows


@dataclass(frozen=True)
class BackendOptions:
    """How a model uses memory and kernels."""

    offload: bool = False  # the weights wait in CPU memory between phases
    activations_on_cpu: bool = False  # and activations between forward and backward
    compile_head: bool = False


PLAIN = BackendOptions()


class Backend:
    """Holds the module; knows how to run it on packed rows and how to stream its weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        device: torch.device,
        compute_dtype: torch.dtype,
        *,
        adapters: Adapters | None = None,
        options: BackendOptions = PLAIN,
    ) -> None:
        self.offload = Offload(self._movable, device, _is_taught) if options.offload else None
        self.model = model if options.offload else model.to(device)
        self.device = device
        self.compute_dtype = compute_dtype
        self.adapters = adapters
        self.options = options

    def at_work(self) -> AbstractContextManager:
        """The weights are on the device inside; where nothing is offloaded they always are."""
        return contextlib.nullcontext() if self.offload is None else self.offload.fetched()

    def without_adapters(self) -> AbstractContextManager:
        """The model as it was before it had adapters."""
        return contextlib.nullcontext() if self.adapters is None else self.adapters.off()

    def _movable(self) -> Iterator[Tensor]:
        """Everything that offloading moves: buffers too, 4-bit weights not (their scales would stay behind)."""
        yield from (parameter for parameter in self.model.parameters() if not is_packed(parameter))
        yield from self.model.buffers()

    def _saving(self) -> AbstractContextManager:
        """Where the forward pass leaves what the backward pass needs."""
        if not (self.options.activations_on_cpu and torch.is_grad_enabled()):
            return contextlib.nullcontext()
        return activations_on_cpu(self.model, self.device)

    def autocast(self) -> AbstractContextManager:
        """Products in the compute format where the weights are kept in another."""
        if self.compute_dtype == next(self.model.parameters()).dtype:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.compute_dtype)

    def log_probs(
        self, rows: PackedRows, temperature: float, with_entropy: bool, head: HeadInput | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Log-prob (and entropy) of each response token, [R]; `head` where the backbone has run already."""
        head = self.head_input(rows) if head is None else head
        return token_log_probs(
            head.hidden,
            head.weight,
            rows.targets,
            temperature,
            with_entropy,
            head.softcap,
            compiled=self.options.compile_head,
        )

    def head_input(self, rows: PackedRows, with_balance: bool = False) -> HeadInput:
        """The hidden state that predicts each response token [R, hidden], and the head's weights."""
        routers = {"output_router_logits": True} if with_balance else {}
        with self.autocast(), self._saving():
            output = backbone(self.model)(**rows.inputs(), **routers)
        hidden = output.last_hidden_state[0, rows.predicts].to(self.compute_dtype)
        weight = head_weight(self.model).to(self.compute_dtype)
        balance = balance_loss(self.model, output.router_logits) if with_balance else None
        return HeadInput(hidden, weight, logit_softcap(self.model), balance)

    def values(self, rows: PackedRows) -> Tensor:
        """The value head's prediction before each response token, [R]."""
        with self.autocast(), self._saving():
            output = self.model(**rows.inputs()).logits
        return output[0, rows.predicts, 0].float()

    def scores(self, rows: PackedRows) -> Tensor:
        """The score head's number at the last token of each row, [rows]."""
        with self.autocast():
            return last_token_scores(self.model, rows.inputs(), rows.ends)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of every parameter, tied ones under all their names; adapters merged into what they adapt."""
        if self.adapters is not None:
            yield from self.adapters.merged(self.device)
            return
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            yield name, parameter.detach()


def _is_taught(tensor: Tensor) -> bool:
    return tensor.requires_grad


def has_dropout(module: nn.Module) -> bool:
    """Would two passes in training mode differ?"""
    dropping = any(isinstance(m, nn.Dropout) and m.p > 0 for m in module.modules())
    return dropping or any(getattr(m, "attention_dropout", 0.0) > 0 for m in module.modules())
