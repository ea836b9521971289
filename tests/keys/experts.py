"""Rows of the routers of mixtures of experts, and what one can see of them."""

from __future__ import annotations

import torch

from burnish.batch import Ragged
from burnish.models.routing import Routing
from burnish.training.packing import ROUTED_EXPERTS, row_lengths

from . import observe as see
from . import teaching
from .kit import Case, fixed_batch
from .row import Row

ACTOR = "actor_rollout_ref.actor"
MIXTURE = (lambda kit: f"actor_rollout_ref.model.path={kit.moe_model}",)
RECORD = "actor_rollout_ref.rollout.enable_rollout_routing_replay"
BALANCED = (*MIXTURE, f"{ACTOR}.aux_loss_coef=0.1")


def updated_with(case: Case) -> list[list[int]]:
    """Experts to which the update sends tokens whose recorded choices are always the last and the first expert."""
    policy = case.run.learner.policy
    model = policy.backend.model
    mixtures = [layer.mlp for layer in model.model.layers]
    num_experts, top_k = mixtures[0].gate.weight.shape[0], mixtures[0].gate.top_k
    batch = fixed_batch(case.run)
    choice = torch.tensor([num_experts - 1, *range(top_k - 1)], dtype=torch.uint8)
    recorded = choice.expand(int(row_lengths(batch).sum()), len(mixtures), top_k).contiguous()
    found: list[list[int]] = []
    for mixture in mixtures:
        mixture.experts.register_forward_pre_hook(lambda module, args: found.extend(args[1].tolist()))
    policy.update(batch.add(**{ROUTED_EXPERTS: Ragged(recorded, row_lengths(batch))}), step=1)
    return found


def engine_choices(case: Case) -> list[int] | None:
    """The shape of the choices that come with a rollout, in mixtures and experts of a token."""
    column = see.step_batch(case).get(ROUTED_EXPERTS)
    routing = Routing(case.run.learner.policy.backend.model, RECORD)
    if column is None:
        return None
    tokens = column.flat[column.flat != routing.missing]
    return [*column.flat.shape[1:], int(tokens.max()) < routing.num_experts]


ROWS = [
    Row(f"{ACTOR}.aux_loss_coef", "0.1", teaching.numbers("policy", "actor/grad_norm"), MIXTURE),
    Row(f"{ACTOR}.aux_loss_scope", "sequence", teaching.numbers("policy", "actor/aux_loss"), BALANCED),
    Row(f"{ACTOR}.router_replay.mode", "R3", updated_with, (*MIXTURE, f"{RECORD}=true")),
    Row(RECORD, "true", engine_choices, MIXTURE),
    *(
        Row(
            f"{section}.megatron.override_mcore_model_config",
            "{moe_config:{freeze_moe_router:true}}",
            teaching.num_trained(role),
            (*MIXTURE, *given, f"{section}.strategy=megatron"),
        )
        for section, role, given in ((ACTOR, "policy", ()), ("critic", "critic", ("algorithm.adv_estimator=gae",)))
    ),
]
