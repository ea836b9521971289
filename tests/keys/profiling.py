"""Rows of profilers. A process's phases are gone through without a run: one sees what is recorded of them."""

from __future__ import annotations

import gzip
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from burnish.config.profiled import SECTIONS
from burnish.loop.profiling import ROLES, profile_plan, start_under_nsys
from burnish.profiling.plan import PHASES
from burnish.profiling.process import ProcessProfiler

from ..profiling_standins import memory_stand_in, npu_stand_in, nsys_stand_in
from .kit import Case
from .row import Row, Text

CPU = torch.device("cpu")
LAYER = torch.nn.Linear(2, 2)
TORCH: tuple[Text, ...] = ("trainer.profile_steps=[1]", "global_profiler.tool=torch")
MEMORY: tuple[Text, ...] = ("trainer.profile_steps=[1]", "global_profiler.tool=torch_memory")
NPU: tuple[Text, ...] = ("trainer.profile_steps=[1]", "global_profiler.tool=npu")
NSYS: tuple[Text, ...] = ("trainer.profile_steps=[1]", "actor_rollout_ref.actor.profiler.ranks=[0]")
ACTOR = "actor_rollout_ref.actor.profiler"
MEMORY_KEYS = "global_profiler.global_tool_config.torch_memory"


def phases(case: Case) -> None:
    """Go through every phase of two steps, on both of two ranks that hold all roles."""
    plan = profile_plan(case.cfg)
    for rank in range(2):
        profiler = ProcessProfiler(plan.for_rank(tuple(ROLES.values()), rank), rank, CPU)
        for step in (1, 2):
            if step not in plan.steps:
                continue
            profiler.begin(f"step_{step}", plan.name_of(step))
            for phase, role in PHASES.items():
                profiler.enter(phase)
                for number in range(3 if phase.startswith("update_") else 0):
                    profiler.mini_batch(role, number)
                    LAYER(torch.zeros(number + 1, 2))
                profiler.mini_batch(role, None)
                profiler.leave(phase)
            if not plan.continues(step):
                profiler.end()


def recorded(case: Case) -> list[str]:
    """The files of the recordings."""
    folders = [case.folder, case.kit.root / "profiles"]
    for folder in folders:
        for old in folder.rglob("*.rank_*"):
            old.unlink() if old.is_file() else old.rmdir()
    with npu_stand_in(), memory_stand_in():
        phases(case)
    return sorted(
        str(path.relative_to(folder.parent)).replace(case.folder.name, "run")
        for folder in folders
        for path in folder.rglob("*.rank_*")
    )


def mini_batches(case: Case) -> list[int]:
    """How many mini-batches every trace has: each runs one linear layer."""
    return [sum(event["name"] == "aten::linear" for event in _events(path)) for path in _traces(case)]


def events(case: Case) -> dict[str, bool]:
    """What a trace has beside operators: stacks, shapes, memory and modules."""
    found = [event for path in _traces(case) for event in _events(path)]
    return {
        "shapes": any("Input Dims" in event.get("args", {}) for event in found),
        "memory": any(event["name"] == "[memory]" for event in found),
        "stack": any(event.get("cat") == "python_function" for event in found),
        "module": any(event["name"] == "module: Linear" for event in found),
    }


def _traces(case: Case) -> list[Path]:
    recorded(case)
    return sorted(case.folder.rglob("*.json.gz"))


def _events(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event["ph"] != "M"]


def memory_calls(case: Case) -> dict[str, Any]:
    """The arguments of torch's recorder."""
    with memory_stand_in() as calls:
        phases(case)
    return calls[0]


def stack_depth(case: Case) -> int:
    """The frames that the first memory snapshot has of an allocation."""
    recorded(case)
    snapshot = pickle.loads(min(case.folder.rglob("*.pickle")).read_bytes())
    return len(snapshot["device_traces"][0][0]["frames"])


def npu_calls(case: Case) -> list[dict[str, Any]]:
    """The calls of Ascend's profiler."""
    with npu_stand_in() as calls:
        phases(case)
    return [{name: str(value).replace(case.folder.name, "run") for name, value in call.items()} for call in calls]


def nsys_words(case: Case) -> list[str]:
    """The options of nsys, with which the command is started again."""
    with nsys_stand_in() as commands:
        start_under_nsys(case.cfg, ["burnish", "train"])
    return [word for word in commands[0] if not word.startswith("--output")] if commands else []


def profiled_steps(case: Case) -> list[str]:
    """The recordings of a whole run."""
    return [file for file in case.fitted().files if file.startswith("profile/")]


def role_rows(role: str, section: str) -> list[Row]:
    key = f"{section}.profiler"
    on: tuple[Text, ...] = (*TORCH, f"{key}.ranks=[0]")
    whole = f"run/profile/step_1/{role}.rank_0"
    rows = [
        Row(f"{key}.ranks", "[1]", recorded, TORCH, expected=[f"run/profile/step_1/{role}.rank_1.json.gz"]),
        Row(f"{key}.all_ranks", "true", recorded, on, expected=[f"{whole}.json.gz", f"{whole[:-1]}1.json.gz"]),
        Row(f"{key}.enable", "false", recorded, on, expected=[]),
        Row(f"{key}.discrete", "true", recorded, on),
        Row(f"{key}.tool", "torch", recorded, (*NPU, f"{key}.ranks=[0]"), expected=[f"{whole}.json.gz"]),
        Row(
            f"{key}.save_path",
            lambda kit: str(kit.root / "profiles"),
            recorded,
            on,
            expected=[f"profiles/step_1/{role}.rank_0.json.gz"],
        ),
        Row(f"{key}.tool_config.torch.contents", "[cpu,module]", events, on),
        Row(
            f"{key}.tool_config.torch_memory.trace_alloc_max_entries", "7", memory_calls, (*MEMORY, f"{key}.ranks=[0]")
        ),
        Row(f"{key}.tool_config.torch_memory.stack_depth", "3", stack_depth, (*MEMORY, f"{key}.ranks=[0]"), expected=3),
        *(
            Row(f"{key}.tool_config.npu.{name}", value, npu_calls, (*NPU, f"{key}.ranks=[0]"))
            for name, value in {"contents": "[cpu,shapes]", "level": "level2", "analysis": "false"}.items()
        ),
        Row(f"{key}.tool_config.npu.discrete", "true", recorded, (*NPU, f"{key}.ranks=[0]")),
    ]
    if role in ("actor", "critic"):
        rows += [
            Row(f"{key}.tool_config.torch.step_start", "2", mini_batches, on, expected=[1]),
            Row(f"{key}.tool_config.torch.step_end", "2", mini_batches, on, expected=[2]),
        ]
    return rows if role == "actor" else [replace(row, long=True) for row in rows]


ON: tuple[Text, ...] = (*TORCH, f"{ACTOR}.ranks=[0]")
ASCEND: tuple[Text, ...] = (*NPU, f"{ACTOR}.ranks=[0]")
SNAPSHOTS: tuple[Text, ...] = (*MEMORY, f"{ACTOR}.ranks=[0]")
TWO: tuple[Text, ...] = (*NSYS, "trainer.n_gpus_per_node=2")
NSIGHT = {"trace": "nvtx", "cuda-memory-usage": "false", "cuda-graph-trace": "node"}
CAPTURE = {"capture-range": "nvtx", "capture-range-end": "stop", "kill": "sigterm"}
FLAGS = ("with_memory", "record_shapes", "with_module", "with_stack")

ROWS = [
    *(row for role, section in SECTIONS.items() for row in role_rows(role, section)),
    Row(
        "trainer.profile_steps",
        "[2]",
        profiled_steps,
        ("global_profiler.tool=torch", f"{ACTOR}.ranks=[0]"),
        expected=["profile/step_2/actor.rank_0.json.gz"],
    ),
    Row("global_profiler.tool", "torch", nsys_words, NSYS, expected=[]),
    Row(
        "global_profiler.profile_continuous_steps",
        "true",
        recorded,
        (*ON, "trainer.profile_steps=[1,2]"),
        expected=["run/profile/steps_1-2/actor.rank_0.json.gz"],
    ),
    Row("global_profiler.save_path", lambda kit: str(kit.root / "profiles"), recorded, ON),
    Row(f"{MEMORY_KEYS}.trace_alloc_max_entries", "9", memory_calls, SNAPSHOTS),
    Row(f"{MEMORY_KEYS}.stack_depth", "5", stack_depth, SNAPSHOTS, expected=5),
    Row(f"{MEMORY_KEYS}.context", "alloc", memory_calls, SNAPSHOTS),
    Row(f"{MEMORY_KEYS}.stacks", "python", memory_calls, SNAPSHOTS),
    Row(f"{MEMORY_KEYS}.kw_args", "{clear_history: true}", memory_calls, SNAPSHOTS),
    *(Row(f"trainer.controller_nsight_options.{name}", value, nsys_words, TWO) for name, value in NSIGHT.items()),
    *(
        Row(f"trainer.worker_nsight_options.{name}", value, nsys_words, NSYS)
        for name, value in (NSIGHT | CAPTURE).items()
    ),
    *(Row(f"trainer.npu_profile.options.{name}", "true", npu_calls, ASCEND) for name in FLAGS),
    *(Row(f"trainer.npu_profile.options.{name}", "false", npu_calls, ASCEND) for name in ("with_npu", "with_cpu")),
    Row("trainer.npu_profile.options.level", "level0", npu_calls, ASCEND),
    Row("trainer.npu_profile.options.analysis", "false", npu_calls, ASCEND),
    Row("trainer.npu_profile.options.save_path", lambda kit: str(kit.root / "profiles"), npu_calls, ASCEND),
]
