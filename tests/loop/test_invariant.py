"""rollout.invariant in a run: training with the engine's kernels, and the notice where it cannot."""

from __future__ import annotations

import pytest
import torch

from burnish.config import load
from burnish.loop import invariant
from burnish.loop.fit import fit
from burnish.loop.invariant import invariant_notices, trains_invariantly
from burnish.loop.roles import policy_source
from burnish.models.invariant.modules import InvariantAttention
from burnish.models.kernels import invariant as kernels
from burnish.models.kernels import sample
from burnish.models.kernels.lazy_triton import ordered_products
from burnish.rollout.engines.builtin import decode_plan

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
ON = (f"{ROLLOUT}.invariant=true", f"{ROLLOUT}.dtype=bfloat16")
GPU = torch.device("cuda")


def config(settings, *overrides):
    return load(settings(*ON, *overrides), given=["data.train_files", "data.val_files"]).cfg


@pytest.fixture
def interpreted(monkeypatch):
    """A CPU in the place of a GPU: the device loop and its kernels, interpreted."""
    monkeypatch.setattr(invariant, "INVARIANT_ON", frozenset({"cpu"}))
    monkeypatch.setattr(decode_plan, "LOOP_DEVICES", frozenset({"cpu"}))
    for name, size in {"ROWS": 32, "COLUMNS": 128, "QUERIES": 16, "KEYS": 16}.items():
        monkeypatch.setattr(kernels, name, size)
    monkeypatch.setattr(sample, "CHUNK", 32)
    with ordered_products():
        yield


@pytest.mark.long
def test_steps_have_no_difference(make_run, metric_lines, interpreted):
    run = make_run(
        f"{ROLLOUT}.invariant=true",
        f"{ROLLOUT}.engine_kwargs.builtin.triton=true",
        f"{ROLLOUT}.engine_kwargs.builtin.block_size=16",
        f"{ACTOR}.ppo_mini_batch_size=2",
        "data.train_batch_size=2",
        "data.max_response_length=3",
        "trainer.logger=[file]",
    )
    assert any(isinstance(module, InvariantAttention) for module in run.learner.policy.backend.model.modules())
    assert any("training computes with the engine's kernels" in notice for notice in run.recorder.notices)
    fit(run)
    assert [line["training/rollout_probs_diff_max"] for _, line in metric_lines()] == [0.0, 0.0]


def test_default(settings):
    cfg = config(settings)
    source = policy_source(cfg)
    assert trains_invariantly(cfg, source, GPU) and "kernels" in invariant_notices(cfg, source, GPU)[0]
    assert not trains_invariantly(cfg, source, torch.device("cpu"))
    assert invariant_notices(cfg, source, torch.device("cpu")) == []
    off = config(settings, f"{ROLLOUT}.invariant=null")
    assert not trains_invariantly(off, source, GPU) and invariant_notices(off, source, GPU) == []


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        (f"{ROLLOUT}.tensor_model_parallel_size=2", "share an engine"),
        (f"{ROLLOUT}.engine_kwargs.builtin.triton=false", "Triton"),
        (f"{ROLLOUT}.dtype=float16", "another dtype"),
        ("actor_rollout_ref.model.lora_rank=4", "adapters"),
        ("actor_rollout_ref.model.use_liger=true", "Liger"),
        (f"{ACTOR}.ulysses_sequence_parallel_size=2 trainer.n_gpus_per_node=2", "several ranks"),
        (f"{ACTOR}.fsdp_config.mixed_precision.buffer_dtype=bf16", "rotary"),
        ("actor_rollout_ref.model.override_config.hidden_act=gelu", "gelu"),
    ],
)
def test_reasons(settings, override, reason):
    cfg = config(settings, *override.split())
    source = policy_source(cfg)
    assert not trains_invariantly(cfg, source, GPU)
    (notice,) = invariant_notices(cfg, source, GPU)
    assert "within the engine only" in notice and reason in notice
