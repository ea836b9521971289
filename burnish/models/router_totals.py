"""What the routers of a mixture of experts did in some of the layers: enough for the balancing loss of all layers.

Where layers are on different ranks, each adds its own to the totals, which are one small tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def num_routed_experts(model: PreTrainedModel) -> int:
    """Experts of a model whose routers have a balancing loss, else 0."""
    config = model.config.get_text_config()
    if getattr(config, "router_aux_loss_coef", None) is None or not hasattr(config, "num_experts_per_tok"):
        return 0
    return next((number for name in EXPERTS if (number := getattr(config, name, None) or 0) > 1), 0)


def top_k(model: PreTrainedModel) -> int:
    return model.config.get_text_config().num_experts_per_tok


class BalanceScope(Protocol):
    """Over what the fractions of tokens and the mean probabilities of the balancing loss are taken."""

    def zero(self, num_experts: int, device: torch.device) -> Tensor:
        """Totals of no layer."""
        ...

    def add(self, total: Tensor, logits: Tensor, num_chosen: int, lengths: Sequence[int]) -> Tensor:
        """With a layer of these logits [T, experts]; `lengths` are those of the sequences."""
        ...

    def loss(self, total: Tensor, num_chosen: int) -> Tensor:
        """The loss of all layers that were added."""
        ...


class AllLayers:
    """All layers together, as transformers' own loss. Totals are how often an expert was chosen, and its probability,
    float32 [2, experts]; only the probabilities have gradients."""

    def zero(self, num_experts: int, device: torch.device) -> Tensor:
        return torch.zeros((2, num_experts), dtype=torch.float32, device=device)

    def add(self, total: Tensor, logits: Tensor, num_chosen: int, lengths: Sequence[int]) -> Tensor:
        probability, chosen = _routed(logits, num_chosen)
        count = torch.bincount(chosen.reshape(-1), minlength=logits.shape[-1])
        return total + torch.stack([count.float(), probability.sum(0)])

    def loss(self, total: Tensor, num_chosen: int) -> Tensor:
        """As `router.balance_loss` of all these layers."""
        chosen = total[0].detach()
        num = chosen.sum() / num_chosen  # layers x tokens
        return len(chosen) * (chosen / num * (total[1] / num)).sum()


class EachLayer:
    """Each layer by itself; the layers' losses are added. Totals are that sum, float32 [1].

    With `per_choice`, fractions are those of all choices, so that uniform routing gives 1 per layer (Megatron).
    """

    def __init__(self, per_choice: bool = False) -> None:
        self.per_choice = per_choice

    def zero(self, num_experts: int, device: torch.device) -> Tensor:
        return torch.zeros(1, dtype=torch.float32, device=device)

    def add(self, total: Tensor, logits: Tensor, num_chosen: int, lengths: Sequence[int]) -> Tensor:
        return self._add(total, logits, num_chosen, [len(logits)])

    def loss(self, total: Tensor, num_chosen: int) -> Tensor:
        return total[0] / num_chosen if self.per_choice else total[0]

    @staticmethod
    def _add(total: Tensor, logits: Tensor, num_chosen: int, lengths: Sequence[int]) -> Tensor:
        """The mean over sequences of experts x sum_e (fraction of its tokens sent to e) x (mean probability of e)."""
        probability, chosen = _routed(logits, num_chosen)
        num_experts = logits.shape[-1]
        sizes = torch.tensor(lengths, device=logits.device)
        row = torch.arange(len(sizes), device=logits.device).repeat_interleave(sizes, output_size=len(logits))
        sent = torch.zeros(len(sizes), num_experts, device=logits.device)
        sent.index_put_((row[:, None].expand_as(chosen), chosen), sent.new_ones(()), accumulate=True)
        probable = torch.zeros_like(sent).index_add(0, row, probability)
        losses = num_experts * (sent * probable).sum(-1) / sizes**2
        return total + losses.mean()


class EachSequence(EachLayer):
    """Each sequence of each layer by itself: the mean over sequences, added over layers."""

    def add(self, total: Tensor, logits: Tensor, num_chosen: int, lengths: Sequence[int]) -> Tensor:
        return self._add(total, logits, num_chosen, lengths)


def _routed(logits: Tensor, num_chosen: int) -> tuple[Tensor, Tensor]:
    """Probabilities of all experts [T, experts], and the chosen ones [T, k]."""
    probability = logits.float().softmax(-1)
    return probability, probability.topk(num_chosen, dim=-1).indices


BALANCE_SCOPES: dict[str, BalanceScope] = {
    "model": AllLayers(),
    "layer": EachLayer(),
    "sequence": EachSequence(),
    "aux_loss": EachLayer(per_choice=True),
    "seq_aux_loss": EachSequence(per_choice=True),
}
