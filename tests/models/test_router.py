"""The load-balancing loss against transformers' own, on tiny mixtures of experts."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen2Config, Qwen3MoeConfig

from burnish.errors import UserError
from burnish.models.router import balance_loss, check_router, scoped_balance_loss
from burnish.models.router_totals import BALANCE_SCOPES
from burnish.models.routing import freeze_routers

SIZES = {
    "vocab_size": 53,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MIXTURES = [
    MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    Qwen3MoeConfig(**SIZES, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, head_dim=8),
]


@pytest.fixture(params=MIXTURES, ids=lambda config: config.model_type)
def mixture(request):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(request.param)


def test_it_is_the_familys_own(mixture):
    ids = torch.arange(3, 40)[None]
    output = mixture(ids, output_router_logits=True)
    torch.testing.assert_close(balance_loss(mixture, output.router_logits), output.aux_loss)


def test_its_gradient_is_the_familys_own(mixture):
    ids = torch.arange(3, 40)[None]

    def gradient(loss):
        mixture.zero_grad()
        loss.backward()
        named = mixture.named_parameters()
        return {name: p.grad.clone() for name, p in named if p.grad is not None and p.grad.abs().max() > 0}

    output = mixture(ids, output_router_logits=True)
    theirs = gradient(output.aux_loss)
    ours = gradient(balance_loss(mixture, mixture(ids, output_router_logits=True).router_logits))
    assert any("gate" in name for name in theirs) and ours.keys() == theirs.keys()
    for name, want in theirs.items():
        torch.testing.assert_close(ours[name], want, rtol=1e-4, atol=1e-6)


def test_even_routing_gives_the_number_of_chosen_experts(mixture):
    top_k = mixture.config.num_experts_per_tok
    # Every token likes its own run of k experts, a little; over all tokens each is chosen equally often.
    experts = 8
    logits = torch.stack([torch.eye(experts)[[(t + i) % experts for i in range(top_k)]].sum(0) for t in range(experts)])
    assert float(balance_loss(mixture, [logits * 1e-3])) == pytest.approx(top_k, rel=1e-5)


def test_a_model_without_routers_is_refused(mixture):
    assert check_router(mixture, "key", 0.1) is None
    dense = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES))
    with pytest.raises(UserError, match="Qwen2ForCausalLM has no router") as caught:
        check_router(dense, "actor_rollout_ref.actor.aux_loss_coef", 0.1)
    assert caught.value.hint == "actor_rollout_ref.actor.aux_loss_coef=0"


def test_scopes_of_the_balancing_loss():
    """A layer by itself is a model of one layer; a sequence by itself is a stream of one."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2))
    layers, lengths = [torch.randn(9, 4, dtype=torch.float64) for _ in range(3)], [2, 4, 3]

    def loss(scope):
        return float(scoped_balance_loss(model, layers, BALANCE_SCOPES[scope], lengths))

    assert loss("model") == pytest.approx(float(balance_loss(model, layers)))
    assert loss("layer") == pytest.approx(sum(float(balance_loss(model, [logits])) for logits in layers))
    rows = [float(balance_loss(model, [row])) for logits in layers for row in logits.split(lengths)]
    assert loss("sequence") == pytest.approx(sum(rows) / len(lengths))
    assert len({round(loss(scope), 4) for scope in BALANCE_SCOPES}) == len(BALANCE_SCOPES)


@pytest.mark.parametrize("scope", BALANCE_SCOPES)
def test_stages_add_up_to_the_balancing_loss(scope):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2))
    layers = [torch.randn(9, 4, requires_grad=True) for _ in range(3)]
    chosen = BALANCE_SCOPES[scope]
    whole = scoped_balance_loss(model, layers, chosen, [2, 4, 3])
    total = chosen.zero(4, torch.device("cpu"))
    for logits in layers:
        total = chosen.add(total, logits, 2, [2, 4, 3])
    found = chosen.loss(total, 2)
    torch.testing.assert_close(found, whole)
    for one, other in zip(torch.autograd.grad(found, layers), torch.autograd.grad(whole, layers), strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("ours", "megatrons"), [("layer", "aux_loss"), ("sequence", "seq_aux_loss")])
def test_megatrons_loss_is_of_fractions_of_all_choices(ours, megatrons):
    """So even routing gives 1 per layer, whatever the number of experts per token."""
    model = AutoModelForCausalLM.from_config(MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2))
    layers = [torch.randn(9, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    losses = [scoped_balance_loss(model, layers, BALANCE_SCOPES[name], [2, 4, 3]) for name in (ours, megatrons)]
    torch.testing.assert_close(losses[0] / 2, losses[1])


def test_routers_are_frozen_and_a_model_without_them_is_refused():
    model = AutoModelForCausalLM.from_config(MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2))
    freeze_routers(model, "key")
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    assert len(frozen) == model.config.num_hidden_layers and all("gate" in name for name in frozen)
    with pytest.raises(UserError, match="no routers"):
        freeze_routers(AutoModelForCausalLM.from_config(Qwen2Config(**SIZES)), "key")
