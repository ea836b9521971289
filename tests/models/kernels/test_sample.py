"""One pass over the logits draws what the engine draws on a CPU, with the same noise and the same log-prob."""

from __future__ import annotations

import pytest
import torch

from burnish.models.kernels import sample
from burnish.models.kernels.sample import sample_tokens
from burnish.rollout.engine import Sampling
from burnish.rollout.engines.builtin.sampling import SamplingBatch
from burnish.rollout.engines.builtin.sampling import sample as sample_on_cpu

CPU = torch.device("cpu")


def drawn(logits, temperature, greedy, seed, index, softcap=None):
    settings = [Sampling(1, temperature=t, do_sample=not g) for t, g in zip(temperature, greedy, strict=True)]
    rows = SamplingBatch.of(settings, seed, CPU)
    expected = sample_on_cpu(logits if softcap is None else torch.tanh(logits / softcap) * softcap, rows, index)
    found = sample_tokens(logits, rows.temperature, rows.greedy.long(), rows.seed, index, softcap)
    return found, expected


@pytest.mark.parametrize("vocabulary", [7, 64, 333])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_it_draws_what_the_cpu_draws(vocabulary, softcap, monkeypatch):
    monkeypatch.setattr(sample, "CHUNK", 64)  # several chunks, the last one not full
    g = torch.Generator().manual_seed(vocabulary)
    rows = 12
    logits = 3 * torch.randn(rows, vocabulary, generator=g)
    seeds = torch.randint(0, 1 << 62, (rows,), generator=g).tolist()
    temperature = [0.3, 1.0, 2.5] * (rows // 3)
    greedy = [number % 5 == 0 for number in range(rows)]
    index = torch.arange(rows) * 17
    (tokens, log_probs), (their_tokens, their_log_probs) = drawn(logits, temperature, greedy, seeds, index, softcap)
    assert tokens.tolist() == their_tokens.tolist()
    assert torch.allclose(log_probs, their_log_probs, atol=1e-5)


def test_a_hole_is_never_drawn(monkeypatch):
    """Logits of -inf: whole chunks of them, and around the only token that is left."""
    monkeypatch.setattr(sample, "CHUNK", 16)
    logits = torch.full((8, 100), float("-inf"))
    logits[torch.arange(8), torch.tensor([0, 15, 16, 31, 50, 63, 98, 99])] = 1.5
    seeds = list(range(8))
    (tokens, log_probs), _ = drawn(logits, [1.0] * 8, [False] * 8, seeds, torch.zeros(8, dtype=torch.int64))
    assert tokens.tolist() == [0, 15, 16, 31, 50, 63, 98, 99]
    assert torch.equal(log_probs, torch.zeros(8))


def test_ties_go_to_the_first(monkeypatch):
    monkeypatch.setattr(sample, "CHUNK", 4)
    logits = torch.zeros(1, 12)
    logits[0, [3, 5, 9]] = 7.0
    (tokens, _), _ = drawn(logits, [1.0], [True], [0], torch.zeros(1, dtype=torch.int64))
    assert tokens.tolist() == [3]
