"""Ranks that share a stream read and learn what one process does: log-probs, entropies and every gradient."""

from __future__ import annotations

import pytest
import torch

from burnish.models.attention import PACKED_EAGER
from burnish.models.sequence.places import Places

from ...conftest import FAMILIES
from ...ranks import run_ranks
from .streams import LENGTHS, Case, differences

METHODS = ("Ulysses", "ring")
TWO = [
    *(Case(family, method) for family in FAMILIES for method in METHODS),
    *(Case("qwen2", method, lengths) for lengths in LENGTHS if lengths != "uneven" for method in METHODS),
    *(Case("mistral", method, "one row over all ranks") for method in METHODS),
    *(Case("gemma2", method, "one row over all ranks", recompute=True) for method in METHODS),
    *(Case("llama", method, attn=PACKED_EAGER) for method in METHODS),
    Case("qwen3", "Ulysses", kv_heads=1),
    Case("qwen3", "ring", heads=3, kv_heads=3),
    Case("gemma2", "ring", heads=3, kv_heads=1),
]
FOUR = [
    *(Case(family, method, lengths) for family in FAMILIES for lengths in LENGTHS for method in METHODS),
    *(Case("qwen2", "Ulysses", heads=12, kv_heads=kv_heads) for kv_heads in (1, 2, 3, 6)),
    *(Case("qwen2", "ring", lengths, heads=6, kv_heads=3) for lengths in LENGTHS),
    *(Case("qwen3", "both", lengths, heads=6, kv_heads=2) for lengths in LENGTHS),
    *(Case("mistral", "both", lengths, heads=6, kv_heads=3, recompute=True) for lengths in LENGTHS),
    *(Case("mistral", "ring", lengths, heads=3, kv_heads=1, recompute=True) for lengths in LENGTHS),
]


def name(case: Case) -> str:
    words = [case.family, case.method, case.lengths, f"{case.heads} heads", f"{case.kv_heads} KV heads"]
    return ", ".join(words + ["eager"] * (case.attn == PACKED_EAGER) + ["recomputed"] * case.recompute)


@pytest.fixture(scope="module")
def on_ranks():
    """on_ranks(2): what each rank found, by case; ranks are started once."""
    found = {}

    def get(size, cases):
        if size not in found:
            ranks = run_ranks(size, differences, cases)
            found[size] = {name(case): [rank[n] for rank in ranks] for n, case in enumerate(cases)}
        return found[size]

    return get


@pytest.mark.long  # tests/training/test_sequence.py trains on two ranks
@pytest.mark.parametrize("case", TWO, ids=name)
def test_two_ranks_are_one(on_ranks, case):
    assert_the_same(on_ranks(2, TWO)[name(case)])


@pytest.mark.long
@pytest.mark.parametrize("case", FOUR, ids=name)
def test_four_ranks_are_one(on_ranks, case):
    assert_the_same(on_ranks(4, FOUR)[name(case)])


def assert_the_same(found):
    for log_prob_error, gradient_error, scale in found:
        assert scale > 1e-2, "no gradient: the comparison would show nothing"
        assert log_prob_error < 2e-5
        assert gradient_error < 2e-5


def test_a_single_process_holds_every_position():
    column = torch.arange(3.0)
    places = Places(torch.tensor([4, 5, 9]))
    assert places.own(column) is column
    assert places.whole(column) is column
