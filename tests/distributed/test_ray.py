"""Workers as actors of a real Ray, on this machine."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from types import SimpleNamespace

import pytest

from burnish.distributed.ray import AUTHENTICATION, RayActors, RayCluster, RayOptions, not_installed
from burnish.distributed.ray_actor import versions
from burnish.distributed.worker_group import WorkerGroup
from burnish.errors import UserError, WorkerDied

from ..security.peers import descendants, is_loopback, listening_hosts
from .things import DyingActor

THING = "tests.distributed.things:Thing"
# No dashboard and no addresses but our own.
LOCAL = {"address": "local", "include_dashboard": False, "log_to_driver": False}


def test_actors_answer_die_and_are_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    for name in AUTHENTICATION:
        monkeypatch.delenv(name, raising=False)
    timeline = tmp_path / "timeline.json"
    options = RayOptions(num_cpus=2, options=LOCAL, timeline=str(timeline), timeout=60)
    cluster = RayCluster(options)
    try:
        group = WorkerGroup(["rank 0", "rank 1"], RayActors(cluster), host=cluster.host, timeout=60)
        group.build(THING, [(0, 10), (1, 10)])
        assert group.call("add", 5) == [15, 16]
        _check_gauges(cluster)
        _check_that_only_this_machine_reaches_it(cluster)
        with pytest.raises(WorkerDied, match="rank 1 died"):
            group.submit(1, "die").result(30)
        assert group.submit(0, "add", 1).result(10) == 11
        group.close()
        _wait_for_free_cpus(cluster, 2)
        _check_bad_starts(cluster, monkeypatch)
        _wait_for_free_cpus(cluster, 2)

        crowded = RayActors(RayCluster(RayOptions(timeout=1)), resource="GPU")
        with pytest.raises(UserError, match=r"could not reserve 1 x .*GPU.* within 1 s") as caught:
            WorkerGroup(["rank 0"], crowded, host=cluster.host)
        assert (caught.value.key, caught.value.value) == ("trainer.n_gpus_per_node", 1)
    finally:
        cluster.close()
    spans = json.loads(timeline.read_text())  # as far as Ray knows them by then
    assert {span["ph"] for span in spans} == {"X"}
    assert not cluster.ray.is_initialized()
    assert not [name for name in os.environ if name.startswith("RAY_AUTH")]


def _check_gauges(cluster: RayCluster) -> None:
    """Ray's own objects; its exporter is in ray[default]."""
    gauge = cluster.gauge("burnish_score", "critic/score/mean", {"run": "first"})
    gauge.set(0.5)
    assert gauge.info == {
        "name": "burnish_score",
        "description": "critic/score/mean",
        "tag_keys": ("run",),
        "default_tags": {"run": "first"},
    }


def _check_bad_starts(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run of the same name, a node with other versions, and one that is lost while it starts."""
    named = partial(RayActors, cluster, cpus=0.5, prefix="burnish/mine/actor")
    first = WorkerGroup(["rank 0"], named(), host=cluster.host, timeout=60)
    monkeypatch.setattr("burnish.distributed.ray.NAME_PATIENCE", 0.0)
    with pytest.raises(UserError, match="burnish/mine/actor/0 runs on this Ray cluster already") as caught:
        WorkerGroup(["rank 0"], named(), host=cluster.host, timeout=60)
    assert (caught.value.key, caught.value.hint) == (
        "trainer.experiment_name",
        "trainer.experiment_name=another",
    )
    first.close()

    ours = {**versions(), "torch": "0.1"}
    monkeypatch.setattr("burnish.distributed.ray.versions", lambda: ours)
    with pytest.raises(UserError, match=r"node \S+ of the Ray cluster has torch \S+, but the controller has 0\.1"):
        WorkerGroup(["rank 0"], RayActors(cluster), host=cluster.host, timeout=60)
    monkeypatch.setattr("burnish.distributed.ray.versions", versions)

    monkeypatch.setattr("burnish.distributed.ray.HostActor", DyingActor)
    with pytest.raises(WorkerDied, match=r"rank 0 could not start: died \(.*node \S+\)"):
        WorkerGroup(["rank 0"], RayActors(cluster), host=cluster.host, timeout=60)
    monkeypatch.undo()


def test_an_actor_that_the_run_ended_did_not_die(monkeypatch):
    """Its last answers may fail after `stop`, in a thread of its own."""
    monkeypatch.setattr("burnish.distributed.ray.RayLink", lambda actor, events, resolve, failed: failed)
    actors, failures = RayActors(SimpleNamespace(ray=None), prefix="burnish/mine/actor"), []
    actors._fail = lambda rank, why: failures.append(why)
    actors._actors, actors._events = {"rank 0": object()}, object()
    failed = actors._link(0, "rank 0")
    failed(RuntimeError("gone"))
    assert failures == ["died (actor burnish/mine/actor/0, node unknown): gone"]
    actors._actors = {}
    failed(RuntimeError("gone"))
    assert len(failures) == 1


def test_a_node_without_burnish_is_named():
    error = not_installed("ray.exceptions.RayTaskError: ray::HostActor (pid=7, ip=10.0.0.7)\nNo module named 'burnish'")
    assert "node 10.0.0.7 of the Ray cluster has no burnish" in str(error)


def _check_that_only_this_machine_reaches_it(cluster: RayCluster) -> None:
    """And only with a token, which is in no file."""
    hosts = [host for pid in [os.getpid(), *descendants(os.getpid())] for host in listening_hosts(pid)]
    assert len(hosts) > 3 and all(map(is_loopback, hosts))
    assert os.environ["RAY_AUTH_MODE"] == "token" and len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert (cluster.host, cluster.notices) == (None, [])


def _wait_for_free_cpus(cluster: RayCluster, count: int) -> None:
    """A group that is closed gives its places back."""
    patience = time.monotonic() + 30
    while cluster.ray.available_resources().get("CPU", 0) < count:
        assert time.monotonic() < patience
        time.sleep(0.1)
