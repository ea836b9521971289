"""A number for every weight: what changes it, what does not, and what a run says when an engine holds another one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.rollout.engine import Capabilities
from burnish.rollout.engines.digests import WIDTH, WORD, Tally, digest, digests_of, sums_of, sync_weights

BITS = {torch.int8: torch.int8, torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}
BITS[torch.float64] = torch.int64


def matrix(rows=5, columns=7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(rows, columns, generator=generator) * 20).to(dtype)


def number(tensor):
    return int(digest(tensor))


def flips(tensor):
    """The tensor with one bit turned round, for every bit of some of its numbers."""
    words, width = tensor.view(BITS[tensor.dtype]).view(-1), 8 * tensor.element_size()
    places = {*range(0, len(words), 1 + len(words) // 20), len(words) - 1}
    for place, bit in itertools.product(places, range(width)):
        flipped = words.clone()
        flipped[place] ^= -(1 << bit) if bit == width - 1 else 1 << bit
        yield flipped.view(tensor.dtype).view(tensor.shape)


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("shape", [(5, 7), (35,), (5, 1, 7), (13, 8191)])
def test_every_bit_counts(dtype, shape):
    """Also in a tensor that is several rows of the table, with words and bytes left over."""
    tensor = matrix(math.prod(shape), 1, dtype).reshape(shape)
    assert tensor.numel() < 36 or tensor.nbytes // WORD // WIDTH > 2
    found = list(map(number, flips(tensor)))
    assert len({number(tensor), *found}) == 1 + len(found)


def test_signs_that_change_places_count():
    """The highest bit of a word, and nothing else of it."""
    places = [(1, 1), (1, 3), (1, 2 * WIDTH - 1), (0, 1), (3, 1), (2, 5)]
    found = set()
    for row, column in places:
        tensor = torch.ones(4, 2 * WIDTH)
        tensor[row, column] = -1
        found.add(number(tensor))
    assert len(found) == len(places)


def test_places_count():
    tensor = matrix(6, 6)
    orders = [[1, 0, 2, 3, 4, 5], [5, 1, 2, 3, 4, 0], [1, 2, 3, 4, 5, 0]]
    moved = [tensor[order] for order in orders] + [tensor[:, order] for order in orders] + [tensor.T, tensor.flip(0, 1)]
    for one, other in itertools.combinations(range(36), 2):
        swapped = tensor.clone().view(-1)
        swapped[one], swapped[other] = tensor.view(-1)[other], tensor.view(-1)[one]
        moved.append(swapped.view(6, 6))
    assert len({number(tensor), *map(number, moved)}) == 1 + len(moved)


def test_checksums_distinguish_numbers_that_compare_equal():
    assert number(torch.tensor([0.0, 1.0])) != number(torch.tensor([-0.0, 1.0]))


def test_memory_layout_does_not_count():
    tensor = matrix(4, 6)
    assert number(tensor.T.contiguous().T) == number(tensor)
    assert number(nn.Parameter(tensor)) == number(tensor)
    assert digest(torch.tensor(3.0)).shape == ()


def test_a_part_of_a_tensor_may_begin_anywhere():
    whole = matrix(40, 11, torch.bfloat16)
    for start in range(5):
        part = whole.view(-1)[start : start + 35]
        assert number(part) == number(part.clone())


class Computing(TorchDispatchMode):
    """Notes every operation that a GPU would have to be told of: all but other looks at the same numbers."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not any(result.alias_info for result in function._schema.returns):
            self.seen.append(function._schema.name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("size", "operations"), [(4096 * 8, 2), (300, 1), (4096 * 8 + 300, 3)])
def test_nothing_is_computed_that_is_empty(size, operations):
    """Two sums of a matrix, a copy of a vector, and both where a matrix fills its table but for a rest."""
    tensor = torch.ones(size)
    sums_of(tensor)  # what is kept for the next time is made
    with Computing() as watch:
        sums_of(tensor)
    assert len(watch.seen) == operations


class Small(nn.Module):
    """A model with an embedding, a norm and a head, tied or not."""

    def __init__(self, tied, dtype=torch.float32):
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4, dtype=dtype), nn.Linear(4, 6, bias=False, dtype=dtype)
        self.norm = nn.LayerNorm(4, dtype=dtype)
        if tied:
            self.head.weight = self.embed.weight


class Holder:
    """An engine that keeps the weights it is sent, but for those of `deaf`."""

    def __init__(self, model, deaf=(), digests=True):
        self.model, self.deaf = model, deaf
        self.capabilities = Capabilities(addressed="token", invariant=True, digests=digests)

    def load_weights(self, stream, version):
        own = dict(self.model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, tensor in stream:
                if name not in self.deaf:
                    own[name].copy_(tensor)

    def local_weight(self, name, whole):
        return whole

    def digests(self):
        return digests_of(self.model)


def weights(tied=True):
    torch.manual_seed(3)
    policy = Small(tied)
    return {name: tensor.detach() for name, tensor in policy.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_that_holds_what_was_sent_passes_in_its_own_format(dtype):
    engine = Holder(Small(tied=True, dtype=dtype))
    assert sync_weights(engine, weights().items(), 1, dtype) >= 0.0
    assert torch.equal(engine.model.head.weight, weights()["head.weight"].to(dtype))


def test_another_format_than_the_engines_is_noticed():
    with pytest.raises(RuntimeError, match="head"):
        sync_weights(Holder(Small(tied=True, dtype=torch.bfloat16)), weights().items(), 1, torch.float32)


def test_a_head_that_is_tied_here_and_stale_there_is_noticed():
    """Under its own name: the engine took the embedding and left its copy for the head as it was."""
    engine = Holder(Small(tied=False), deaf=("head.weight",))
    with pytest.raises(RuntimeError, match=r"version 7 .* head\.weight \(1 of 4 tensors\)"):
        sync_weights(engine, weights().items(), 7, torch.float32)


def test_a_weight_that_was_never_sent_is_noticed():
    sent = {name: tensor for name, tensor in weights(tied=False).items() if name != "norm.bias"}
    with pytest.raises(RuntimeError, match=r"norm\.bias \(1 of 4 tensors\)"):
        sync_weights(Holder(Small(tied=False)), sent.items(), 1, torch.float32)


def test_a_few_names_stand_for_many():
    tally = Tally(torch.float32)
    sent = [(f"w{index}", torch.full((2,), float(index))) for index in range(9)]
    assert [name for name, _ in tally.over(sent)] == [name for name, _ in sent]
    with pytest.raises(RuntimeError, match=r"w0, w1, w2 \(9 of 9 tensors\)"):
        tally.compare({name: digest(tensor + 1) for name, tensor in sent}, 1)


@pytest.mark.parametrize(("dtype", "digests"), [(None, True), (torch.float32, False)])
def test_nothing_is_compared_where_nobody_asks_or_the_engine_cannot(dtype, digests):
    engine = Holder(Small(tied=False), deaf=("head.weight",), digests=digests)
    assert sync_weights(engine, weights().items(), 1, dtype) == 0.0
