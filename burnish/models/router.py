"""Load-balancing loss of mixture-of-experts routers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from burnish.errors import UserError
from burnish.models.router_totals import BALANCE_SCOPES, BalanceScope, top_k


def check_router(model: PreTrainedModel, key: str, value: float) -> None:
    """Refuse a model without routers, or whose family has no load-balancing loss."""
    config = model.config.get_text_config()
    if getattr(config, "router_aux_loss_coef", None) is None or not hasattr(config, "num_experts_per_tok"):
        problem = f"{type(model).__name__} has no router with a load-balancing loss"
        raise UserError(problem, key=key, value=value, hint=f"{key}=0")


def balance_loss(model: PreTrainedModel, router_logits: Sequence[Tensor]) -> Tensor:
    """experts x sum_e (fraction of tokens sent to e) x (mean probability of e), over all layers (arXiv 2101.03961).

    Routers choose k experts per token, so the fractions sum to k; uniform routing gives k.
    """
    num_chosen = top_k(model)
    num_experts = router_logits[0].shape[-1]
    probability = torch.cat([logits.float().softmax(-1) for logits in router_logits])  # [layers x T, experts]
    chosen = probability.topk(num_chosen, dim=-1).indices
    sent = torch.bincount(chosen.reshape(-1), minlength=num_experts) / len(probability)
    return num_experts * (sent * probability.mean(0)).sum()


def scoped_balance_loss(
    model: PreTrainedModel, router_logits: Sequence[Tensor], scope: BalanceScope, lengths: Sequence[int]
) -> Tensor:
    """The same over all layers, or of another scope; `lengths` are those of the sequences."""
    if scope is BALANCE_SCOPES["model"]:
        return balance_loss(model, router_logits)
    total = scope.zero(router_logits[0].shape[-1], router_logits[0].device)
    for logits in router_logits:
        total = scope.add(total, logits, top_k(model), lengths)
    return scope.loss(total, top_k(model))
