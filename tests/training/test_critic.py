import pytest
import torch

from burnish.algos.aggregate import LOSS_AGGREGATIONS


def naive_values(model, batch):
    """Each row's values, from transformers' own forward pass."""
    found = []
    for prompt, response in zip(batch["prompt_ids"].rows(), batch["responses"].rows(), strict=True):
        row = model(torch.cat([prompt, response])[None]).logits[0, :, 0]
        found.append(row[len(prompt) - 1 : len(prompt) - 1 + len(response)])
    return found


def naive_loss(model, batch, clip, mode):
    """Half the larger squared error, of the prediction and of the prediction held near the old one."""
    sums, counts = [], []
    columns = [batch[name].rows() for name in ("values", "returns", "response_mask")]
    for value, old, target, mask in zip(naive_values(model, batch), *columns, strict=True):
        held = torch.minimum(torch.maximum(value, old - clip), old + clip)
        error = 0.5 * torch.maximum((value - target) ** 2, (held - target) ** 2)
        sums.append((error * mask).sum())
        counts.append(float(mask.sum()))
    whole, rows = torch.stack(sums), sum(n > 0 for n in counts)
    return {
        "token-mean": whole.sum() / sum(counts),
        "token-sum": whole.sum(),
        "seq-mean-token-sum": whole.sum() / rows,
        "seq-mean-token-mean": (whole / torch.tensor(counts).clamp(min=1)).sum() / rows,
        "seq-mean-token-sum-norm": whole.sum() / rows / 12,
    }[mode]


def test_values_are_those_of_a_naive_forward(make_critic, plain_model, batch):
    with torch.no_grad():
        expected = torch.cat(naive_values(plain_model("critic"), batch))
    values = make_critic(ppo_micro_batch_size_per_gpu=4).compute_values(batch)
    assert torch.equal(values.lengths, batch["responses"].lengths)
    torch.testing.assert_close(values.flat, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", LOSS_AGGREGATIONS.names())
def test_every_cut_gives_the_gradient_of_the_naive_value_loss(
    make_critic, plain_model, batch, gradients, assert_same, micro_settings, mode
):
    model = plain_model("critic")
    loss = naive_loss(model, batch, 0.5, mode)
    loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for cut in micro_settings:
        (found,) = gradients(make_critic(loss_agg_mode=mode, **cut), batch)
        assert_same(found, expected)
    metrics = make_critic(loss_agg_mode=mode).update(batch, 1)
    assert metrics["critic/vf_loss"] == pytest.approx(loss.item(), rel=1e-4)


def test_the_clip_range_matters(make_critic, batch, gradients):
    narrow, wide = (gradients(make_critic(cliprange_value=clip), batch)[0]["score.weight"] for clip in (0.05, 50.0))
    assert not torch.allclose(narrow, wide, rtol=1e-3)


def test_the_critic_learns_its_returns(make_critic, batch):
    critic = make_critic(cliprange_value=50.0, **{"optim.lr": 3e-3})
    losses = [critic.update(batch, step)["critic/vf_loss"] for step in range(12)]
    assert losses[-1] < 0.5 * losses[0]


def test_numbers_of_a_step(make_critic, batch, plain_model):
    critic = make_critic(ppo_mini_batch_size=4, ppo_epochs=2)
    metrics = critic.update(batch, 1)
    assert critic.optimizer.updates == 4
    assert metrics["critic/lr"] == 1e-2
    assert metrics["critic/skipped_updates"] == 0
    assert metrics["critic/grad_norm"] > 0
    assert 0 <= metrics["critic/vf_clipfrac"] <= 1
    with torch.no_grad():
        mask = batch["response_mask"].flat
        mean = (torch.cat(naive_values(plain_model("critic"), batch)) * mask).sum() / mask.sum()
    assert make_critic().update(batch, 1)["critic/vpred_mean"] == pytest.approx(float(mean), abs=1e-4)
