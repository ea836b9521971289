"""Who starts a run's processes, where each stands, and what the processes at hand cannot be."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

import burnish.loop.launch
from burnish.config import load
from burnish.distributed.processes import Processes
from burnish.distributed.torchrun import Torchrun
from burnish.errors import UserError
from burnish.loop.launch import check_launcher, check_transport, launch, train_worker
from burnish.loop.pools import pools

GIVEN = ["data.train_files=train.parquet", "actor_rollout_ref.model.path=model", "trainer.device=cpu"]
TWO = "trainer.n_gpus_per_node=2"
APART = ("actor_rollout_ref.hybrid_engine=false", "rollout.nnodes=1", "rollout.n_gpus_per_node=2")


@pytest.fixture
def torchrun(monkeypatch):
    """torchrun(size): this process is the first of so many of torchrun's."""

    def start(size):
        given = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": size, "MASTER_ADDR": "here", "MASTER_PORT": 1}
        for name, value in {"TORCHELASTIC_RUN_ID": "x", **given}.items():
            monkeypatch.setenv(name, str(value))

    return start


class Group:
    """Starts nothing. `fails` is a method at which it does."""

    made: list[Group] = []
    fails = ""

    def __init__(self, names, starter, *, host, timeout):
        self.names, self.starter, self.host, self.closed = names, starter, host, False
        Group.made.append(self)

    def new_rendezvous(self):
        return "there:5"

    def build(self, factory, args):
        if self.fails == "build":
            raise UserError("no such folder", key="actor_rollout_ref.model.path")
        self.args = args

    def call(self, method):
        return [[f"said by {self.names[0]}"], []]

    def close(self):
        self.closed = True


@pytest.fixture
def groups(monkeypatch):
    monkeypatch.setattr(burnish.loop.launch, "WorkerGroup", Group)
    monkeypatch.setattr(Group, "made", [])
    return Group


def started(*overrides):
    cfg = load([*GIVEN, "algorithm.adv_estimator=grpo", *overrides]).cfg
    return launch(cfg, pools(cfg), train_worker(cfg, total_steps=7))


def test_every_process_has_a_device_and_a_rank_in_its_pool(groups):
    run = started(TWO, *APART, "trainer.launcher=processes", "actor_rollout_ref.nccl_timeout=77")
    policy, engine = groups.made
    assert policy.names == ["trainer rank 0 of 2", "trainer rank 1 of 2"]
    infos = [info for group in groups.made for info, *_ in group.args]
    assert [(info.rank, info.size, info.local_rank) for info in infos] == [(0, 2, 0), (1, 2, 1), (0, 2, 2), (1, 2, 3)]
    assert {(info.address, info.timeout) for info in infos} == {("there:5", 77)}
    assert [own[2:] for own in policy.args] == [(("policy",), 7)] * 2
    assert run.groups == {"policy": policy, "engine": engine}
    assert run.notices == ["said by trainer rank 0 of 2", "said by rollout rank 0 of 2"]
    assert (run.critic(), run.reference(), run.reward_model()) == (None, None, None)


def test_a_launch_that_fails_leaves_nothing_behind(groups, monkeypatch):
    monkeypatch.setattr(Group, "fails", "build")
    with pytest.raises(UserError, match="no such folder"):
        started(TWO, "trainer.launcher=processes")
    assert [group.closed for group in groups.made] == [True]


def test_auto_takes_torchruns_processes(groups, torchrun):
    torchrun(2)
    started(TWO)
    assert isinstance(groups.made[0].starter, Torchrun)


def test_auto_takes_ray_where_it_is_installed(groups, monkeypatch):
    opened = SimpleNamespace(close=lambda: None, host="10.0.0.1", notices=["from ray"], gauge=lambda *args: None)
    monkeypatch.setattr(burnish.loop.launch, "RayCluster", lambda options: opened)
    monkeypatch.setattr(burnish.loop.launch, "RayActors", lambda cluster, **how: (cluster, how))
    assert started(TWO).make_gauge is opened.gauge
    cluster, how = groups.made[0].starter
    environment = how.pop("runtime_env")
    assert (cluster, how, environment(0)) == (
        opened,
        {"nodes": 1, "resource": None, "prefix": "burnish/default/actor_rollout_ref"},
        {},
    )
    assert groups.made[0].host == "10.0.0.1"


def test_without_ray_the_ranks_are_plain_processes_and_a_notice_says_so(groups, monkeypatch):
    monkeypatch.setattr(burnish.loop.launch, "installed", lambda: False)
    run = started(TWO)
    assert isinstance(groups.made[0].starter, Processes)
    assert groups.made[0].host is None
    assert "Ray is not installed" in run.notices[0]


@pytest.mark.parametrize("nodes", [("trainer.nnodes=2",), (*APART, "rollout.nnodes=2")])
def test_several_machines_need_ray(groups, monkeypatch, nodes):
    monkeypatch.setattr(burnish.loop.launch, "installed", lambda: False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[ray\]"') as caught:
        started(TWO, *nodes)
    assert caught.value.key == "trainer.nnodes"


@pytest.mark.parametrize("nodes", [("trainer.nnodes=2",), (*APART, "rollout.nnodes=2")])
def test_several_machines_without_a_cluster_fail_at_once(monkeypatch, tmp_path, nodes):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    cfg = load([*GIVEN, TWO, *nodes]).cfg
    with pytest.raises(UserError, match="the run needs 2 machines, but no Ray cluster is running") as caught:
        check_launcher(cfg, pools(cfg))
    assert caught.value.key == "trainer.nnodes"
    assert "ray start --head" in caught.value.hint and "trainer.nnodes=1" in caught.value.hint
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    assert check_launcher(cfg, pools(cfg)) is None


def test_torchrun_must_have_been_used(groups):
    with pytest.raises(UserError, match="did not start this process") as caught:
        started(TWO, "trainer.launcher=torchrun")
    assert "torchrun --nproc-per-node" in caught.value.hint


@pytest.mark.parametrize(("size", "asked"), [(2, ()), (4, (TWO,)), (4, (TWO, *APART)), (2, ("trainer.nnodes=4",))])
def test_torchruns_processes_must_be_the_runs_ranks(torchrun, size, asked):
    torchrun(size)
    cfg = load([*GIVEN, *asked]).cfg
    with pytest.raises(UserError, match=f"torchrun started {size} processes") as caught:
        check_launcher(cfg, pools(cfg))
    assert caught.value.key == "trainer.n_gpus_per_node"


@pytest.mark.parametrize(("size", "asked"), [(1, ()), (2, (TWO,)), (8, ("trainer.nnodes=4", TWO))])
def test_equally_many_are_let_through(torchrun, size, asked):
    torchrun(size)
    cfg = load([*GIVEN, *asked]).cfg
    assert check_launcher(cfg, pools(cfg)) is None


def test_nccl_sends_between_gpus():
    key = "actor_rollout_ref.rollout.checkpoint_engine.backend"
    cfg = load([*GIVEN, *APART, f"{key}=nccl"]).cfg
    with pytest.raises(UserError, match="nccl requires CUDA devices") as caught:
        check_transport(cfg)
    assert (caught.value.key, caught.value.hint) == (key, f"{key}=gloo")
    for fits in ((*APART, f"{key}=gloo"), (f"{key}=nccl",)):  # or nothing is sent at all
        cfg = load([*GIVEN, *fits]).cfg
        assert check_transport(cfg) is None


@pytest.mark.parametrize(("launcher", "fits"), [("processes", False), ("ray", True)])
def test_a_rank_needs_a_device_of_its_own(monkeypatch, launcher, fits):
    """On this machine; Ray reserves the devices of its cluster itself."""
    monkeypatch.setattr(burnish.loop.launch, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    cfg = load([*GIVEN, TWO, f"trainer.launcher={launcher}"]).cfg
    if fits:
        assert check_launcher(cfg, pools(cfg)) is None
        return
    with pytest.raises(UserError, match="this machine has 1") as caught:
        check_launcher(cfg, pools(cfg))
    assert (caught.value.key, caught.value.hint) == ("trainer.n_gpus_per_node", "trainer.n_gpus_per_node=1")
