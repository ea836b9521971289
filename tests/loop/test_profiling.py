"""Profiled runs: traces hold the named phases, results stay the same, and missing tools are refused by name."""

import gzip
import json
import stat
import subprocess
import sys

import pytest
import torch

import burnish.profiling.nsight
from burnish.config import load
from burnish.errors import UserError
from burnish.loop.profiling import start_under_nsys, worker_command, worker_environment
from burnish.profiling.plan import ProfilePlan, RoleProfile
from burnish.profiling.process import ProcessProfiler
from burnish.profiling.summary import summarize

from ..profiling_standins import nsys_stand_in

STEPS = ("trainer.profile_steps=[2]", "global_profiler.tool=torch")
ACTOR = "actor_rollout_ref.actor.profiler"
ROLLOUT = "actor_rollout_ref.rollout.profiler"
TIMES = (
    *("timing_s/", "timing_per_token_ms/", "perf/", "engine/seconds"),
    *("rollout/draft_", "rollout/decode_", "engine/draft_", "engine/decode_", "engine/loaded_"),  # see draft_policy.py
)


def labels(path):
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return {event["name"] for event in events if event.get("cat") == "user_annotation"}


def numbers(result):
    return {name: value for name, value in result.metrics.items() if not name.startswith(TIMES)}


def test_a_profiled_run_computes_the_same_and_its_trace_has_the_phases(launch):
    plain = launch(out="plain")
    profiled = launch(*STEPS, f"{ACTOR}.ranks=[0]", f"{ROLLOUT}.ranks=[0]", out="profiled")
    assert numbers(profiled) == numbers(plain)
    files = sorted((profiled.folder / "profile").rglob("*.*"))
    assert [file.relative_to(profiled.folder / "profile").as_posix() for file in files] == [
        "step_2/actor+rollout.rank_0.json.gz"
    ]
    assert {"step", "gen", "adv", "update_actor", "update_weights"} <= labels(files[0])
    summary = summarize(files[0])
    assert summary.kind == "operators" and {"gen", "update_actor"} <= summary.phases.keys()
    assert summary.phases["gen"] < summary.phases["step"] <= summary.seconds
    assert 0 < summary.idle_share < 1
    assert any(entry.name == "aten::mm" and entry.calls > 1 for entry in summary.top)


@pytest.mark.long
def test_profiled_steps_are_noted(launch, capsys):
    launch(*STEPS, f"{ACTOR}.ranks=[0]", f"{ACTOR}.discrete=true")
    assert "step_2/update_actor.actor.rank_0.json.gz" in "".join(capsys.readouterr().out.split())


@pytest.mark.long
def test_every_rank_of_two_writes_its_trace(launch):
    two = ("trainer.n_gpus_per_node=2", "trainer.launcher=processes")
    result = launch(*STEPS, *two, f"{ACTOR}.all_ranks=true", f"{ROLLOUT}.ranks=[1]")
    files = {file.name: labels(file) for file in (result.folder / "profile/step_2").iterdir()}
    assert set(files) == {"actor.rank_0.json.gz", "actor+rollout.rank_1.json.gz"}
    for found in files.values():
        assert {"gen", "update_actor", "update_weights"} <= found


@pytest.mark.long
def test_an_asynchronous_run_is_profiled(launch):
    result = launch(*STEPS, "async_training.mode=one_step_off", f"{ACTOR}.ranks=[0]")
    assert "update_actor" in labels(result.folder / "profile/step_2/actor.rank_0.json.gz")


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ("torch_memory", "require a CUDA device"),
        ("npu", "requires an NPU"),
        ("nsys", "no program `nsys` in PATH"),
        ("null", "no program `nsys` in PATH"),
    ],
)
def test_a_missing_tool_is_refused_by_its_key(make_run, tool, problem):
    with nsys_stand_in(installed=False), pytest.raises(UserError, match=problem) as caught:
        make_run("trainer.profile_steps=[1]", f"global_profiler.tool={tool}", f"{ACTOR}.ranks=[0]")
    assert caught.value.key == f"{ACTOR}.tool"
    assert "global_profiler.tool=torch" in caught.value.hint


def test_nsys_needs_a_gpu(make_run):
    with nsys_stand_in(), pytest.raises(UserError, match="records CUDA devices"):
        make_run("trainer.profile_steps=[1]", f"{ACTOR}.ranks=[0]")


def config(settings, *more):
    return load(settings("trainer.profile_steps=[1]", f"{ACTOR}.ranks=[0]", *more), given=["data.train_files"]).cfg


def test_a_single_process_starts_again_under_nsys(settings, tmp_path):
    with nsys_stand_in() as commands:
        start_under_nsys(config(settings), ["python", "-m", "burnish", "train", "x=1"])
    (words,) = commands
    assert words[:2] == ["nsys", "profile"]
    assert words[-5:] == ["python", "-m", "burnish", "train", "x=1"]
    options = words[2:-5]
    assert {"--trace=cuda,nvtx,cublas,ucx", "--capture-range=cudaProfilerApi", "--capture-range-end=repeat"} <= {
        *options
    }
    assert f"--output={tmp_path}/run/profile/actor.rank_0" in options


def test_a_process_under_nsys_goes_on_and_keeps_it_from_its_children(settings, monkeypatch):
    with nsys_stand_in() as commands:
        monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
        monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/injection.so")
        start_under_nsys(config(settings), ["burnish"])
        assert commands == []
        assert "CUDA_INJECTION64_PATH" not in burnish.profiling.nsight.os.environ


def test_workers_run_under_nsys_if_their_rank_is_profiled(settings):
    cfg = config(settings, "trainer.n_gpus_per_node=2", "trainer.worker_nsight_options.trace=cuda")
    roles = ("policy", "engine")
    command = worker_command(cfg, roles, 0, ["python", "-m", "worker"])
    assert command[:3] == ["nsys", "profile", "--trace=cuda"] and command[-3:] == ["python", "-m", "worker"]
    assert worker_command(cfg, roles, 1, ["python"]) == ["python"]
    nsight = worker_environment(cfg, roles, 0)["nsight"]
    assert nsight["trace"] == "cuda" and nsight["kill"] == "none" and nsight["o"].endswith("profile/actor.rank_0")
    assert worker_environment(cfg, roles, 1) == {}


def test_nsys_gets_the_profiled_step_and_a_range_per_phase(tmp_path, monkeypatch):
    """A stand-in for CUDA's profiler API and NVTX records the calls."""
    calls = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_start", lambda name: calls.append(name) or name)
    monkeypatch.setattr(torch.cuda.nvtx, "range_end", lambda name: calls.append(f"/{name}"))
    plan = ProfilePlan(frozenset({1}), roles=(RoleProfile("actor", "nsys", tmp_path),))
    profiler = ProcessProfiler(plan, 0, torch.device("cpu"))
    profiler.begin("step_1", "step_1")
    profiler.enter("gen")
    profiler.leave("gen")
    assert profiler.end() == []
    assert calls == ["start", "gen", "/gen", "stop"]


def test_a_disk_that_is_full_costs_the_profile_and_not_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    plan = ProfilePlan(frozenset({1}), roles=(RoleProfile("actor", "torch", tmp_path / "file"),))
    profiler = ProcessProfiler(plan, 0, torch.device("cpu"))
    profiler.begin("step_1", "step_1")
    (note,) = profiler.end()
    assert note.startswith("cannot write the profile")


@pytest.mark.long
def test_the_command_runs_under_a_stand_in_for_nsys(settings, tmp_path):
    """The stand-in writes its arguments and stops: what follows needs a GPU."""
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\necho "$BURNISH_UNDER_NSYS" >> {tmp_path}/words\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    words = [sys.executable, "-m", "burnish", "train", *settings("data.train_files=x.jsonl", f"{ACTOR}.ranks=[0]")]
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    done = subprocess.run([*words, "trainer.profile_steps=[1]"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    command, marker = (tmp_path / "words").read_text().splitlines()
    assert command.startswith("profile --trace=") and " -m burnish train " in command and marker == "1"
