"""What the tests of SGLang's engine share."""

from __future__ import annotations

import torch

from burnish.models.load import ModelSource
from burnish.models.model_input import ModelInput
from burnish.rollout.engine import EngineOptions, Request, Sampling

PATIENCE = 60.0
CPU = torch.device("cpu")
SECTION = "actor_rollout_ref.rollout"
KWARGS = f"{SECTION}.engine_kwargs.sglang"


def options_for(folder, **settings):
    return EngineOptions(ModelSource(folder), torch.float32, CPU, **{"eos_ids": (2,), "max_model_len": 300, **settings})


def asks(count, limit=40, **settings):
    return [
        Request(ModelInput((3 + n % 9, 5)), Sampling(limit, ignore_eos=True, **settings), 100 + n) for n in range(count)
    ]
