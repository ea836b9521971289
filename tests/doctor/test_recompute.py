"""recompute.method=auto: the fewest layers that fit, for every memory, role and pipeline."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.config import TrainConfig, load
from burnish.doctor.memory import Plan, Shapes, train_plan, update_peak
from burnish.doctor.recompute import SAFE_SHARE, Recompute
from burnish.doctor.shapes import find_shape
from burnish.doctor.stages import Stages
from burnish.models.recompute import enable_recompute
from burnish.sizing import GIB
from burnish.training.pipeline_schedule import Shape, simulate, training_plan

from .meter import Small
from .test_memory import MODEL, role_of

SHAPES = Shapes(find_shape("qwen2.5-1.5b").shape)
LAYERS = SHAPES.policy.layers
AUTO = (f"{MODEL}.recompute.method=auto", "critic.model.recompute.method=auto")
SPLIT = (
    *("actor_rollout_ref.actor.strategy=megatron", "trainer.n_gpus_per_node=4"),
    "actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=4",
)


FEW = settings(max_examples=25, deadline=None)


@cache
def config(*overrides: str) -> TrainConfig:
    return load([f"{MODEL}.path=m", *overrides], check=False).cfg


def planned(capacity: int, *overrides: str) -> Plan:
    return train_plan(config(*overrides), SHAPES, capacity)


def update_bytes(plan: Plan, name: str) -> int:
    return next(phase.bytes for phase in plan.phases if phase.name == name)


def block(role: str, per_stage: int) -> tuple[str, ...]:
    """The same layers, typed."""
    model = {"policy": MODEL, "critic": "critic.model"}[role]
    if per_stage == 0:
        return (f"{model}.enable_gradient_checkpointing=false",)
    return (f"{model}.recompute.method=block", f"{model}.recompute.num_layers={per_stage}")


@pytest.mark.parametrize("more", [(), SPLIT], ids=["one stage", "four stages"])
@FEW
@given(st.integers(20 * GIB, 160 * GIB))
def test_the_choice_fits_and_one_layer_less_does_not(more, capacity):
    plan = planned(capacity, *AUTO, *more)
    assert plan.recompute.keys() == {"policy", "critic"}
    for role, name in (("policy", "update actor"), ("critic", "update critic")):
        choice = plan.recompute[role]
        typed = update_bytes(planned(capacity, *more, *block(role, choice.per_stage)), name)
        assert choice.bytes == update_bytes(plan, name) == typed
        assert choice.fits == (typed <= SAFE_SHARE * capacity)
        if not choice.fits:
            assert choice.is_all
        if choice.per_stage:
            less = update_bytes(planned(capacity, *more, *block(role, choice.per_stage - 1)), name)
            assert less > SAFE_SHARE * capacity


@FEW
@given(st.lists(st.integers(10 * GIB, 200 * GIB), min_size=2, max_size=2).map(sorted))
def test_less_memory_never_means_fewer_layers(capacities):
    small, large = (planned(capacity, *AUTO).recompute for capacity in capacities)
    assert all(small[role].per_stage >= large[role].per_stage for role in small)


def test_the_ends_are_all_layers_and_none():
    least, most = planned(2 * GIB, *AUTO), planned(1000 * GIB, *AUTO)
    for role in ("policy", "critic"):
        assert (least.recompute[role].per_stage, least.recompute[role].fits) == (LAYERS, False)
        assert (most.recompute[role].per_stage, most.recompute[role].fits) == (0, True)
    assert "ABOVE 95% of 2.0 GiB" in least.recompute["policy"].text
    assert any("recomputes 0 of 28 layers" in note for note in most.notes)
    assert most.to_json()["recompute"]["critic"]["layers"] == 0
    assert planned(80 * GIB).recompute == {}, "only where the config asks for it"


def test_roles_are_planned_separately():
    """The critic's layers are not compiled, so it saves more for its backward pass."""
    between = planned(90 * GIB, *AUTO).recompute
    assert between["policy"].per_stage == 0 < between["critic"].per_stage
    assert planned(90 * GIB, AUTO[0]).recompute == {"policy": between["policy"]}


def test_stages_count_their_own_layers():
    stages = Stages((7, 7, 7, 7), 4)
    assert [stages.num_recomputed(number) for number in (0, 3, 7, 9)] == [0, 12, 28, 28]
    uneven = Stages((2, 6), 2)
    assert [uneven.num_recomputed(number) for number in (1, 4)] == [2, 6]
    choice = Recompute(3, stages, 40 * GIB, 80 * GIB)
    assert choice.share == 12 / 28
    assert choice.text.startswith("recomputes 3 of 7 layers in each of 4 pipeline stages")


@pytest.mark.parametrize(
    ("size", "virtual", "name"), [(2, 1, "1f1b"), (4, 1, "1f1b"), (2, 2, "1f1b"), (4, 2, "1f1b"), (4, 1, "gpipe")]
)
def test_passes_kept_at_once_are_those_of_the_schedule(size, virtual, name):
    for num in (size, 2 * size, 4 * size):
        shape = Shape(size, virtual, num)
        most = simulate(training_plan(name, shape), shape).most_kept[0]
        stages = Stages((3,) * (size * virtual), size, name)
        assert stages.kept(num) == most / (size * virtual)


@pytest.mark.parametrize("form", ["fp32", "mixed", "bf16"])
def test_a_partly_recomputed_update_needs_no_more_than_planned(form):
    """Measured over a whole forward and backward pass. The plan counts a layer's temporaries twice where it is kept."""
    layers = 4
    for number in range(1, layers):
        sizes = dict(vocab_size=16, hidden_size=64, head_dim=16, intermediate_size=256, num_hidden_layers=layers)
        small = Small("qwen2", form, (150, 150), **sizes)
        enable_recompute(small.model, "block", number, "model")
        compute = "fp32" if form == "fp32" else "bf16"
        fsdp = "actor_rollout_ref.actor.fsdp_config"
        dtypes = (f"{fsdp}.model_dtype={'bf16' if form == 'bf16' else 'fp32'}",)
        role = role_of(small, *dtypes, f"{fsdp}.mixed_precision.param_dtype={compute}")
        peak = sum(update_peak(replace(role, num_recomputed=number), small.micro_batch).values())
        assert small.peak_of_update() <= peak <= 1.4 * small.peak_of_update()
