"""What the routers of a mixture of experts did in some of the layers: enough for the balancing loss of all layers.

`router.balance_loss` is about all layers together. Where they are on different ranks, each adds its own to the totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class RouterTotals:
    """Sums over layers and tokens: how often an expert was chosen, and its probability."""

    tensor: Tensor  # float32 [2, experts]; only the probabilities have gradients

    @staticmethod
    def zero(num_experts: int, device: torch.device) -> RouterTotals:
        return RouterTotals(torch.zeros((2, num_experts), dtype=torch.float32, device=device))

    def plus(self, router_logits: Sequence[Tensor], num_chosen: int) -> RouterTotals:
        """With the layers of these logits, each [T, experts]."""
        total = self.tensor
        for logits in router_logits:
            probability = logits.float().softmax(-1)
            chosen = probability.topk(num_chosen, dim=-1).indices
            count = torch.bincount(chosen.reshape(-1), minlength=logits.shape[-1])
            total = total + torch.stack([count.float(), probability.sum(0)])
        return RouterTotals(total)

    def balance_loss(self, num_chosen: int) -> Tensor:
        """As `router.balance_loss` of all these layers."""
        chosen = self.tensor[0].detach()
        num = chosen.sum() / num_chosen  # layers x tokens
        return len(chosen) * (chosen / num * (self.tensor[1] / num)).sum()
