"""Packed attention against transformers' own, row by row."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from burnish.errors import UserError
from burnish.models.attention import PACKED, PACKED_EAGER, band_mask, packed_attention, shared_attention
from burnish.models.load import ModelSource, load_causal_lm
from burnish.models.varlen import Block, Segments

LENGTHS = [5, 23, 1, 9, 23, 8, 40]  # shorter and longer than the window, and two of one length


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 53, (n,), generator=generator) for n in LENGTHS]


@pytest.fixture
def packed_model(family_folder):
    return load_causal_lm(ModelSource(family_folder), PACKED, torch.float32).eval()


def run_packed(model, rows, embeddings=None):
    lengths = [len(row) for row in rows]
    tokens = {"input_ids": torch.cat(rows)[None]} if embeddings is None else {"inputs_embeds": embeddings[None]}
    return model(
        **tokens,
        position_ids=torch.cat([torch.arange(n) for n in lengths])[None],
        attention_mask=None,
        use_cache=False,
        segments=lengths,
    ).logits[0]


def run_rows(model, rows):
    return torch.cat([model(input_ids=row[None], use_cache=False).logits[0] for row in rows])


def test_packed_equals_row_by_row(family_folder, packed_model, their_model, rows):
    theirs = run_rows(their_model(family_folder), rows)
    torch.testing.assert_close(run_packed(packed_model, rows), theirs, rtol=0, atol=1e-5)


def test_the_reference_is_sensitive_to_the_far_past(family_folder, their_model, rows):
    """Were the models blind to their context, equality above would say nothing."""
    model, row = their_model(family_folder), rows[-1].clone()
    before = model(input_ids=row[None], use_cache=False).logits[0, -1]
    row[-12] = (row[-12] + 1) % 53
    assert (model(input_ids=row[None], use_cache=False).logits[0, -1] - before).abs().max() > 1e-2


def test_gradients_equal(family_folder, packed_model, their_model, rows):
    theirs = load_causal_lm(ModelSource(family_folder), None, torch.float32).eval()
    targets = torch.cat(rows)
    for model, run in ((packed_model, run_packed), (theirs, run_rows)):
        torch.nn.functional.cross_entropy(run(model, rows), targets).backward()
    named = dict(theirs.named_parameters())
    for name, parameter in packed_model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, named[name].grad, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert max(float(p.grad.abs().max()) for p in packed_model.parameters()) > 1e-3


def test_a_row_is_deaf_to_its_neighbors(packed_model, rows):
    before = run_packed(packed_model, rows).split(LENGTHS)
    rows[3] = (rows[3] + 1) % 53
    after = run_packed(packed_model, rows).split(LENGTHS)
    for number, (a, b) in enumerate(zip(before, after, strict=True)):
        assert torch.equal(a, b) == (number != 3)


def test_no_gradient_crosses_rows(packed_model, rows):
    embeddings = packed_model.get_input_embeddings()(torch.cat(rows)).detach().requires_grad_()
    run_packed(packed_model, rows, embeddings).split(LENGTHS)[1].sum().backward()
    reached = [bool(part.abs().sum() > 0) for part in embeddings.grad.split(LENGTHS)]
    assert reached == [False, True, False, False, False, False, False]


def test_band_mask():
    assert band_mask(4, 2, torch.device("cpu")).int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]
    assert torch.equal(band_mask(4, None, torch.device("cpu")), torch.ones(4, 4).tril().bool())


def test_attention_sinks_are_refused(tiny_folder):
    """gpt-oss passes its sinks as s_aux; leaving them out would be silently wrong."""
    model = load_causal_lm(ModelSource(tiny_folder), PACKED, torch.float32)
    attention = model.model.layers[0].self_attn
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(UserError, match="attention sinks"):
        packed_attention(attention, x, x, x, None, segments=[3], scaling=1.0, s_aux=torch.zeros(2))


def test_the_eager_product_is_the_same_product(family_folder):
    ids, positions = torch.arange(3, 30)[None], torch.cat([torch.arange(12), torch.arange(15)])[None]
    found = [
        load_causal_lm(ModelSource(family_folder), attn, torch.float32)(
            input_ids=ids, position_ids=positions, segments=[12, 15], use_cache=False
        ).logits
        for attn in (PACKED, PACKED_EAGER)
    ]
    torch.testing.assert_close(*found, rtol=0, atol=1e-4)


@pytest.mark.parametrize("window", [None, 3, 100])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_blocks_see_each_other_in_both_directions(window, softcap):
    """Beside a mask of the whole stream: causal or in the same block, and in the window."""
    lengths, blocks = [7, 9, 4], [Block(0, 2, 5), Block(7, 7, 11), Block(7, 12, 16)]
    total = sum(lengths)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, total, 8, generator=generator, requires_grad=True)
    key, value = (torch.randn(1, 2, total, 8, generator=generator, requires_grad=True) for _ in range(2))
    module = nn.Module()
    options = {"scaling": 0.4, "sliding_window": window, "softcap": softcap}
    packed = shared_attention(
        packed_attention, module, query, key, value, None, segments=Segments(lengths, blocks), **options
    )[0]
    row = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    block = torch.arange(total).neg() - 1
    for number, one in enumerate(blocks):
        block[one.start : one.end] = number
    places = torch.arange(total)
    seen = (places[:, None] >= places[None, :]) | (block[:, None] == block[None, :])
    seen &= row[:, None] == row[None, :]
    if window is not None:
        seen &= places[:, None] - places[None, :] < window
    scores = query @ key.repeat_interleave(2, 1).transpose(2, 3) * 0.4
    scores = scores if softcap is None else torch.tanh(scores / softcap) * softcap
    expected = (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value.repeat_interleave(2, 1)).transpose(1, 2)
    torch.testing.assert_close(packed, expected, rtol=0, atol=2e-6)
    weights = torch.randn(expected.shape, generator=generator)
    ours, theirs = (torch.autograd.grad((out * weights).sum(), (query, key, value)) for out in (packed, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-6)
