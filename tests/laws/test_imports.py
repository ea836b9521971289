"""Who may import whom, and which file may import a heavy library."""

from __future__ import annotations

import ast
import json

import pytest

from .source import imported, modules, python

GROUND = {
    *("batch", "errors", "escape", "folders", "http", "isolation", "json_values", "media", "network", "redact"),
    *("registry", "seeding", "sizing", "storage", "untrusted", "user_code"),
}
COMMON = GROUND | {"config"}
MIDDLE = {"algos", "models", "data", "rollout", "reward", "training", "distributed", "log", "profiling"}

# A package may import itself and what is listed here. The entry points, `burnish/__init__.py` and
# `burnish/__main__.py`, may import everything, the first one lazily.
MAY_IMPORT = {
    "redact": set(),
    "escape": {"redact"},
    "errors": {"redact"},
    "seeding": set(),
    "batch": set(),
    "sizing": set(),
    "http": set(),
    "network": {"errors"},
    "isolation": {"errors"},
    "user_code": {"errors"},
    "untrusted": {"errors"},
    "folders": {"errors"},
    "json_values": set(),
    "registry": {"errors", "user_code"},
    "storage": {"errors", "folders", "http", "untrusted"},
    "media": {"errors", "http", "storage", "untrusted"},
    "config": {"registry", "errors", "redact", "untrusted", "user_code"},
    "dialects": {"config", "registry", "errors", "redact", "untrusted"},
    "algos": {"registry"},
    "models": {"errors", "media", "registry", "storage", "sizing", "untrusted"},
    "compat": {"algos", "registry", "batch", "errors", "data", "reward", "rollout"},
    "data": COMMON,
    "reward": COMMON | {"algos", "models", "training", "rollout", "log"},
    "distributed": COMMON,
    "log": COMMON,
    "profiling": COMMON,
    "rollout": COMMON | {"models"},
    "training": COMMON | {"models", "algos"},
    "loop": COMMON | MIDDLE | {"doctor"},
    "jobs": COMMON | MIDDLE | {"loop"},
    "doctor": COMMON | {"dialects", "data", "reward", "models"},
    "rehearsal": COMMON | MIDDLE | {"loop", "jobs", "demo", "dialects", "compat", "doctor"},
    "demo": COMMON | MIDDLE | {"loop", "compat"},
    "view": COMMON | {"log", "profiling"},
    "cli": COMMON | MIDDLE | {"loop", "jobs", "compat", "demo", "dialects", "doctor", "rehearsal", "view"},
}

HEAVY = (
    "ray",
    "vllm",
    "sglang",
    "wandb",
    "mlflow",
    "swanlab",
    "trackio",
    "weave",
    "opentelemetry",
    "peft",
    "bitsandbytes",
    "liger_kernel",
    "datasets",
    "fsspec",
    "triton",
    "tensorboard",
    "latex2sympy2_extended",
    "matplotlib",
    "mcp",
    "bm25s",
    "av",
)
# Other doors to a heavy library.
SAME_LIBRARY = {"torch.utils.tensorboard": "tensorboard"}


def test_every_package_has_import_rules():
    packages = {module.package for module in modules()} - {"__init__", "__main__"}
    assert packages <= MAY_IMPORT.keys(), (
        f"say in MAY_IMPORT what they may import: {sorted(packages - MAY_IMPORT.keys())}"
    )


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_they_may(package):
    allowed = MAY_IMPORT[package] | {package, "__version__"}
    wrong = [
        f"{module.where}:{line} imports {name}"
        for module in modules()
        if module.package == package
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


def test_burnish_train_is_callable_after_its_package_is_imported():
    """`burnish.train(...)` can be called, also after the package of the same name was imported."""
    assert imported().api == dict.fromkeys(["UserError", "evaluate", "generate", "sft", "train"], True)


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
