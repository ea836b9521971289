import pytest
import torch

from burnish.algos.aggregate import LOSS_AGGREGATIONS
from burnish.algos.losses import LOSSES
from burnish.batch import Ragged
from burnish.training.policy import loss_options, shuffle_seed

MODES = LOSS_AGGREGATIONS.names()
SEPARATE_LOSSES = [name for name in LOSSES.names() if not LOSSES[name].metadata.get("couples_rows")]
SCALE_LENGTH = 12  # max_response_length of the test's policy


def naive_total(model, batch, per_token, mode, temperature=0.7):
    """One number from a loss per token, row by row, from transformers' own logits and the definition of the mode."""
    masks = batch["response_mask"].flat * (batch["loss_mask"].flat if "loss_mask" in batch else 1)
    weights = batch["weight"].tolist() if "weight" in batch else [1.0] * len(batch)
    sums, counts, place = [], [], 0
    for row, (prompt, response) in enumerate(zip(batch["prompt_ids"].rows(), batch["responses"].rows(), strict=True)):
        span = slice(place, place + len(response))
        place += len(response)
        logits = model(torch.cat([prompt, response])[None]).logits[0] / temperature
        log_p = logits.log_softmax(-1)[len(prompt) - 1 : len(prompt) - 1 + len(response)]
        losses = per_token(log_p, log_p.gather(-1, response[:, None]).squeeze(-1), span)
        sums.append(weights[row] * (losses * masks[span]).sum())
        counts.append(float(masks[span].sum()))
    tokens = sum(w * n for w, n in zip(weights, counts, strict=True))
    rows = sum(w for w, n in zip(weights, counts, strict=True) if n > 0)
    whole = torch.stack(sums)
    return {
        "token-mean": whole.sum() / tokens,
        "token-sum": whole.sum(),
        "seq-mean-token-sum": whole.sum() / rows,
        "seq-mean-token-mean": (whole / torch.tensor(counts).clamp(min=1)).sum() / rows,
        "seq-mean-token-sum-norm": whole.sum() / rows / SCALE_LENGTH,
    }[mode]


def ppo(batch, low=0.2, high=0.2, cap=3.0):
    """The clipped loss with dual clip, as the papers write it."""
    old, advantages = batch["old_log_probs"].flat, batch["advantages"].flat

    def per_token(log_p, chosen, span):
        ratio, a = (chosen - old[span]).exp(), advantages[span]
        loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - low, 1 + high))
        return torch.where(a < 0, torch.minimum(loss, -a * cap), loss)

    return per_token


def gradient_of(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def full_batch(batch):
    """With rejected tokens and resampled rows."""
    rejected = torch.zeros(len(batch["responses"].flat))
    rejected[[0, 8, 20]] = 1
    weight = torch.tensor([1.0, 2.0, 3.0, 0.0, 1.0, 2.0])
    return batch.add(loss_mask=Ragged.like(1 - rejected, batch["responses"]), weight=weight)


@pytest.mark.parametrize("mode", MODES)
def test_every_cut_gives_the_gradient_of_the_naive_loss(
    make_policy, plain_model, full_batch, gradients, assert_same, micro_settings, mode
):
    model = plain_model()
    expected = gradient_of(model, naive_total(model, full_batch, ppo(full_batch), mode))
    for cut in micro_settings:
        (found,) = gradients(make_policy(loss_agg_mode=mode, **cut), full_batch)
        assert_same(found, expected)


@pytest.mark.parametrize("mode", MODES)
def test_the_order_of_rows_changes_no_gradient(make_policy, full_batch, gradients, assert_same, mode):
    policy = make_policy(loss_agg_mode=mode, ppo_micro_batch_size_per_gpu=4)
    (there,) = gradients(policy, full_batch)
    (here,) = gradients(policy, full_batch.select([5, 2, 0, 3, 1, 4]))
    assert_same(here, there)


@pytest.mark.parametrize("loss", SEPARATE_LOSSES)
def test_no_loss_changes_with_the_cut(make_policy, full_batch, gradients, assert_same, loss):
    (whole,) = gradients(make_policy(**{"policy_loss.loss_mode": loss}), full_batch)
    one_by_one = make_policy(**{"policy_loss.loss_mode": loss, "ppo_micro_batch_size_per_gpu": 1})
    assert_same(gradients(one_by_one, full_batch)[0], whole)


def test_a_row_of_weight_two_is_two_rows(make_policy, batch, gradients, assert_same):
    weighted = batch.add(weight=torch.tensor([1.0, 2.0, 1.0, 0.0, 3.0, 1.0]))
    copied = batch.select([0, 1, 1, 2, 4, 4, 4, 5])
    policy = make_policy(ppo_mini_batch_size=8, loss_agg_mode="seq-mean-token-mean")
    assert_same(gradients(policy, weighted)[0], gradients(policy, copied)[0])


def test_old_log_probs_read_on_the_way_are_those_read_before(make_policy, batch, without, gradients, assert_same):
    policy = make_policy(ppo_micro_batch_size_per_gpu=2)
    unread = without(batch, "old_log_probs")
    read = policy.compute_log_probs(unread)
    assert_same(gradients(policy, unread)[0], gradients(policy, unread.add(old_log_probs=read["old_log_probs"]))[0])
    columns = make_policy(use_dynamic_bsz=True, ppo_max_token_len_per_gpu=20).update(unread, 1).columns
    for name in ("old_log_probs", "entropys"):
        assert torch.equal(columns[name].lengths, batch["responses"].lengths)
        torch.testing.assert_close(columns[name].flat, read[name].flat, rtol=0, atol=1e-5)
    assert make_policy().update(batch, 1).columns == {}


def test_the_entropy_bonus_is_taken_off_the_loss(make_policy, plain_model, batch, gradients, assert_same):
    model, loss = plain_model(), ppo(batch)

    def per_token(log_p, chosen, span):
        return loss(log_p, chosen, span) + 0.3 * (log_p.exp() * log_p).sum(-1)

    expected = gradient_of(model, naive_total(model, batch, per_token, "token-mean"))
    policy = make_policy(entropy_coeff=0.3, ppo_micro_batch_size_per_gpu=2)
    assert_same(gradients(policy, batch)[0], expected)


@pytest.mark.parametrize("estimator", ["kl", "mse", "low_var_kl"])
def test_the_kl_to_the_reference_is_added_to_the_loss(
    make_policy, plain_model, batch, gradients, assert_same, estimator
):
    model, loss, reference = plain_model(), ppo(batch), batch["ref_log_prob"].flat

    def per_token(log_p, chosen, span):
        x = chosen - reference[span]
        kl = {"kl": x, "mse": x**2 / 2, "low_var_kl": ((-x).exp() + x - 1).clamp(max=10)}[estimator]
        return loss(log_p, chosen, span) + 0.4 * kl

    expected = gradient_of(model, naive_total(model, batch, per_token, "seq-mean-token-mean"))
    policy = make_policy(
        use_kl_loss=True,
        kl_loss_coef=0.4,
        kl_loss_type=estimator,
        loss_agg_mode="seq-mean-token-mean",
        ppo_micro_batch_size_per_gpu=4,
    )
    assert_same(gradients(policy, batch)[0], expected)


def test_the_numbers_are_those_of_the_naive_loss(make_policy, plain_model, batch):
    model = plain_model()
    with torch.no_grad():
        loss = naive_total(model, batch, ppo(batch), "token-mean")
        entropy = naive_total(model, batch, lambda log_p, chosen, span: -(log_p.exp() * log_p).sum(-1), "token-mean")
        old = batch["old_log_probs"].flat
        away = naive_total(model, batch, lambda log_p, chosen, span: old[span] - chosen, "token-mean")
    policy = make_policy(entropy_coeff=0.01, use_kl_loss=True, kl_loss_coef=0.2, ppo_micro_batch_size_per_gpu=2)
    metrics = policy.update(batch, 1).metrics
    assert metrics["actor/pg_loss"] == pytest.approx(float(loss), abs=1e-5)
    assert metrics["actor/entropy"] == pytest.approx(float(entropy), abs=1e-4)
    assert metrics["actor/ppo_kl"] == pytest.approx(float(away), abs=1e-4)
    assert metrics["actor/kl_coef"] == 0.2
    assert metrics["actor/kl_loss"] > 0
    assert metrics["actor/lr"] == 1e-2
    assert metrics["actor/skipped_updates"] == 0


def test_the_gradient_norm_is_that_before_clipping(make_policy, batch, gradients):
    (gradient,) = gradients(make_policy(), batch)
    norm = torch.cat([g.flatten() for g in gradient.values()]).norm()
    assert make_policy(grad_clip=1e-3).update(batch, 1).metrics["actor/grad_norm"] == pytest.approx(
        float(norm), rel=1e-4
    )


def test_a_positive_advantage_makes_a_token_likelier(make_policy, batch, without):
    policy = make_policy(**{"optim.lr": 1e-3})
    unread = without(batch, "old_log_probs", "advantages")
    ones = torch.zeros(len(batch["responses"].flat))
    ones[:6] = 1.0  # the first row only
    before = policy.compute_log_probs(unread)["old_log_probs"]
    policy.update(unread.add(old_log_probs=before, advantages=Ragged.like(ones, batch["responses"])), 1)
    after = policy.compute_log_probs(unread)["old_log_probs"]
    assert float(after[0].mean()) > float(before[0].mean())


def test_epochs_and_mini_batches_count_updates(make_policy, batch, weights):
    policy = make_policy(ppo_mini_batch_size=2, ppo_epochs=3)
    before = weights(policy)
    policy.update(batch, 1)
    assert (policy.optimizer.updates, policy.optimizer.steps) == (9, 1)
    assert not any(torch.equal(before[name], now) for name, now in weights(policy).items())


def test_a_prompts_responses_stay_in_one_mini_batch(make_policy, batch):
    policy = make_policy(ppo_mini_batch_size=1, rows_per_prompt=3)
    policy.update(batch, 1)
    assert policy.optimizer.updates == 2


def test_a_short_last_mini_batch_counts_its_own_tokens(make_policy, batch, gradients, assert_same):
    first, last = gradients(make_policy(ppo_mini_batch_size=4), batch)
    assert_same(first, gradients(make_policy(), batch.select([0, 1, 2, 3]))[0])
    assert_same(last, gradients(make_policy(), batch.select([4, 5]))[0])


def test_gradient_checkpointing_changes_no_gradient(make_policy, batch, gradients, assert_same):
    (plain,) = gradients(make_policy(), batch)
    policy = make_policy()
    policy.backend.model.gradient_checkpointing_enable({"use_reentrant": False})
    assert_same(gradients(policy, batch)[0], plain, tolerance=1e-6)


def test_dropout_noise_is_named_by_seed_and_step(make_policy, batch, gradients):
    policy, other = make_policy(), make_policy(seed=2)
    for made in (policy, other):
        for layer in made.backend.model.model.layers:
            layer.self_attn.attention_dropout = 0.5
    name = "model.embed_tokens.weight"
    one = gradients(policy, batch, step=1)[0][name]
    torch.randn(17)  # whatever else draws in between
    assert torch.equal(gradients(policy, batch, step=1)[0][name], one)
    assert not torch.equal(gradients(policy, batch, step=2)[0][name], one)
    assert not torch.equal(gradients(other, batch, step=1)[0][name], one)


@pytest.mark.parametrize(
    ("changes", "rows", "once"),
    [({}, 6, True), ({}, 7, False), ({"ppo_epochs": 2}, 6, False), ({"ppo_mini_batch_size": 3}, 6, False)],
)
def test_the_policy_knows_whether_it_is_updated_once(make_policy, changes, rows, once):
    assert make_policy(**changes).updates_once(rows) is once


def test_with_dropout_inference_and_training_differ(make_policy):
    policy = make_policy()
    policy.backend.model.model.layers[0].self_attn.attention_dropout = 0.1
    assert not policy.updates_once(6)


def test_responses_without_a_token_have_no_gradient(make_policy, batch, weights):
    policy = make_policy(**{"optim.weight_decay": 0.0})
    before = weights(policy)
    metrics = policy.update(batch.select([2, 2]), 1).metrics
    assert metrics["actor/pg_loss"] == 0
    assert metrics["actor/grad_norm"] == 0
    assert all(torch.equal(before[name], now) for name, now in weights(policy).items())


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(make_policy, batch, without, weights):
    broken = torch.where(torch.arange(25) == 4, torch.inf, batch["advantages"].flat)
    bad = without(batch, "advantages").add(advantages=Ragged.like(broken, batch["responses"]))
    policy = make_policy()
    before = weights(policy)
    metrics = policy.update(bad, 1).metrics
    assert metrics["actor/skipped_updates"] == 1
    assert all(torch.equal(before[name], now) for name, now in weights(policy).items())
    # A skipped update leaves no trace in the optimizer either: the next one is as if it were the first.
    fresh = make_policy()
    fresh.update(batch, 2)
    assert policy.update(batch, 2).metrics["actor/skipped_updates"] == 0
    assert all(torch.equal(weights(fresh)[name], now) for name, now in weights(policy).items())


def test_a_null_clip_bound_falls_back_to_clip_ratio(make_policy):
    options = loss_options(make_policy(clip_ratio=0.3, clip_ratio_high=0.5).config)
    assert (options.clip_low, options.clip_high, options.clip_c) == (0.3, 0.5, 3.0)


@pytest.mark.parametrize(("shuffle", "own", "seed"), [(False, 5, None), (True, 5, 5), (True, None, 1), (True, 0, 0)])
def test_the_shuffle_has_its_own_seed_or_the_runs(shuffle, own, seed):
    assert shuffle_seed(shuffle, own, run_seed=1) == seed
