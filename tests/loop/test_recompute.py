"""recompute.method=auto in a run: layers by memory, the same bits with any choice, one choice for all ranks."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from burnish.config import load
from burnish.doctor.machine import Device
from burnish.errors import UserError
from burnish.loop import recompute, roles
from burnish.loop.recompute import memory_per_rank, plan_recompute
from burnish.loop.roles import policy_source
from burnish.models.parts import backbone
from burnish.sizing import GIB

POLICY, CRITIC = "actor_rollout_ref.model", "critic.model"
GAE = "algorithm.adv_estimator=gae"
AUTO = (GAE, f"{POLICY}.recompute.method=auto", f"{CRITIC}.recompute.method=auto")
CPU = torch.device("cpu")
MUCH = 1 << 40


@pytest.fixture
def with_memory(monkeypatch):
    """with_memory(bytes): what the machine has."""
    return lambda memory: monkeypatch.setattr(recompute, "total_memory", lambda: memory)


@pytest.fixture
def chosen(settings, with_memory):
    """chosen(memory, *overrides): layers of policy and critic (null is all), and the notices."""

    @cache
    def config(*overrides):
        return load(settings(*AUTO, *overrides), given=["data.train_files"]).cfg

    def choose(memory, *overrides):
        with_memory(memory)
        cfg = config(*overrides)
        planned, notices = plan_recompute(cfg, policy_source(cfg), CPU)
        assert cfg.actor_rollout_ref.model.recompute.num_layers is None, "the caller's config stays as it is"
        models = (planned.actor_rollout_ref.model, planned.critic.model)
        return [model.recompute.num_layers for model in models], notices

    return choose


@pytest.fixture
def enough_for(chosen):
    """enough_for(layers): the least memory with which the policy recomputes no more than these."""

    def find(layers):
        low, high = 0, MUCH
        while high - low > 1:
            middle = (low + high) // 2
            number = chosen(middle)[0][0]
            low, high = (low, middle) if number is not None and number <= layers else (middle, high)
        return high

    return find


def passes(run, role):
    """How often each layer runs in one forward and backward pass."""
    model = getattr(run.learner, role).backend.model
    return [1 + bool(layer.gradient_checkpointing) for layer in backbone(model).layers]


def test_the_choice_follows_the_memory_and_is_reported(chosen, enough_for):
    assert chosen(MUCH)[0] == [0, 0]
    assert chosen(1)[0] == [None, None]
    assert chosen(enough_for(1))[0][0] == 1
    assert chosen(enough_for(0))[0][0] == 0 and chosen(enough_for(0) - 1)[0][0] == 1
    policy, critic = chosen(1)[1]
    assert policy.startswith(f"{POLICY}.recompute.method=auto: recomputes 2 of 2 layers, update")
    assert "ABOVE 95%" in critic and critic.startswith(CRITIC)
    assert "within 95% of 1024.0 GiB" in chosen(MUCH)[1][0]


def test_ranks_on_a_cpu_share_its_memory(chosen, enough_for):
    least = enough_for(0)
    assert chosen(2 * least, "trainer.n_gpus_per_node=2")[0][0] == 0
    assert memory_per_rank(CPU, 2) == least


@pytest.mark.parametrize(("memory", "policy"), [(1, [2, 2]), (None, [2, 1]), (MUCH, [1, 1])])
def test_the_layers_of_a_run_are_those_of_the_choice(make_run, with_memory, enough_for, memory, policy):
    with_memory(enough_for(1) if memory is None else memory)
    run = make_run(*AUTO, GAE)
    assert passes(run, "policy") == policy
    assert sum("recompute.method=auto: recomputes" in notice for notice in run.recorder.notices) == 2


def test_no_choice_changes_a_bit(launch, with_memory, enough_for):
    """Whole runs, with updates of policy and critic."""
    saved = ["trainer.save_freq=2", "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"]

    def weights(name, memory, *overrides):
        with_memory(memory)
        folder = launch(GAE, *overrides, *saved, out=name).folder
        return {
            path.relative_to(folder): path.read_bytes()
            for path in sorted(folder.glob("global_step_2/*/**/*.safetensors"))
        }

    everything = weights("default", MUCH)
    assert everything
    for name, memory in (("all", 1), ("one", enough_for(1)), ("none", MUCH)):
        assert weights(name, memory, *AUTO) == everything, name


def test_a_run_resumes_with_other_memory(launch, make_run, with_memory):
    with_memory(MUCH)
    launch(*AUTO, "trainer.save_freq=1")
    with_memory(1)
    run = make_run(*AUTO, "trainer.save_freq=1", "trainer.total_training_steps=3")
    assert run.step == 2 and passes(run, "policy") == [2, 2]
    (notice,) = [notice for notice in run.recorder.notices if "changed since" in notice]
    assert f"{POLICY}.recompute.num_layers: 0 -> null" in notice


def test_all_ranks_get_the_choice(make_run, with_memory, monkeypatch):
    class Launched(Exception):
        pass

    def launch(cfg, pools, total_steps):
        raise Launched(cfg.actor_rollout_ref.model.recompute.num_layers, pools[0].size)

    monkeypatch.setattr(roles, "launch", launch)
    with_memory(MUCH)
    with pytest.raises(Launched) as caught:
        make_run(*AUTO, "trainer.n_gpus_per_node=2", "trainer.launcher=processes")
    assert caught.value.args == (0, 2)


def test_the_smallest_of_the_ranks_gpus_counts(monkeypatch):
    gpus = [Device("large", 80 * GIB), Device("small", 24 * GIB), Device("tiny", 8 * GIB)]
    monkeypatch.setattr(recompute, "cuda_devices", lambda: gpus)
    assert memory_per_rank(torch.device("cuda"), 1) == 80 * GIB
    assert memory_per_rank(torch.device("cuda"), 2) == 24 * GIB
    assert memory_per_rank(torch.device("cuda:1"), 1) == 24 * GIB
    assert memory_per_rank(torch.device("xpu"), 1) is None


def test_without_a_plan_all_layers_are_recomputed(chosen, monkeypatch):
    def unknown(config):
        raise UserError("the model's config.json has no usable 'hidden_size'")

    monkeypatch.setattr(recompute, "shape_of", unknown)
    layers, notices = chosen(MUCH)
    assert layers == [None, None]
    assert all("recomputes all layers (the model's config.json has no usable 'hidden_size')" in one for one in notices)


def test_a_number_of_layers_is_reported_to_have_no_effect(settings):
    loaded = load(settings(*AUTO, f"{POLICY}.recompute.num_layers=1"), given=["data.train_files"])
    assert any("num_layers=1 has no effect here: the memory plan chooses" in notice for notice in loaded.notices)
