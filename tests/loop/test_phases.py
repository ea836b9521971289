"""Roles on ranks work back to back: all passes, then all updates, are sent before the first result is waited for."""

from __future__ import annotations

import contextlib
import pickle

import pytest
import torch

from burnish.distributed.traffic import Traffic
from burnish.distributed.worker_group import Shared
from burnish.loop.handles import CriticHandle, PolicyHandle, ReferenceHandle
from burnish.loop.media_transfer import MediaStore
from burnish.loop.row_transfer import PackedResult, RoleLayout
from burnish.loop.step import learn, produce

from ..stepping import one_step

PPO = (
    *("algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true", "critic.optim.lr=1e-3"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"),
)
PASSES = [("policy", "compute_log_probs"), ("reference", "compute_log_probs"), ("critic", "compute_values")]
UPDATES = [("critic", "update"), ("policy", "update")]


class OneRank:
    """A group of one rank in this process, which works when it is waited for. `events` are what the controller did."""

    size = 1

    def __init__(self, roles: dict, events: list) -> None:
        self.roles, self.events = roles, events
        self.traffic = Traffic(["here"], once_per_node=False)

    def call(self, method: str, role: str, *args):
        if method == "role_layout":
            return [RoleLayout.of(self.roles[role])]
        assert (method, args[0]) == ("call_role", "updates_once")
        return [self.roles[role].updates_once(*args[1:])]

    def share(self, value, num_bytes: int) -> Shared:
        return Shared(id(value), pickle.dumps(value), num_bytes)

    def submit_shared(self, rank: int, shared: Shared, method: str, role: str, name: str, *args):
        self.events.append(("sent", role, name))
        return role, name, shared, args

    def gather(self, futures):
        ((role, name, shared, args),) = futures
        self.events.append(("waited", role, name))
        shard = pickle.loads(shared.data).unpack(MediaStore())
        return [PackedResult.of(getattr(self.roles[role], name)(shard, *args))]


@pytest.fixture
def on_ranks(make_run):
    """on_ranks(*overrides): a run whose roles are behind handles, and the events."""

    def make(*overrides):
        run, events = make_run(*overrides, out="ranks"), []
        learner = run.learner
        group = OneRank({"policy": learner.policy, "critic": learner.critic, "reference": learner.reference}, events)
        learner.policy, learner.reference = PolicyHandle(group, "policy"), ReferenceHandle(group, "reference")
        if learner.critic is not None:
            learner.critic = CriticHandle(group, "critic")
        return run, events

    return make


def sent(calls):
    return [("sent", *call) for call in calls]


def waited(calls):
    return [("waited", *call) for call in calls]


def test_ranks_get_all_passes_before_the_first_is_waited_for(on_ranks):
    run, events = on_ranks(*PPO)
    learn(run.learner, produce(run.rollout, 1), current=True)
    assert events == [*sent(PASSES), *waited(PASSES), *sent(UPDATES), *waited(UPDATES)]


def test_the_exact_kl_is_sent_with_the_reference(on_ranks):
    run, events = on_ranks("algorithm.use_kl_in_reward=true", "algorithm.kl_penalty=full")
    learn(run.learner, produce(run.rollout, 1), current=True)
    passes = [*PASSES[:2], ("policy", "compute_exact_kl")]
    assert events == [*sent(passes), *waited(passes), *sent(UPDATES[1:]), *waited(UPDATES[1:])]


def test_a_profiler_sees_phase_after_phase(on_ranks):
    run, events = on_ranks(*PPO)
    entered = []

    @contextlib.contextmanager
    def observe(phase):
        entered.append(phase)
        events.append(phase)
        yield

    run.learner.clock.observe, run.learner.clock.in_turn = observe, lambda: True
    scored = produce(run.rollout, 1)
    events.clear()
    learn(run.learner, scored, current=True)
    phases = ["old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"]
    assert [event for event in events if isinstance(event, str)] == phases
    calls = dict(zip([phase for phase in phases if phase != "adv"], [*PASSES, *UPDATES], strict=True))
    for phase, call in calls.items():
        start = events.index(phase)
        assert events[start : start + 3] == [phase, ("sent", *call), ("waited", *call)]


def test_results_are_those_of_one_process(on_ranks, make_run):
    local, (remote, _) = make_run(*PPO), on_ranks(*PPO)
    roles = remote.learner.policy.group.roles
    batch, metrics = one_step(local)
    there = learn(remote.learner, produce(remote.rollout, 1), current=True)
    for name in ("old_log_probs", "ref_log_prob", "values", "advantages"):
        assert torch.equal(batch[name].flat, there.batch[name].flat), name
    learned = {name: value for name, value in there.metrics.items() if name.startswith(("actor/", "critic/"))}
    assert learned and learned == {name: metrics[name] for name in learned}
    for name, role in (("policy", local.learner.policy), ("critic", local.learner.critic)):
        here, elsewhere = role.backend.model.state_dict(), roles[name].backend.model.state_dict()
        assert all(torch.equal(here[key], elsewhere[key]) for key in here)


def test_a_role_of_this_process_works_in_its_phase(make_run, monkeypatch):
    """Its seconds are those of its phase."""
    run = make_run(*PPO)
    learner, seen = run.learner, []

    def watch(role, name):
        target = getattr(learner, role)
        real = getattr(target, name)

        def call(*args):
            seen.append((learner.clock.active_phases(), role, name))
            return real(*args)

        monkeypatch.setattr(target, name, call)

    for role, name in [*PASSES, *UPDATES]:
        watch(role, name)
    learn(learner, produce(run.rollout, 1), current=True)
    phases = ("old_log_prob", "ref", "values", "update_critic", "update_actor")
    assert seen == [(phase, *call) for phase, call in zip(phases, [*PASSES, *UPDATES], strict=True)]
