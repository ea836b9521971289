"""`burnish doctor --plan`: what it proposes loads, fits and divides, and its step times are near measured ones."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.config import load
from burnish.config.ranks import (
    engine_size,
    expert_parallel_size,
    has_engine_pool,
    num_ranks,
    pipeline_parallel_size,
    sequence_parallel_size,
    tensor_parallel_size,
    virtual_pipeline_size,
)
from burnish.doctor.gpus import Cluster, gpu_of_device, parse_cluster
from burnish.doctor.memory import Shapes, train_plan
from burnish.doctor.planner import timing, traffic
from burnish.doctor.planner.calibration import seconds_of, shipped
from burnish.doctor.planner.layout import (
    ALL,
    ONE_STEP_OFF,
    Layout,
    applied,
    indivisible,
    placements,
)
from burnish.doctor.planner.links import Group, exposed, group_of
from burnish.doctor.planner.search import Base, Search, changed_settings
from burnish.doctor.planner.timing import Workload, step_time
from burnish.doctor.shapes import find_shape, shape_of
from burnish.errors import ExitStatus, UserError
from burnish.models.sequence.method import ULYSSES, choose_method
from burnish.sizing import GIB
from burnish.training.expert_parallel import check_experts
from burnish.training.pipeline_schedule import Shape as Schedule
from burnish.training.pipeline_schedule import simulate, training_plan
from burnish.training.stages import StageOptions, layer_ranges
from burnish.training.tensor_parallel import check_sizes
from tests.training.layouts import MODELS

RESULTS = Path(__file__).parents[2] / "bench" / "results"
RUN = [
    "actor_rollout_ref.model.path=qwen2.5-7b",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=256",
]
PPO = ("algorithm.adv_estimator=gae", "actor_rollout_ref.actor.use_kl_loss=true", "critic.optim.lr=1e-5")
SMALL = ("actor_rollout_ref.model.path=qwen2.5-1.5b",)
LARGE = ("actor_rollout_ref.model.path=qwen2.5-72b",)
MIXTURE = ("actor_rollout_ref.model.path=qwen3-30b-a3b",)
GIVEN = ("data.train_files",)
ACTOR = "actor_rollout_ref.actor"


def shapes_of(loaded) -> Shapes:
    return Shapes(find_shape(loaded.cfg.actor_rollout_ref.model.path).shape)


@cache
def search(text: str, *words: str, capacity: int | None = None, pins: bool = True):
    cluster = parse_cluster(text)
    base = Base.of([*RUN, *words], shapes_of, pins=pins)
    return Search(cluster, base, shipped(), capacity or cluster.gpu.memory).run()


def doctor(capsys, *words: str):
    status = main(["doctor", *words])
    printed = capsys.readouterr()
    return status, printed.out + printed.err


# clusters


@pytest.mark.parametrize(
    ("text", "gpu", "machines", "per_machine"),
    [
        ("64xH100", "H100", 8, 8),
        ("1xRTX 4090", "RTX 4090", 1, 1),
        ("8x4090", "RTX 4090", 1, 8),
        (" 2 x 8 x a100-80 ", "A100", 2, 8),
        ("16xA100-40", "A100-40", 2, 8),
        ("3x4xMI300X", "MI300X", 3, 4),
    ],
)
def test_clusters(text, gpu, machines, per_machine):
    cluster = parse_cluster(text)
    assert (cluster.gpu.name, cluster.machines, cluster.per_machine) == (gpu, machines, per_machine)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("64xV100", "unknown GPU"),
        ("0xH100", "not a number of GPUs that can be planned"),
        ("0x8xH100", "not a number of GPUs that can be planned"),
        ("999999999x999999999xH100", "not a number of GPUs that can be planned"),
        ("12xH100", "no whole number of machines of 8"),
        ("H100", "not a number of GPUs and their type"),
        ("-8xH100", "not a number of GPUs and their type"),
        ("8x" + "H" * 1000, "not a number of GPUs and their type"),
    ],
)
def test_what_is_no_cluster(text, problem):
    with pytest.raises(UserError, match=problem) as caught:
        parse_cluster(text)
    assert len(caught.value.text()) < 400


def test_a_device_is_found_by_its_driver_name():
    names = {"NVIDIA A100-SXM4-40GB": "A100-40", "NVIDIA A100-SXM4-80GB": "A100", "NVIDIA A10": "A10", "L40S": "L40S"}
    for device, name in {**names, "NVIDIA GeForce RTX 4090": "RTX 4090", "NVIDIA A1000": "A100"}.items():
        assert gpu_of_device(device).name == name


# what is proposed


@pytest.mark.parametrize(
    ("text", "words"),
    [("64xH200", ()), ("8xH200", PPO), ("2x8xH100", MIXTURE), ("1xH200", SMALL), ("64xH100", LARGE)],
)
def test_the_best_layouts_load_fit_and_are_in_order(text, words):
    found = search(text, *words)
    assert 1 <= len(found.best) <= 3 and found.num_tried > len(found.best)
    assert [c.time.step for c in found.best] == sorted(c.time.step for c in found.best)
    for candidate in found.best:
        layout, time = candidate.layout, candidate.time
        loaded = load([*RUN, *words, *candidate.overrides], given=GIVEN)
        assert num_ranks(loaded.cfg) == layout.ranks and layout.num_gpus == found.cluster.size
        plan = train_plan(loaded.cfg, shapes_of(loaded), found.cluster.gpu.memory)
        assert not plan.too_big
        assert plan.to_json() == candidate.plan.to_json()
        if layout.mode != ONE_STEP_OFF:
            assert time.step == pytest.approx(sum(time.phases.values()))
        assert max(time.phases.values()) <= time.step < 10_000
        assert 0 < time.mfu < time.update_mfu < 1
    assert all(rejection.count > 0 for rejection in found.rejected)


LAYOUTS = [
    Layout(1, 1),
    Layout(2, 8, fsdp_size=8, recompute=False),
    Layout(1, 8, context=2, offload=ALL),
    Layout(1, 8, tensor=2, context=2, pipeline=2),
    Layout(2, 8, pipeline=4, virtual=7, fsdp_size=1),
    Layout(1, 8, engine_tensor=4),
    Layout(1, 4, engine_machines=1, engine_per_machine=4, engine_tensor=2, mode=ONE_STEP_OFF),
    Layout(1, 6, engine_machines=1, engine_per_machine=2, mode=ONE_STEP_OFF),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=Layout.text)
@pytest.mark.parametrize("words", [[], PPO], ids=["grpo", "ppo"])
def test_overrides_give_the_layout(layout, words):
    """Also the copy of the config that the search plans with is what loading the overrides gives."""
    words = [*RUN, "data.train_batch_size=768", *words]
    base = load(words, check=False).cfg
    loaded = load([*words, *changed_settings(layout, base)], given=GIVEN)
    roles = [
        loaded.cfg.actor_rollout_ref.actor,
        *([loaded.cfg.critic, loaded.cfg.actor_rollout_ref.ref] if len(words) > 5 else []),
    ]
    for role in roles:
        sizes = (tensor_parallel_size(role), sequence_parallel_size(role), pipeline_parallel_size(role))
        assert sizes == (layout.tensor, layout.context, layout.pipeline)
        assert virtual_pipeline_size(role) == layout.virtual and expert_parallel_size(role) == layout.expert
    assert num_ranks(loaded.cfg) == layout.ranks and has_engine_pool(loaded.cfg) == layout.is_apart
    assert engine_size(loaded.cfg) == layout.engine_tensor
    shapes = shapes_of(loaded)
    plans = [train_plan(cfg, shapes, 80 * GIB).to_json() for cfg in (loaded.cfg, applied(layout, base))]
    assert plans[0] == plans[1]


def test_what_the_user_sets_is_kept(capsys):
    found = search("4xH100", f"{ACTOR}.ulysses_sequence_parallel_size=2", "data.max_response_length=8192")
    assert found.best and all(candidate.layout.context == 2 for candidate in found.best)
    assert any(f"you set {ACTOR}.ulysses_sequence_parallel_size" in one.reason for one in found.rejected)
    free = search("8xH200", f"{ACTOR}.ppo_max_token_len_per_gpu=4096", pins=False)
    kept = search("8xH200", f"{ACTOR}.ppo_max_token_len_per_gpu=4096")
    assert {candidate.layout.micro_batch_tokens for candidate in kept.best} == {4096}
    assert free.best[0].time.step <= kept.best[0].time.step


def test_engines_have_as_many_gpus_as_their_weights_need(capsys):
    size = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    for candidate in search("64xH100", *LARGE).best:
        assert candidate.layout.engine_tensor in (4, 8) and candidate.plan.concurrency.held > 0
        assert f"{size}={candidate.layout.engine_tensor}" in candidate.overrides
        assert candidate.layout.num_engines * candidate.layout.engine_tensor <= 64
    kept = search("8xH200", f"{size}=2")
    assert kept.best and {candidate.layout.engine_tensor for candidate in kept.best} == {2}
    free, words = search("8xH200"), [*RUN, f"{size}=2"]  # as a verl script has it
    assert {candidate.layout.engine_tensor for candidate in free.best} == {1}
    status, printed = doctor(capsys, "--plan", "8xH200", "--", "python3", "-m", "verl.trainer.main_ppo", *words)
    assert status == ExitStatus.OK and f"{size}=1" in printed
    status, printed = doctor(capsys, "--plan", "512xH100", *RUN, "actor_rollout_ref.model.path=deepseek-v3")
    assert status == ExitStatus.REFUSED and "More GPUs do not help the rollout" in printed


def test_gpus_of_an_engine_share_its_work():
    cfg, cluster, work = load(RUN, check=False).cfg, parse_cluster("8xH100"), Workload(1024, 8, 512, 512)
    shapes = Shapes(find_shape("qwen2.5-7b").shape)
    one, four = (
        step_time(cfg, shapes, Layout(1, 8, engine_tensor=size), cluster, 256 * size, shipped(), work)
        for size in (1, 4)
    )
    assert one.phases[timing.ROLLOUT] < four.phases[timing.ROLLOUT] < 4 * one.phases[timing.ROLLOUT]
    apart = {name for name, seconds in one.phases.items() if four.phases[name] != seconds}
    assert apart == {timing.ROLLOUT}


def test_less_memory_is_slower_or_impossible():
    steps = []
    for gib in (140, 60, 8):
        found = search("8xH200", capacity=gib * GIB)
        steps.append(found.best[0].time.step if found.best else float("inf"))
        assert all(candidate.plan.worst.bytes <= gib * GIB for candidate in found.best)
    assert steps == sorted(steps) and steps[-1] == float("inf") and steps[0] < 1000
    assert any("does not fit" in rejection.reason for rejection in found.rejected)


# the same rules as in a run


def test_sizes_divide_as_the_run_checks_them():
    for config in MODELS.values():
        shape = shape_of(config.to_dict())
        for size in (1, 2, 3, 4, 8):
            ours = indivisible(Layout(1, size, tensor=size), shape)
            theirs = allowed(check_sizes, config, size, "key") and (size == 1 or not shape.experts)  # not planned yet
            assert (ours is None) == theirs, (config.model_type, "tensor", size)
            ours = indivisible(Layout(1, size, context=size), shape)
            method = choose_method(config, size, "key").method
            assert (ours is None) == (size == 1 or method is ULYSSES), (config.model_type, "context", size)
            ours = indivisible(Layout(1, size, expert=size), shape)
            assert (ours is None) == allowed(check_experts, config, size, "key"), (config.model_type, "expert", size)
            for virtual in (1, 2):
                ours = indivisible(Layout(1, size, pipeline=size, virtual=virtual), shape)
                theirs = allowed(layer_ranges, shape.layers, StageOptions(size, virtual))
                assert (ours is None) == theirs or size == 1, (config.model_type, "pipeline", size, virtual)


def allowed(check, *arguments) -> bool:
    try:
        check(*arguments)
    except UserError:
        return False
    return True


@pytest.mark.parametrize(("size", "virtual", "count"), [(2, 1, 4), (4, 1, 8), (4, 2, 8), (2, 3, 6)])
def test_bubbles_are_those_of_the_schedule(size, virtual, count):
    schedule = Schedule(size, virtual, count)
    played = simulate(training_plan("1f1b", schedule), schedule)
    cfg = load([*RUN, "data.train_batch_size=8", f"{ACTOR}.ppo_mini_batch_size=8"], check=False).cfg
    work = Workload(8, count // 2 or 1, 0, 1000)
    tokens = work.rows * work.length / count
    layout = Layout(1, size, pipeline=size, virtual=virtual, micro_batch_tokens=int(tokens))
    shapes = Shapes(find_shape("qwen2.5-7b").shape)
    time = step_time(cfg, shapes, layout, parse_cluster("8xH100"), 1, shipped(), work)
    assert time.bubble == pytest.approx(played.idle[0] / played.length)


def test_groups_of_ranks_on_machines():
    layout = Layout(2, 8, tensor=2, context=2, pipeline=2)
    assert group_of(traffic.TENSOR, layout, 8) == Group(2, 2)
    assert group_of(traffic.CONTEXT, layout, 8) == Group(2, 2)
    assert group_of(traffic.GATHER, layout, 8) == Group(4, 4)
    assert group_of(traffic.PIPELINE, layout, 8).crosses
    wide = Layout(2, 8, tensor=8)
    assert group_of(traffic.GATHER, wide, 8) == Group(2, 1) and group_of(traffic.GATHER, wide, 8).crosses
    flows = {traffic.GATHER: traffic.Flow(10, 1e9, 2), traffic.TENSOR: traffic.Flow(10, 1e9, 8)}
    cluster = parse_cluster("16xH100")
    busy, idle = exposed(flows, 100.0, wide, cluster), exposed(flows, 0.0, wide, cluster)
    assert busy.by_kind == idle.by_kind and busy.seconds < idle.seconds == pytest.approx(sum(idle.by_kind.values()))
    assert busy.seconds >= busy.by_kind[traffic.TENSOR]


@pytest.mark.parametrize(("text", "pools"), [("8xH100", 3), ("64xH100", 3), ("2xH100", 1), ("1xH100", 0)])
def test_pools_use_all_gpus(text, pools):
    cluster = parse_cluster(text)
    found = list(placements(cluster))
    assert len(found) == 1 + pools
    assert all(a * b + c * d == cluster.size for a, b, c, d in found)


# the step-time model


def measured_rows() -> list[dict]:
    return json.loads((RESULTS / "plan_check.json").read_text())["rows"]


@pytest.mark.parametrize("row", measured_rows(), ids=lambda row: row["name"])
def test_a_measured_step_is_within_fifteen_percent(row):
    cfg = load(row["overrides"], check=False).cfg
    layout = Layout(1, 1, micro_batch_tokens=row["tokens"], recompute=row["recompute"])
    work = Workload(row["prompts"], row["samples"], row["prompt_tokens"], row["response_tokens"])
    shapes = Shapes(find_shape(f"qwen2.5-{row['shape'].lower()}").shape)
    cluster = Cluster(gpu_of_device("NVIDIA H200"), 1, 1)
    time = step_time(cfg, shapes, layout, cluster, row["prompts"] * row["samples"], shipped(), work)
    assert time.step == pytest.approx(row["step"], rel=0.15)
    assert time.phases[timing.ROLLOUT] == pytest.approx(row["gen"], rel=0.15)


def test_terms_are_seconds_at_peak():
    """A layer's matrices at peak take their FLOPs, whatever the calibration is."""
    cfg = load([*RUN, "data.train_batch_size=4", f"{ACTOR}.ppo_mini_batch_size=4"], check=False).cfg
    shape, cluster, work = find_shape("qwen2.5-7b").shape, parse_cluster("1xH100"), Workload(4, 8, 100, 900)
    layout = Layout(1, 1, recompute=False)
    terms = timing.terms_of(applied(layout, cfg), Shapes(shape), work, layout, cluster, 32)
    flops = 6 * 32 * 1000 * shape.layers * shape.layer_linear
    assert terms[timing.ACTOR]["linear"] == pytest.approx(flops / 989e12)
    assert timing.OLD_LOG_PROBS not in terms  # one update of current weights
    once = {"linear": 2.0, "launch": 3.0, "rows": 1.0}
    assert seconds_of(once, dict.fromkeys(once, 1.0)) == 4.0
    assert seconds_of(once, {"linear": 2.0, "launch": 1.0, "rows": 1.0}) == 5.0


def test_more_gpus_are_never_slower():
    steps = [search(f"{count}xH200").best[0].time.step for count in (2, 8, 64)]
    assert steps == sorted(steps, reverse=True)


# the command


def test_the_report(capsys):
    status, printed = doctor(capsys, "--plan", "16xH100", *RUN)
    assert status == ExitStatus.OK
    for text in ("Plan for 16 x H100", "1. ", "3. ", "s per step", "trainer.nnodes=2", "MFU", "Rejected", "x slower"):
        assert text in printed, text
    assert "extrapolated to H100" in printed and "several GPUs are not measured" in printed


def test_the_report_as_json_of_a_translated_command(capsys):
    command = ["python3", "-m", "verl.trainer.main_ppo", *RUN, "trainer.n_gpus_per_node=2"]
    status, printed = doctor(capsys, "--plan", "2x8xA100", "--json", "--", *command)
    plan = json.loads(printed)["plan"]
    assert status == ExitStatus.OK and len(plan["best"]) == 3
    assert plan["best"][0]["overrides"][0].startswith("trainer.nnodes=")
    assert plan["rejected"] and plan["assumptions"] and plan["layouts_tried"] > 10


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["64xFOO", *RUN], ExitStatus.USAGE, "unknown GPU"),
        (["8xH100"], ExitStatus.USAGE, "no run to plan"),
        (["8xH100", "algorithm.adv_estimator=grpo"], ExitStatus.USAGE, "no model to plan for"),
        (["8xH100", "actor_rollout_ref.model.path=nothing"], ExitStatus.USAGE, "qwen2.5-7b"),
        (["8xH100", "trainer.nnodess=1"], ExitStatus.USAGE, "no such key"),
        (["8xRTX 4090", "actor_rollout_ref.model.path=qwen2.5-72b"], ExitStatus.REFUSED, "No layout fits"),
        (["8xH100", "--", "burnish", "sft", "model.partial_pretrain=qwen2.5-7b"], ExitStatus.USAGE, ""),
    ],
)
def test_bad_input(capsys, words, status, text):
    found, printed = doctor(capsys, "--plan", *words)
    assert found == status and text in printed
