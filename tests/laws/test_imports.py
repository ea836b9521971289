"""Who may import whom, and which file may import a heavy library."""

from __future__ import annotations

import ast
import json

import pytest

from .source import imported, modules, python

GROUND = {"batch", "registry", "errors", "seeding", "sizing", "storage", "user_code"}
COMMON = GROUND | {"config"}
MIDDLE = {"algos", "models", "data", "rollout", "reward", "training", "distributed", "log"}

# A room may import itself and what stands here. The front doors, `burnish/__init__.py` and `burnish/__main__.py`, open
# to everything, the first one lazily.
MAY_IMPORT = {
    "errors": set(),
    "seeding": set(),
    "batch": set(),
    "sizing": set(),
    "user_code": {"errors"},
    "registry": {"errors", "user_code"},
    "storage": {"errors"},
    "config": {"registry", "errors", "user_code"},
    "dialects": {"config", "registry", "errors"},
    "algos": {"registry"},
    "models": {"errors", "storage", "sizing"},
    "compat": {"algos", "registry", "batch", "errors", "data", "reward"},
    "data": COMMON,
    "reward": COMMON | {"algos", "models", "training", "rollout", "log"},
    "distributed": COMMON,
    "log": COMMON,
    "rollout": COMMON | {"models"},
    "training": COMMON | {"models", "algos"},
    "loop": COMMON | MIDDLE,
    "jobs": COMMON | MIDDLE | {"loop"},
    "doctor": COMMON | {"dialects", "data", "reward", "models"},
    "rehearsal": COMMON | MIDDLE | {"loop", "jobs", "demo", "dialects", "compat"},
    "demo": COMMON | MIDDLE | {"loop", "compat"},
    "cli": COMMON | MIDDLE | {"loop", "jobs", "compat", "demo", "dialects", "doctor", "rehearsal"},
}

HEAVY = (
    "ray",
    "vllm",
    "sglang",
    "wandb",
    "mlflow",
    "swanlab",
    "trackio",
    "peft",
    "bitsandbytes",
    "liger_kernel",
    "datasets",
    "fsspec",
    "triton",
    "tensorboard",
    "math_verify",
    "matplotlib",
)
# Other doors to a heavy library.
SAME_LIBRARY = {"torch.utils.tensorboard": "tensorboard"}


def test_every_room_is_in_the_plan():
    rooms = {module.room for module in modules()} - {"__init__", "__main__"}
    assert rooms <= MAY_IMPORT.keys(), f"say in MAY_IMPORT what they may import: {sorted(rooms - MAY_IMPORT.keys())}"


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_rooms_import_only_what_they_may(room):
    allowed = MAY_IMPORT[room] | {room, "__version__"}
    wrong = [
        f"{module.where}:{line} imports {name}"
        for module in modules()
        if module.room == room
        for name, line in module.imports()
        if name.split(".")[0] == "burnish" and name.split(".")[1] not in allowed
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", HEAVY)
def test_a_heavy_library_is_imported_in_one_file(library):
    files = {
        module.where for module in modules() for name, _ in module.imports() if library in (_library(name), _door(name))
    }
    assert len(files) <= 1, f"{library} is imported in {sorted(files)}"


@pytest.mark.parametrize("library", HEAVY)
def test_a_heavy_library_is_not_imported_at_import(library):
    at_top = [
        f"{module.where}:{node.lineno}"
        for module in modules()
        for node in module.tree.body
        if library in _names_at_top(node)
    ]
    assert not at_top, f"{library} must be imported where it is used: {at_top}"


def test_the_check_of_heavy_libraries_sees_them():
    seen = {_library(name) for module in modules() for name, _ in module.imports()}
    assert {"wandb", "matplotlib", "mlflow"} <= seen


@pytest.mark.parametrize("module", ["burnish", "burnish.config", "burnish.reward.worker", "burnish.cli.main"])
def test_importing_loads_no_torch(module):
    code = f"import sys, json, {module}; print(json.dumps(sorted(set(m.split('.')[0] for m in sys.modules))))"
    loaded = json.loads(python(code).stdout)
    assert {"torch", "transformers", *HEAVY} & set(loaded) == set()


def test_reading_a_config_loads_no_torch():
    code = (
        "import sys; from burnish.config import load\n"
        "load(['actor_rollout_ref.model.path=m', 'data.train_files=t.parquet'])\n"
        "print('torch' in sys.modules)"
    )
    assert python(code).stdout.strip() == "False"


def test_importing_everything_does_no_work():
    """No module prints, or starts a thread or a process, when it is imported."""
    assert imported().printed == ""
    assert imported().begun == []


def test_the_front_door_stays_open():
    """`burnish.train(...)` can be called, also after the room of the same name was imported."""
    assert imported().api == {"UserError": True, "sft": True, "train": True}


def _library(name: str) -> str:
    return name.split(".")[0]


def _door(name: str) -> str:
    return next((library for door, library in SAME_LIBRARY.items() if name.startswith(door)), "")


def _names_at_top(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import):
        return {_library(alias.name) for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        return {_library(node.module), _door(node.module)}
    return set()
