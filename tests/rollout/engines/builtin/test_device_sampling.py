"""Penalties on the device equal those of the host; sequences keep their settings when they change slots."""

from __future__ import annotations

from concurrent.futures import Future

import torch

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.builtin.device_batch import DeviceBatch
from burnish.rollout.engines.builtin.device_sampling import apply_penalties_on_device
from burnish.rollout.engines.builtin.penalties import PenaltyState, apply_penalties
from burnish.rollout.engines.builtin.sequence import SequenceState

CPU = torch.device("cpu")
VOCABULARY, EOS = 12, 2
# Prompts end with 5, responses begin with 6: a word that goes over from the one to the other is no match.
WORDS = ((9,), (6, 7), (5, 3), (5, 6, 4), (6, 7, 8, 1), (7, 7))
SETTINGS = [
    Sampling(30, repetition_penalty=1.7),
    Sampling(30, presence_penalty=0.5, frequency_penalty=-0.3),
    Sampling(30, bad_words=WORDS),
    Sampling(30, min_tokens=4, stop_token_ids=(8, 11)),
    Sampling(30, min_tokens=4, ignore_eos=True),
    Sampling(30, repetition_penalty=0.6, presence_penalty=1.0, frequency_penalty=0.2, bad_words=WORDS[1:3]),
]
RESPONSES = [[6], [6, 7], [6, 7, 7], [6, 7, 8, 6, 7, 8, 7], [5, 6]]


def test_penalties_equal_the_host():
    rows, pasts = [], []
    for sampling in SETTINGS:
        for tokens in RESPONSES:
            request = Request(ModelInput((4, 5, 3, 5)), sampling, seed=len(rows))
            past = PenaltyState(request, (EOS,))
            for token in tokens:
                past.add(token)
            rows.append(SequenceState(request, Future(), past, block_table=[1], tokens=list(tokens)))
            pasts.append(past)
    device = DeviceBatch(
        len(rows) + 3, max_blocks=3, max_model_len=40, vocabulary=VOCABULARY, sync_interval=4, device=CPU
    )
    device.arrange(rows, lambda row: row.penalties.end_ids)
    device.push()
    assert device.sequences == rows and device.mode.num_slow >= len(rows) and device.mode.looks_back

    logits = 3 * torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(0))
    found, expected = apply_penalties_on_device(logits, device, 0), apply_penalties(logits, pasts)
    assert torch.equal(found.isinf(), expected.isinf())
    assert torch.allclose(found, expected)
    assert not torch.equal(expected, logits) and expected.isinf().any()
    # a part of the rows, from the middle
    assert torch.equal(apply_penalties_on_device(logits[7:20], device, 7), found[7:20])


def test_sequences_that_change_slots():
    def row(seed, **how):
        return SequenceState(
            Request(ModelInput((4, 5, 3)), Sampling(30, **how), seed), Future(), None, block_table=[seed], tokens=[seed]
        )

    first, second, slow, third = row(1), row(2), row(3, top_k=2, stop_token_ids=(7,)), row(4, temperature=0.5)
    device = DeviceBatch(6, max_blocks=3, max_model_len=40, vocabulary=VOCABULARY, sync_interval=4, device=CPU)
    ends = lambda row: sorted(row.request.sampling.stop_token_ids)  # noqa: E731
    device.arrange([first, second], ends)
    device.arrange([second, slow, third], ends)
    device.push()
    assert device.sequences == [slow, second, third]  # slow ones first, otherwise as they came
    assert device.tensor("seed", 6).tolist() == [3, 2, 4, 0, 0, 0]
    assert device.tensor("active", 6).tolist() == [1, 1, 1, 0, 0, 0]
    assert device.tensor("top_k", 6).tolist() == [2, -1, -1, -1, -1, -1]
    assert device.tensor("temperature", 6).tolist() == [1, 1, 0.5, 1, 1, 1]
    assert device.tables.device[:, 0].tolist() == [3, 2, 4, 0, 0, 0] and device.num_blocks.tolist() == [
        1,
        1,
        1,
        0,
        0,
        0,
    ]
    assert device.end_ids.device[:, 0].tolist() == [7, -1, -1, -1, -1, -1]
