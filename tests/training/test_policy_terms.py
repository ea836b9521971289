"""What correction, the exact KL, bypass mode and mixtures of experts add to the policy's loss."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from burnish.algos.losses import LOSSES
from burnish.batch import Ragged
from burnish.errors import UserError
from burnish.models.attention import PACKED
from burnish.models.load import ModelSource, load_causal_lm
from burnish.training.backend import MicroBatch
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import MicroBatchSize, PackedRows
from burnish.training.reference import Reference

CPU = torch.device("cpu")
TEMPERATURE = 0.7  # of the test's policy


@pytest.fixture
def corrected(batch):
    """With importance weights, rejected tokens and resampled rows; NaN where an observation's weight would stand."""
    generator = torch.Generator().manual_seed(2)
    own = batch["response_mask"].flat.bool()
    weights = torch.rand(len(own), generator=generator) * 2
    kept = (torch.rand(len(own), generator=generator) > 0.2).float()
    return batch.add(
        importance_weights=Ragged.like(weights.masked_fill(~own, torch.nan), batch["responses"]),
        loss_mask=Ragged.like(kept, batch["responses"]),
        rollout_log_probs=Ragged.like(batch["old_log_probs"].flat + 0.3 * weights, batch["responses"]),
        weight=torch.tensor([1.0, 2.0, 3.0, 0.0, 1.0, 2.0]),
    )


@pytest.mark.parametrize("loss", LOSSES.names())
def test_no_cut_and_no_order_changes_a_corrected_gradient(
    make_policy, corrected, gradients, assert_same, micro_settings, loss
):
    (whole,) = gradients(make_policy(**{"policy_loss.loss_mode": loss}), corrected)
    for cut in micro_settings[:2] + micro_settings[5:7]:
        policy = make_policy(**{"policy_loss.loss_mode": loss, **cut})
        assert_same(gradients(policy, corrected)[0], whole)
    # A loss that chooses tokens at random chooses by place, so that only its cut is free, not its order.
    if loss != "clip_cov":
        moved = gradients(make_policy(**{"policy_loss.loss_mode": loss}), corrected.select([5, 2, 0, 3, 1, 4]))
        assert_same(moved[0], whole)


def naive_rows(model, batch):
    """(log-probs over the vocabulary, response, its slice) of each row, from transformers' own logits."""
    place = 0
    for prompt, response in zip(batch["prompt_ids"].rows(), batch["responses"].rows(), strict=True):
        logits = model(torch.cat([prompt, response])[None]).logits[0] / TEMPERATURE
        span = slice(place, place + len(response))
        place += len(response)
        yield logits.log_softmax(-1)[len(prompt) - 1 : len(prompt) - 1 + len(response)], response, span


def naive_sum(model, batch, per_token):
    """Sum over the own tokens that were kept, rows counted by their weight, and how many there are."""
    mask = batch["response_mask"].flat * batch["loss_mask"].flat
    total, count = 0.0, 0.0
    for row, (log_p, response, span) in enumerate(naive_rows(model, batch)):
        weight = float(batch["weight"][row])
        chosen = log_p.gather(-1, response[:, None]).squeeze(-1)
        # where: the weight of an observation is NaN
        total = total + weight * torch.where(mask[span] > 0, per_token(log_p, chosen, span), 0.0).sum()
        count += weight * float(mask[span].sum())
    return total, count


def gradient_of(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def plain(batch):
    """-A log pi."""
    return lambda log_p, chosen, span: -batch["advantages"].flat[span] * chosen


def test_weights_multiply_the_policy_loss_and_leave_its_denominator(
    make_policy, plain_model, corrected, gradients, assert_same
):
    model, weights = plain_model(), torch.nan_to_num(corrected["importance_weights"].flat)
    loss, reference = plain(corrected), corrected["ref_log_prob"].flat

    def per_token(log_p, chosen, span):
        kl = (chosen - reference[span]).square() / 2
        return weights[span] * loss(log_p, chosen, span) + 0.4 * kl

    total, count = naive_sum(model, corrected, per_token)
    expected = gradient_of(model, total / count)
    settings = {"policy_loss.loss_mode": "gpg", "use_kl_loss": True, "kl_loss_coef": 0.4, "kl_loss_type": "mse"}
    policy = make_policy(**settings, ppo_micro_batch_size_per_gpu=2)
    assert_same(gradients(policy, corrected)[0], expected)


def test_in_bypass_mode_ratios_are_taken_against_the_engine(make_policy, corrected, without, gradients, assert_same):
    policy, other = make_policy(), make_policy()
    policy.old_column = "rollout_log_probs"
    read = without(corrected, "old_log_probs").add(old_log_probs=corrected["rollout_log_probs"])
    assert_same(gradients(policy, corrected)[0], gradients(other, read)[0])
    with pytest.raises(AssertionError):
        assert_same(gradients(other, corrected)[0], gradients(other, read)[0])


def test_in_bypass_mode_the_policy_is_read_on_the_way(make_policy, corrected, without):
    """In the first pass, as each row is first seen."""
    policy = make_policy(ppo_epochs=2, ppo_micro_batch_size_per_gpu=2)
    policy.old_column = "rollout_log_probs"
    unread = without(corrected, "old_log_probs")
    before = policy.compute_log_probs(unread)
    columns = policy.update(unread, 1).columns
    for name in ("old_log_probs", "entropys"):
        torch.testing.assert_close(columns[name].flat, before[name].flat, rtol=0, atol=1e-5)


# The exact KL


@pytest.fixture
def elsewhere(backend):
    """A reference with other weights."""
    made = backend()
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    return Reference(made, TEMPERATURE, MicroBatchSize(rows=2))


def naive_reference(plain_model, reference):
    model = plain_model()
    model.load_state_dict(reference.backend.model.state_dict())
    return model.requires_grad_(False)


@pytest.mark.parametrize("plus", ["", "+"])
def test_the_exact_kl_in_the_loss(make_policy, plain_model, corrected, elsewhere, gradients, assert_same, plus):
    model, reference = plain_model(), naive_reference(plain_model, elsewhere)
    theirs = {span.start: log_q for log_q, _, span in naive_rows(reference, corrected)}
    weights, ref_log_prob = torch.nan_to_num(corrected["importance_weights"].flat), corrected["ref_log_prob"].flat
    loss = plain(corrected)

    def per_token(log_p, chosen, span):
        if plus:  # the gradient of k2
            kl = (chosen - ref_log_prob[span]).square() / 2
        else:
            kl = (log_p.exp() * (log_p - theirs[span.start])).sum(-1) if len(chosen) else chosen
        return weights[span] * loss(log_p, chosen, span) + 0.7 * kl

    total, count = naive_sum(model, corrected, per_token)
    expected = gradient_of(model, total / count)
    settings = {"policy_loss.loss_mode": "gpg", "use_kl_loss": True, "kl_loss_coef": 0.7}
    policy = make_policy(**settings, kl_loss_type=f"full{plus}", ppo_micro_batch_size_per_gpu=4)
    policy.reference = elsewhere
    (found,) = gradients(policy, corrected)
    assert_same(found, expected)
    assert all(p.grad is None for p in elsewhere.backend.model.parameters())


def test_the_exact_kl_is_reported_and_read(make_policy, plain_model, batch, elsewhere):
    ours, theirs = plain_model(), naive_reference(plain_model, elsewhere)
    with torch.no_grad():
        pairs = zip(naive_rows(ours, batch), naive_rows(theirs, batch), strict=True)
        exact = torch.cat([(p.exp() * (p - q)).sum(-1) for (p, _, _), (q, _, _) in pairs])
    own = batch["response_mask"].flat.bool()
    for name in ("full", "full+"):
        policy = make_policy(use_kl_loss=True, kl_loss_type=name)
        policy.reference = elsewhere
        torch.testing.assert_close(policy.compute_exact_kl(batch).flat, exact, rtol=1e-4, atol=1e-4)
        assert policy.update(batch, 1).metrics["actor/kl_loss"] == pytest.approx(float(exact[own].mean()), rel=1e-4)


def test_the_reference_keeps_its_mode_and_the_policy_its_own(make_policy, batch, elsewhere):
    elsewhere.backend.model.train()
    found = elsewhere.head_input(MicroBatch.select(batch, list(range(len(batch)))))
    assert not found.hidden.requires_grad and elsewhere.backend.model.training


def test_a_clamped_kl_in_the_loss(make_policy, batch, gradients, assert_same):
    settings = {"use_kl_loss": True, "kl_loss_type": "k1", "kl_loss_coef": 5.0}
    (free,) = gradients(make_policy(**settings), batch)
    (held,) = gradients(make_policy(**settings, kl_loss_clamp=1e-6), batch)
    (none,) = gradients(make_policy(), batch)
    assert_same(held, none)  # every token is outside: no gradient of the KL is left
    with pytest.raises(AssertionError):
        assert_same(free, none)


# Mixtures of experts


@pytest.fixture(scope="session")
def mixture(tmp_path_factory, tokenizer):
    folder = tmp_path_factory.mktemp("mixture")
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return load_causal_lm(ModelSource(str(folder)), PACKED, torch.float32)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_routers_balance_is_added_to_the_loss(make_policy, mixture, batch, gradients, assert_same, checkpointing):
    def backend():
        return SingleBackend(copy.deepcopy(mixture), CPU, torch.float32)

    (without_it,) = gradients(make_policy(made=backend()), batch)
    policy = make_policy(made=backend(), aux_loss_coef=0.5)
    if checkpointing:
        policy.backend.model.gradient_checkpointing_enable({"use_reentrant": False})
    (with_it,) = gradients(policy, batch)
    model = backend().model
    rows = PackedRows.of(batch, CPU)
    expected = gradient_of(model, 0.5 * model(**rows.inputs(), output_router_logits=True).aux_loss)
    assert any("gate" in name for name in expected)
    assert_same(with_it, {name: g + expected.get(name, 0) for name, g in without_it.items()})
    metrics = policy.update(batch, 1).metrics
    assert metrics["actor/aux_loss"] == pytest.approx(2.0, abs=0.3)  # two of four experts, nearly even at the start


def test_a_model_without_routers_is_refused(make_policy):
    with pytest.raises(UserError, match="has no router") as caught:
        make_policy(aux_loss_coef=0.1)
    assert caught.value.key == "actor_rollout_ref.actor.aux_loss_coef"
