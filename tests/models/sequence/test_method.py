"""Which method serves which numbers of heads and ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import LlamaConfig, Qwen2Config

from burnish.errors import UserError
from burnish.models.sequence.method import RING, ULYSSES, choose_method

KEY = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"


def config(heads, kv_heads, **more):
    return LlamaConfig(num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=heads * 8, **more)


def both(inner):
    return replace(RING, name="Ulysses and ring", inner=inner)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "method"),
    [
        (32, 8, 8, ULYSSES),
        (32, 8, 16, ULYSSES),  # KV heads twice
        (28, 4, 7, ULYSSES),  # neither of 4 and 7 divides the other: KV heads seven times
        (27, 3, 8, RING),
        (3, 1, 2, RING),
        (28, 4, 8, both(4)),
        (14, 2, 4, both(2)),
        (4, 4, 8, both(4)),
    ],
)
def test_ulysses_where_the_ranks_divide_the_heads(heads, kv_heads, size, method):
    choice = choose_method(config(heads, kv_heads), size, KEY)
    assert choice.method == method
    assert choice.notice.startswith(f"{KEY}={size}: ")
    assert (f"{heads} heads are not divisible by {size} ranks" in choice.notice) == (method != ULYSSES)


def test_repeated_heads_are_reported():
    assert "4 of 32 heads on each rank." in choose_method(config(32, 8), 8, KEY).notice
    assert (
        "2 of 32 heads on each rank, the 8 KV heads repeated 2 times." in choose_method(config(32, 8), 16, KEY).notice
    )


def test_tensor_parallel_ranks_have_a_part_of_the_heads():
    assert choose_method(config(28, 4), 7, KEY, tensor_size=1).method is ULYSSES
    assert choose_method(config(28, 4), 4, KEY, tensor_size=2).method == both(2)  # of 14


def test_dropout_in_attention_needs_heads_that_divide():
    assert choose_method(config(28, 4, attention_dropout=0.1), 14, KEY).method is ULYSSES
    with pytest.raises(UserError) as refused:
        choose_method(config(28, 4, attention_dropout=0.1), 8, KEY)
    told = str(refused.value)
    assert told.startswith(f"{KEY}=8: 28 heads (4 KV heads) are not divisible by 8 ranks")
    assert "Allowed: 1, 2, 4, 7, 14, 28." in told
    assert told.endswith(f"Type: {KEY}=7")


def test_layers_that_mix_tokens_elsewhere_are_refused():
    mixed = Qwen2Config(num_hidden_layers=2)
    mixed.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(
        UserError, match=f"{KEY}=2: sequence parallelism does not support layers of type linear_attention"
    ):
        choose_method(mixed, 2, KEY)
