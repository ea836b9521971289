"""Rows of keys that act where a run has several processes.

The second rank is pretended (PyTorch's fake process group: collectives return at once), so that one sees here what a
rank of two would hold; and processes are not started: one sees what each would be told.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import burnish.distributed.process_group
import burnish.distributed.ray
import burnish.distributed.weights
import burnish.distributed.worker_group
import burnish.loop.build
import burnish.loop.launch
import burnish.loop.reward_nodes
import burnish.loop.tool_nodes
from burnish.batch import Batch, Ragged
from burnish.distributed.process_group import RankInfo
from burnish.distributed.weights import Endpoint, _buckets
from burnish.distributed.worker_group import WorkerGroup
from burnish.errors import WorkerDied
from burnish.loop.handles import RemoteWeights
from burnish.loop.launch import LaunchedRoles, ProcessConfig, WorkerProgram, launch, train_worker
from burnish.loop.pools import Pool, pools
from burnish.loop.roles import load_run_tokenizer, policy_source
from burnish.loop.worker import Worker
from burnish.reward.settings import RewardSettings
from burnish.reward.source import FromRules
from burnish.rollout.engine import Capabilities
from burnish.rollout.tools.isolated import Template
from burnish.training.backend import Backend
from burnish.training.packing import MicroBatchSize, PackedRows

from .kit import Case
from .models_more import GAE, JUDGED, KL
from .row import Observe, Row, Text
from .sglang import words

CPU = torch.device("cpu")
TWO: tuple[Text, ...] = ("trainer.n_gpus_per_node=2",)
ROLLOUT, HYBRID = "actor_rollout_ref.rollout", "actor_rollout_ref.hybrid_engine"
FSDP = {
    "policy": "actor_rollout_ref.actor.fsdp_config",
    "reference": "actor_rollout_ref.ref.fsdp_config",
    "critic": "critic.model.fsdp_config",
    "reward_model": "reward_model.model.fsdp_config",
}
GIVEN: dict[str, tuple[Text, ...]] = {"policy": (), "reference": KL, "critic": GAE, "reward_model": JUDGED}
BY_SIZE = {"reward_model": ("500", {"Qwen2Attention", "Qwen2MLP"})}  # which is smaller than the others


# what a rank of two holds


@contextlib.contextmanager
def one_rank(case: Case) -> Iterator[Worker]:
    """The first of two, before it builds its roles."""
    worker = object.__new__(Worker)
    worker.cfg, worker.device, worker.contexts, worker.roles, worker.notices = case.cfg, CPU, {}, {}, []
    worker.info = RankInfo(rank=0, size=2, local_rank=0, address="")
    worker.source = policy_source(case.cfg)
    worker.tokenizer = load_run_tokenizer(case.cfg, worker.source)
    with two_ranks():
        yield worker


@contextlib.contextmanager
def two_ranks() -> Iterator[None]:
    """The first of two, for torch."""
    new_group = dist.new_group
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dist, "new_group", lambda ranks=None, backend=None: new_group(ranks, backend="fake"))
            yield
    finally:
        dist.destroy_process_group()


class Collectives(TorchDispatchMode):
    """Every collective of this process, with the tensor that it fills."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func.namespace == "c10d":
            self.made.append((func.name(), args[0]))
        return func(*args, **(kwargs or {}))


@cache
def held(role: str, look: Callable[[str, Backend], Any]) -> Observe:
    """What one sees of a role's sharded model."""

    def observe(case: Case) -> Any:
        with one_rank(case) as worker:
            if role == "reference":
                worker.roles["policy"] = worker._build_policy(2)
            return look(role, getattr(worker, f"_build_{role}")(2).backend)

    return observe


NUM_TOKENS = 6  # of `run`


def run(role: str, backend: Backend) -> torch.Tensor:
    """The model's numbers for a few tokens."""
    rows = PackedRows.of(Batch(prompt_ids=Ragged.of([[3, 4], [5]]), responses=Ragged.of([[6], [7, 8]])), CPU)
    ways = {"critic": backend.values, "reward_model": backend.scores}
    return ways[role](rows) if role in ways else backend.log_probs(rows, 1.0, with_entropy=False)[0]


def units_of(backend: Backend) -> dict[str, FSDPModule]:
    """All but the outermost."""
    return {name: module for name, module in backend.model.named_modules() if isinstance(module, FSDPModule)}


def units(role: str, backend: Backend) -> set[str]:
    """Classes of the modules that are gathered and freed as one."""
    return {type(module).__name__.removeprefix("FSDP") for module in units_of(backend).values()}


def mesh(role: str, backend: Backend) -> tuple[int, ...]:
    """Ranks by copy and shard, or by shard alone."""
    return tuple(next(backend.model.parameters()).device_mesh.shape)


def freed(role: str, backend: Backend) -> bool:
    """Are the last unit's weights in shards again once the model has computed?"""
    found = []
    last = [*units_of(backend).values()][-1]
    backend.fsdp_root.register_forward_hook(lambda *_: found.append(isinstance(next(last.parameters()), DTensor)))
    with torch.no_grad():
        run(role, backend)
    return found[0]


def gathered_ahead(role: str, backend: Backend) -> int:
    """How many gathers have begun when the first unit computes."""
    found: list[int] = []
    first = next(iter(units_of(backend).values()))
    inside = next(iter(first.children()))
    backend.fsdp_root.reshard()
    with Collectives() as begun, torch.no_grad():
        inside.register_forward_pre_hook(lambda *_: found.append(len(begun.made)))
        run(role, backend)
    return found[0]


def summed_in(role: str, backend: Backend) -> set[str]:
    """The formats in which gradients are summed over ranks."""
    found = run(role, backend).sum()
    with Collectives() as begun:
        found.backward()
    return {str(tensor.dtype) for name, tensor in begun.made if "reduce" in name}


def sharding_rows(role: str, section: str, given: tuple[Text, ...]) -> list[Row]:
    wrap, several = f"{section}.wrap_policy", (*given, *TWO)
    halves = (*several, f"{wrap}.transformer_layer_cls_to_wrap=[Qwen2Attention,Qwen2MLP]")
    size, large = BY_SIZE.get(role, ("5000", {"Qwen2MLP"}))
    rows = [
        Row(f"{wrap}.min_num_params", size, held(role, units), several, expected=large),
        Row(f"{wrap}.transformer_layer_cls_to_wrap", "Qwen2MLP", held(role, units), several, expected={"Qwen2MLP"}),
        Row(f"{section}.reshard_after_forward", "false", held(role, freed), several, expected=False),
        Row(f"{section}.fsdp_size", "1", held(role, mesh), several, expected=(2, 1)),
        Row(f"{section}.forward_prefetch", "true", held(role, gathered_ahead), halves, expected=3),
    ]
    if role in ("policy", "critic"):
        key, expected = f"{section}.mixed_precision.reduce_dtype", {"torch.bfloat16"}
        rows.append(Row(key, "bf16", held(role, summed_in), several, expected=expected))
    return rows


def dealt(case: Case) -> list[list[int]]:
    """The first rank's rows, of which some are longer than others."""
    with one_rank(case) as worker:
        actor = case.cfg.actor_rollout_ref.actor
        prompts, responses = (Ragged.of([[1] * n for n in lengths]) for lengths in ([80, 50, 10, 5], [10, 10, 10, 5]))
        return worker._parallel("actor_rollout_ref.actor", actor, actor.fsdp_config).shard_batch(
            Batch(prompt_ids=prompts, responses=responses), MicroBatchSize(rows=4)
        )


# what processes are told


class Recorder:
    """A group that starts nothing and remembers what it was to do."""

    made: list[Recorder] = []

    def __init__(self, names: list[str], starter: Any, *, host: str, timeout: float) -> None:
        self.names, self.starter, self.timeout, self.size = names, starter, timeout, len(names)
        Recorder.made.append(self)

    def new_rendezvous(self) -> str:
        return "somewhere:1"

    def build(self, factory: str, args: list[tuple]) -> None:
        self.infos, self.roles = [own[0] for own in args], args[0][2]

    def call(self, method: str) -> list[Any]:
        return {"take_notices": [[]], "engine_capabilities": [Capabilities(addressed="token", invariant=True)]}[method]

    def close(self) -> None:
        pass


class Placed(Exception):
    """The stand-in for Ray places no worker: it ends the start once it knows what is requested."""


class RayStandIn:
    """Stands for the ray module: records the calls it gets."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.timelines: list[str] = []
        self.placements: list[tuple[list[dict[str, float]], str]] = []
        self.waits: list[float] = []
        self._private = SimpleNamespace(ray_constants=SimpleNamespace())
        self.util = SimpleNamespace(
            get_node_ip_address=lambda: "10.0.0.1", placement_group=self.place, remove_placement_group=lambda _: None
        )

    def place(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        self.placements.append((bundles, strategy))
        return SimpleNamespace(ready=lambda: None)

    def wait(self, waiting: list[Any], timeout: float) -> Any:
        self.waits.append(timeout)
        raise Placed

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 64.0}

    def is_initialized(self) -> bool:
        return False

    def init(self, **given: Any) -> None:
        self.given = {name: value for name, value in given.items() if name != "runtime_env" and value != "local"}

    def nodes(self) -> list[dict[str, bool]]:
        return [{"Alive": True}] * 8

    def timeline(self, path: str) -> None:
        self.timelines.append(path)

    def shutdown(self) -> None:
        pass


class Joined(Exception):
    """The process group that a transfer of weights would join."""


@dataclass(frozen=True)
class Launch:
    """What `launch` gets."""

    cfg: ProcessConfig
    pools: list[Pool]
    program: WorkerProgram


@contextlib.contextmanager
def launched(case: Case | Launch) -> Iterator[tuple[LaunchedRoles, list[Recorder], RayStandIn]]:
    """A run's processes, as far as they would be told what to do."""
    ray = RayStandIn()
    if not isinstance(case, Launch):
        case = Launch(case.cfg, pools(case.cfg), train_worker(case.cfg, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "made", [])
        patch.setattr(burnish.loop.launch, "WorkerGroup", Recorder)
        patch.setattr(burnish.loop.launch, "pick_device", torch.device)
        patch.setattr(burnish.distributed.ray, "_ray", lambda: ray)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield launch(case.cfg, case.pools, case.program), Recorder.made, ray


def seats(case: Case | Launch) -> dict[str, list[int]]:
    """The devices of every pool's processes, each with the roles that it holds."""
    with launched(case) as (_, groups, _):
        return {", ".join(group.roles): [info.local_rank for info in group.infos] for group in groups}


def nodes(case: Case | Launch) -> list[int]:
    """Machines that every pool requests from Ray."""
    with launched(case) as (_, groups, ray):
        for group in groups:
            with contextlib.suppress(Placed):
                group.starter.start(group.names, "10.0.0.1:1")
        return [len(bundles) for bundles, strategy in ray.placements]


def timeouts(case: Case) -> list[float]:
    """Seconds that torch.distributed allows a collective of every pool."""
    calls: list[float] = []
    library = SimpleNamespace(
        get_default_backend_for_device=dist.get_default_backend_for_device,
        init_process_group=lambda *arguments, **options: calls.append(options["timeout"].total_seconds()),
    )
    with launched(case) as (_, groups, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(burnish.distributed.process_group, "dist", library)
        for name in ("open_store", "verify_group"):
            patch.setattr(burnish.distributed.process_group, name, lambda *arguments: None)
        for group in groups:
            burnish.distributed.process_group.init_process_group(group.infos[0], CPU)
    return calls


def patience(case: Case | Launch) -> tuple[float, str]:
    """Seconds that Ray may take to place workers; and the error where none of them calls, on a clock that races."""
    with launched(case) as (_, groups, ray), pytest.MonkeyPatch.context() as patch:
        with contextlib.suppress(Placed):
            groups[0].starter.start(groups[0].names, "10.0.0.1:1")
        seconds = itertools.count(0.0, 0.5)
        patch.setattr(burnish.distributed.worker_group, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
        group = object.__new__(WorkerGroup)
        group.names = ["rank 0"]
        group.starter = SimpleNamespace(exit_reason=lambda name: None, stop=lambda: None, poll=lambda: None)

        def nobody(timeout: float) -> None:
            raise queue.Empty

        with pytest.raises(WorkerDied) as caught:
            group._accept_workers(SimpleNamespace(connected=SimpleNamespace(get=nobody)), groups[0].timeout)
        return ray.waits[0], caught.value.why


def starter(case: Case | Launch) -> str:
    with launched(case) as (_, groups, _):
        return type(groups[0].starter).__name__


def ray_start(case: Case | Launch) -> dict[str, Any]:
    """The arguments of ray.init."""
    with launched(case) as (_, _, ray):
        return ray.given


def scored_on(case: Case) -> int:
    """Nodes that score; 0: this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burnish.loop.build, "make_scorer", lambda name, kwargs, settings, reward: settings)
        patch.setattr(burnish.loop.build, "open_cluster", lambda cfg: None)
        patch.setattr(burnish.loop.reward_nodes, "RewardNodes", lambda cluster, nodes, *others: nodes)
        pool = burnish.loop.build.build_scorer(case.cfg, None, Path("reward.log")).pool
        return 0 if pool is None else pool(FromRules(), RewardSettings(), print)


def tools_on(case: Case) -> int:
    """Nodes that run tools; 0: this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burnish.loop.tool_nodes, "RayActors", lambda cluster, nodes, **more: nodes)
        patch.setattr(burnish.loop.tool_nodes, "WorkerGroup", lambda names, actors, **more: actors)
        cluster = SimpleNamespace(host=None, close=lambda: None)
        load = burnish.loop.tool_nodes.tool_nodes(case.cfg, lambda cfg: cluster)
        return 0 if load is Template else load.__self__.start_processes()[0]


def timelines(case: Case | Launch) -> list[str]:
    """Written when the run has ended."""
    with launched(case) as (run, _, ray):
        run.close()
        return ray.timelines


def transport(case: Case) -> str:
    """torch.distributed's process group by which weights are sent to the engines."""

    def joined(name: str) -> Any:
        def raising(*arguments: Any) -> Any:
            raise Joined(name)

        return raising

    library = SimpleNamespace(
        ProcessGroupNCCL=joined("nccl"),
        ProcessGroupGloo=joined("gloo"),
    )
    library.ProcessGroupNCCL.Options = SimpleNamespace
    policy = SimpleNamespace(new_rendezvous=lambda: "10.0.0.1:1", size=1, submit=lambda rank, method, link: send(link))

    def send(link: Endpoint) -> None:
        burnish.distributed.weights.send([], link, CPU)

    with launched(case) as (run, _, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(burnish.distributed.weights, "dist", library)
        patch.setattr(burnish.distributed.weights, "open_store", lambda *arguments: None)
        with pytest.raises(Joined) as caught:
            run.engine(case.cfg).load_weights(RemoteWeights(policy), version=1)
        return caught.value.args[0]


def parcels(case: Case) -> int:
    """In how many parts three megabytes of weights travel."""
    with launched(case) as (run, _, _):
        weights = [(name, torch.zeros(1 << 18)) for name in "abc"]
        return len(list(_buckets(weights, run.engine(case.cfg).bucket_bytes)))


def notices_another_weight(case: Case) -> bool:
    """Does the run see that its engine holds another number than the policy, in one of all places?"""
    engine, load = case.run.rollout.engine, case.run.rollout.engine.load_weights

    def load_badly(stream: Any, version: int) -> None:
        load(stream, version)
        with torch.no_grad():
            next(engine.runner.model.parameters()).view(-1)[5] += 1e-3

    engine.load_weights = load_badly
    try:
        case.run.sync_weights()
    except RuntimeError as error:
        return "weights differ from the policy" in str(error)
    return False


RAY: tuple[Text, ...] = (*TWO, "trainer.launcher=ray")
APART: tuple[Text, ...] = (f"{HYBRID}=false", "rollout.nnodes=1", "rollout.n_gpus_per_node=1")
# Side by side on one device there may be no pool at all.
BESIDE: tuple[Text, ...] = (*TWO, *APART)
JUDGE_APART: tuple[Text, ...] = (
    *(*JUDGED, *TWO, "reward_model.enable_resource_pool=true"),
    *("reward_model.nnodes=1", "reward_model.n_gpus_per_node=1", "trainer.launcher=ray"),
)
SHARED = {"policy, engine": [0, 1]}

ROWS = [
    *(row for role, section in FSDP.items() for row in sharding_rows(role, section, GIVEN[role])),
    Row("trainer.balance_batch", "false", dealt, TWO, expected=[[0, 1]]),
    Row("trainer.nnodes", "2", nodes, RAY, expected=[2]),
    Row("trainer.n_gpus_per_node", "4", seats, TWO, expected={"policy, engine": [0, 1, 2, 3]}),
    Row("trainer.launcher", "processes", starter, TWO, expected="Processes"),
    Row("trainer.ray_wait_register_center_timeout", "7", patience, RAY, expected=(7, "did not connect within 7 s")),
    Row("actor_rollout_ref.nccl_timeout", "700", timeouts, TWO, expected=[700.0]),
    Row("critic.nccl_timeout", "700", timeouts, (*GAE, *TWO), expected=[700.0]),
    Row("reward_model.nccl_timeout", "500", timeouts, JUDGE_APART, expected=[600.0, 500.0]),
    Row("ray_init.num_cpus", "5", ray_start, RAY, expected={"num_cpus": 5}),
    Row("ray_init.options", "{address: auto}", ray_start, RAY, expected={"address": "auto"}),
    Row("ray_init.reward_nodes", "2", scored_on, ("trainer.launcher=ray", "reward.num_workers=1"), expected=2),
    Row("ray_init.tool_nodes", "2", tools_on, ("trainer.launcher=ray",), expected=2),
    Row("ray_init.timeline_json_file", "timeline.json", timelines, RAY, expected=["timeline.json"]),
    Row(HYBRID, "false", seats, (*TWO, *APART[1:]), expected={"policy": [0, 1], "engine": [2]}),
    Row("rollout.nnodes", "2", nodes, (*BESIDE, "trainer.launcher=ray"), expected=[1, 2]),
    Row("rollout.n_gpus_per_node", "2", seats, BESIDE, expected={"policy": [0, 1], "engine": [2, 3]}),
    Row(
        "reward_model.enable_resource_pool",
        "true",
        seats,
        (*JUDGED, *TWO, "reward_model.nnodes=1", "reward_model.n_gpus_per_node=1"),
        expected=SHARED | {"reward_model": [2]},
    ),
    Row("reward_model.nnodes", "2", nodes, JUDGE_APART, expected=[1, 2]),
    Row("reward_model.n_gpus_per_node", "2", seats, JUDGE_APART, expected=SHARED | {"reward_model": [2, 3]}),
    Row(f"{ROLLOUT}.checkpoint_engine.backend", "gloo", transport, (*BESIDE, "trainer.device=cuda"), expected="gloo"),
    Row(f"{ROLLOUT}.update_weights_bucket_megabytes", "1", parcels, BESIDE, expected=3),
    Row(f"{ROLLOUT}.verify_weights", "false", notices_another_weight, expected=False),
    *(
        Row(f"{ROLLOUT}.{name}_parallel_size", "2", words, (f"{ROLLOUT}.name=sglang",))
        for name in ("tensor_model", "data", "expert", "pipeline_model")
    ),
]
