"""Positions of packed, prefilled and decoded tokens; families may register their own."""

from __future__ import annotations

import torch

from burnish.models import positions
from burnish.models.model_input import ModelInput
from burnish.models.positions import TEXT, positions_for
from burnish.rollout.engine import Request, Sampling


def test_text():
    assert TEXT.packed([3, 1, 2]).tolist() == TEXT.packed(torch.tensor([3, 1, 2])).tolist() == [0, 1, 2, 0, 0, 1]
    assert TEXT.prefill(ModelInput((5, 6, 7, 8)), 1, 4).tolist() == [1, 2, 3]
    assert TEXT.decode(torch.tensor([4, 9])).tolist() == [4, 9]


def test_unregistered_families_are_text(monkeypatch):
    other = positions.TextPositions()
    monkeypatch.setitem(positions.FAMILIES, "qwen2_vl", other)
    assert positions_for("qwen2") is TEXT and positions_for("qwen2_vl") is other


def test_engines_use_the_family_s_positions(tiny_folder, make_engine, monkeypatch):
    """Both decoders, in prefill and in decoding: positions that do not advance give other log-probs."""

    class Constant(positions.TextPositions):
        def prefill(self, input, start, stop):
            return torch.zeros(stop - start, dtype=torch.int64)

        def decode(self, num_cached):
            return torch.zeros_like(num_cached)

    class ConstantDecode(Constant):
        prefill = positions.TextPositions.prefill

    request = Request(ModelInput(tuple(range(3, 20))), Sampling(5, ignore_eos=True, do_sample=False), 0)
    for options in ({}, {"device_loop": True}):
        log_probs = []
        for scheme in (TEXT, Constant(), ConstantDecode()):
            monkeypatch.setitem(positions.FAMILIES, "qwen2", scheme)
            engine = make_engine(tiny_folder, **options)
            log_probs.append(engine.generate([request])[0].result(60).log_probs)
        text, constant, decode = log_probs
        assert text[0] != constant[0] and text[0] == decode[0] and text[1] != decode[1]
