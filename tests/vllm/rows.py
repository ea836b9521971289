"""Rows of keys that only vLLM makes act; tests/keys counts them, and they are checked where vLLM is."""

from __future__ import annotations

import os
import signal

from burnish.models.model_input import ModelInput
from burnish.rollout.engine import Request, Sampling
from burnish.rollout.engines.supervised import Supervised

from ..keys.kit import Case
from ..keys.row import Row

ROLLOUT = "actor_rollout_ref.rollout"
VLLM = (f"{ROLLOUT}.name=vllm",)
PATIENCE = 240.0


def seats(case: Case) -> int:
    """Requests that vLLM's scheduler runs at once."""
    return case.run.rollout.engine.core.config.scheduler_config.max_num_seqs


def lives(case: Case) -> tuple[str, float]:
    """The engine's class, and how often it was started again. What has a process of its own is killed at work."""
    run, sampling = case.run, Sampling(24, temperature=0.7, ignore_eos=True)
    run.sync_weights()
    prompts = [(5, 6, 7), (8, 9)]
    futures = run.rollout.engine.generate(
        [Request(ModelInput(ids), sampling, number) for number, ids in enumerate(prompts)]
    )
    if isinstance(run.rollout.engine, Supervised):
        os.killpg(run.rollout.engine._engine.core.process.process.pid, signal.SIGKILL)
    completions = [future.result(PATIENCE) for future in futures]
    scores = run.rollout.engine.score([[*ids, *c.ids] for ids, c in zip(prompts, completions, strict=True)], 0.7)
    for completion, score in zip(completions, scores, strict=True):
        assert len(completion.ids) == 24
        assert all(abs(one - other) < 1e-4 for one, other in zip(completion.log_probs, score[-24:], strict=True))
    return type(run.rollout.engine).__name__, run.rollout.engine.stats().get("restarts", 0.0)


ROWS = [
    Row(f"{ROLLOUT}.engine_kwargs.vllm", "{max_num_seqs: 3}", seats, VLLM, expected=3),
    Row(f"{ROLLOUT}.mode", "async", lives, (*VLLM, "data.max_response_length=24"), expected=("Supervised", 1)),
]
