"""Runs on a Ray cluster of several nodes on this machine, of which some are killed and some join: nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from ray.cluster_utils import Cluster

from burnish.config.load import load
from burnish.loop.build_agents import build_toolbox
from burnish.loop.elastic import ElasticEngines
from burnish.loop.fit import _one_step
from burnish.loop.launch import open_cluster
from burnish.loop.reward_nodes import RewardNodes
from burnish.loop.tool_nodes import tool_nodes
from burnish.rollout.tools.tool import ConversationInfo

from .test_several import FILE, compare
from .test_tool_nodes import COUNTER

NOT_COMPARED = ("training/restarts",)


@pytest.fixture
def cluster(monkeypatch):
    """cluster(head, *others): CPUs of each node."""
    # Dead nodes are noticed after a second, not after half a minute.
    config = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
    made = []

    def start(head: int, *others: int) -> Cluster:
        arguments = {"num_cpus": head, "include_dashboard": False, "_system_config": config}
        made.append(Cluster(initialize_head=True, head_node_args=arguments))
        for count in others:
            made[0].add_node(num_cpus=count)
        return made[0]

    yield start
    for one in made:
        one.shutdown()


def ray_options(cluster: Cluster) -> tuple[str, ...]:
    given = f"{{address: '{cluster.address}', log_to_driver: false}}"
    return "trainer.launcher=ray", f"ray_init.options={given}", "trainer.ray_wait_register_center_timeout=100"


def node_of(cluster: Cluster, group, rank: int):
    wanted = group.starter.node(group.names[rank])
    return next((node for node in cluster.worker_nodes if node.node_id == wanted), None)  # None: the head


def lines_of(metric_lines, folder):
    return [
        (step, {name: value for name, value in numbers.items() if name not in NOT_COMPARED})
        for step, numbers in metric_lines(folder)
    ]


@pytest.mark.long
def test_an_engine_lost_mid_rollout_is_replaced_by_a_node_that_joins(
    cluster, launch, metric_lines, tmp_path, monkeypatch, caplog
):
    """Two training ranks fill the head; an engine is on each of two other nodes."""
    three = cluster(2, 1, 1)
    killed, serving = [], {}
    start, sync = ElasticEngines._start, ElasticEngines.load_weights

    def kill_once(self, rank, requests):
        if rank == 1 and not killed and self.version > 0:
            killed.append(self)
            three.remove_node(node_of(three, self.group, 1), allow_graceful=False)
            three.add_node(num_cpus=1)
        return start(self, rank, requests)

    def wait_for_return(self, stream, version):
        patience = time.monotonic() + 60
        while version == 3 and not self._returned and time.monotonic() < patience:
            time.sleep(0.2)
        self.version = version
        result = sync(self, stream, version)
        serving[version] = set(self._serving)
        return result

    monkeypatch.setattr(ElasticEngines, "version", 0, raising=False)
    monkeypatch.setattr(ElasticEngines, "_start", kill_once)
    monkeypatch.setattr(ElasticEngines, "load_weights", wait_for_return)
    apart = ("actor_rollout_ref.hybrid_engine=false", "rollout.nnodes=2", "rollout.n_gpus_per_node=1")
    steps = (*FILE, "trainer.total_training_steps=4")
    with caplog.at_level(logging.WARNING, "burnish"):
        found = launch(*steps, *apart, "trainer.n_gpus_per_node=2", *ray_options(three), out="cluster")
    assert found.metrics.get("training/restarts", 0) == 0
    (engines,) = killed
    assert engines.num_asked_again > 0
    assert serving[3] == {0, 1}, "it serves again, after a weight sync"
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "rollout rank 1 of 2 was lost: 1 of 2 engines are left" in said and "rollout rank 1 of 2 is back" in said
    monkeypatch.undo()
    launch(*steps, out="alone")
    compare(lines_of(metric_lines, tmp_path / "cluster"), lines_of(metric_lines, tmp_path / "alone"))


@pytest.mark.long
def test_a_node_killed_mid_update_is_named_and_the_run_goes_on_without_it(
    cluster, launch, metric_lines, tmp_path, monkeypatch, caplog
):
    three = cluster(1, 1, 1)
    killed = []

    def kill_once(run, result):
        if run.step == 1 and not killed:
            policy = run.learner.policy
            submit = policy.group.submit_shared

            def submit_and_kill(rank, shared, method, role, name, *args):
                future = submit(rank, shared, method, role, name, *args)
                if name == "update" and rank == 1 and not killed:
                    ranks = [rank for rank in range(2) if node_of(three, policy.group, rank) is not None]
                    killed.append(policy.group.names[ranks[-1]])
                    three.remove_node(node_of(three, policy.group, ranks[-1]), allow_graceful=False)
                return future

            policy.group.submit_shared = submit_and_kill
        _one_step(run, result)

    monkeypatch.setattr("burnish.loop.fit._one_step", kill_once)
    with caplog.at_level(logging.WARNING, "burnish"):
        found = launch(*FILE, "trainer.nnodes=2", "trainer.n_gpus_per_node=1", *ray_options(three), out="cluster")
    assert (len(killed), found.step, found.metrics["training/restarts"]) == (1, 2, 1)
    said = " ".join(record.getMessage() for record in caplog.records)
    assert f"{killed[0]} died (actor burnish/" in said and "node " in said
    monkeypatch.undo()
    launch(*FILE, out="alone")
    compare(lines_of(metric_lines, tmp_path / "cluster"), lines_of(metric_lines, tmp_path / "alone"))


@pytest.mark.long
def test_reward_workers_on_nodes_survive_the_loss_of_one(cluster, launch, metric_lines, tmp_path, monkeypatch, caplog):
    """The head has a CPU for the run, and each of two other nodes two for its reward workers."""
    three = cluster(1, 2, 2)
    killed = []
    send = RewardNodes._send

    def kill_once(self, job):
        if not killed and sum(self._open) > 1:
            killed.append(self)
            three.remove_node(node_of(three, self._group, 1), allow_graceful=False)
            three.add_node(num_cpus=2)
        send(self, job)

    monkeypatch.setattr(RewardNodes, "_send", kill_once)
    workers = ("reward.num_workers=2", "ray_init.reward_nodes=2", "reward.isolate=false")
    with caplog.at_level(logging.WARNING, "burnish"):
        found = launch(*FILE, *workers, *ray_options(three), out="cluster")
    assert (len(killed), found.metrics.get("training/restarts", 0), found.metrics["reward/failed"]) == (1, 0, 0)
    assert "reward node 1 of 2 was lost" in " ".join(record.getMessage() for record in caplog.records)
    monkeypatch.undo()
    launch(*FILE, out="alone")
    compare(lines_of(metric_lines, tmp_path / "cluster"), lines_of(metric_lines, tmp_path / "alone"))


@pytest.mark.long
def test_isolated_tools_on_nodes_move_with_their_conversations(cluster, tmp_path):
    three = cluster(1, 1, 1)
    (tmp_path / "counter.py").write_text(COUNTER)
    tools = tmp_path / "tools.yaml"
    tools.write_text(f"tools: [{{class_name: '{tmp_path}/counter.py:Counter', limits: {{isolate: true}}}}]")
    tool_config = f"actor_rollout_ref.rollout.multi_turn.tool_config_path={tools}"
    cfg = load([*FILE, *ray_options(three), tool_config, "ray_init.tool_nodes=2"], check=False).cfg
    toolbox = build_toolbox(cfg, (), tool_nodes(cfg, open_cluster))

    async def converse():
        (tool,) = toolbox.tools.values()
        nodes, workers = tool.template.nodes, [await tool.open(ConversationInfo(name, 1, {}), {}) for name in "abc"]
        texts = [(await tool.call(worker, {"by": 2})).text for worker in workers]
        left = next(rank for rank in range(2) if node_of(three, nodes.group, rank) is not None)
        three.remove_node(node_of(three, nodes.group, left), allow_graceful=False)
        texts += [(await tool.call(worker, {"by": 3})).text for worker in workers]
        three.add_node(num_cpus=1)
        deadline = time.monotonic() + 240  # a node starts slowly where others work
        while len(nodes.group.living) < 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        assert len(nodes.group.living) == 2, "the node that has joined serves"
        late = await tool.open(ConversationInfo("d", 1, {}), {})
        place, text = late._place, (await tool.call(late, {"by": 4})).text
        return left, place[0], [text.split()[0] for text in [*texts, text]]

    try:
        left, place, values = asyncio.run(converse())
    finally:
        toolbox.close()
    assert values == ["2", "2", "2", "5", "5", "5", "4"]
    assert place == left, "a new conversation is on the node that has joined"
