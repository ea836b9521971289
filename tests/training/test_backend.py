import pytest
import torch
from torch import nn

from burnish.training.backend import BACKENDS, MicroBatch, create_backend, has_dropout
from burnish.training.backends.single import SingleBackend
from burnish.training.packing import PackedRows
from burnish.training.parallel import ParallelContext

CPU = torch.device("cpu")


def naive(model, prompt, response, temperature):
    """Log-probs and entropies of one row from transformers' own logits."""
    logits = model(torch.cat([prompt, response])[None]).logits[0].float() / temperature
    log_p = logits.log_softmax(-1)[len(prompt) - 1 : -1] if len(response) else logits[:0]
    return log_p.gather(-1, response[:, None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


@torch.no_grad()
def test_packed_log_probs_and_entropies_are_those_of_single_rows(backend, plain_model, batch):
    log_probs, entropy = backend().log_probs(PackedRows.of(batch, CPU), 0.7, with_entropy=True)
    model = plain_model()
    rows = zip(batch["prompt_ids"].rows(), batch["responses"].rows(), strict=True)
    expected = [naive(model, prompt, response, 0.7) for prompt, response in rows]
    torch.testing.assert_close(log_probs, torch.cat([found[0] for found in expected]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, torch.cat([found[1] for found in expected]), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_entropy_is_left_out_unless_asked_for(backend, batch):
    assert backend().log_probs(PackedRows.of(batch, CPU), 1.0, with_entropy=False)[1] is None


@torch.no_grad()
def test_values_stand_before_each_response_token(value_backend, plain_model, batch):
    values = value_backend().values(PackedRows.of(batch, CPU))
    model = plain_model("critic")
    expected = []
    for prompt, response in zip(batch["prompt_ids"].rows(), batch["responses"].rows(), strict=True):
        row = model(torch.cat([prompt, response])[None]).logits[0, :, 0]
        expected.append(row[len(prompt) - 1 : len(prompt) - 1 + len(response)])
    torch.testing.assert_close(values, torch.cat(expected), rtol=1e-5, atol=1e-5)


def test_tied_weights_stream_under_both_names(backend):
    made = backend()
    stream = dict(made.weights())
    assert stream["lm_head.weight"].data_ptr() == stream["model.embed_tokens.weight"].data_ptr()
    assert stream.keys() >= set(made.model.state_dict())
    assert not any(tensor.requires_grad for tensor in stream.values())


@torch.no_grad()
def test_another_compute_format_keeps_the_weights(backend, batch):
    """float32 weights, bfloat16 products: close to the float32 answer, not equal to it."""
    made = backend()
    exact, _ = made.log_probs(PackedRows.of(batch, CPU), 1.0, with_entropy=False)
    made.compute_dtype = torch.float16
    rough, _ = made.log_probs(PackedRows.of(batch, CPU), 1.0, with_entropy=False)
    assert next(made.model.parameters()).dtype == torch.float32
    assert not torch.equal(exact, rough)
    torch.testing.assert_close(exact, rough, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(("probability", "dropping"), [(0.0, False), (0.1, True)])
def test_dropout_is_seen_in_layers_and_in_attention(backend, probability, dropping):
    assert has_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(probability))) is dropping
    model = backend().model
    model.model.layers[1].self_attn.attention_dropout = probability
    assert has_dropout(model) is dropping


def test_the_parallel_context_names_the_backend(backend, monkeypatch):
    model = backend().model
    assert type(create_backend(model, CPU, torch.float32)) is SingleBackend
    monkeypatch.setattr(BACKENDS, "entries", dict(BACKENDS.entries))
    BACKENDS.register("reversed")(Reversed)
    assert BACKENDS.names() == ["single", "fsdp", "pipeline", "reversed"]
    made = create_backend(model, CPU, torch.float32, parallel=ParallelContext(backend="reversed"))
    assert type(made) is Reversed


class Reversed(SingleBackend):
    """Owns the schedule: runs micro-batches last to first, and returns their outputs in the order they were given."""

    def forward_backward(self, batches, loss):
        return super().forward_backward(batches[::-1], loss)[::-1]


def test_a_backend_owns_the_order_of_micro_batches(make_policy, backend, batch, gradients, assert_same):
    """Gradients and reported numbers do not depend on it."""
    plain, reverse = (
        make_policy(made=kind(backend().model, CPU, torch.float32), ppo_micro_batch_size_per_gpu=2)
        for kind in (SingleBackend, Reversed)
    )
    assert_same(gradients(reverse, batch)[0], gradients(plain, batch)[0])
    seen = []
    batches = [MicroBatch.select(batch, [row]) for row in (3, 0, 5)]

    def loss(output):
        seen.append(output.micro_batch.rows)
        return output.log_probs(1.0, with_entropy=False)[0].sum(), output.micro_batch.rows

    assert reverse.backend.forward_backward(batches, loss) == [[3], [0], [5]] and seen == [[5], [0], [3]]


@torch.no_grad()
def test_a_rank_without_rows_runs_a_dummy_whose_loss_counts_nothing(make_policy, batch):
    policy = make_policy()
    with torch.enable_grad():
        policy.backend.forward_backward(
            [MicroBatch.select(batch, [])], lambda output: (output.log_probs(1.0, False)[0].sum(), None)
        )
    assert all(p.grad is not None and not p.grad.any() for p in policy.backend.model.parameters())
