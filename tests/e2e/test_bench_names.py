"""The names of burnish that bench/command.py patches, and the phases that faults wait for, still exist.

Without this, one function that moved fails every row of tests/e2e/test_faults.py, a minute later and without its name.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = ROOT / "bench" / "command.py"
FAULTS = [ROOT / "bench" / name for name in ("faults.py", "killing.py", "conversations.py")]
_PHASE = re.compile(r"(?:clock|starts\.append\()\(\s*\"(\w+)\"")  # entered, or to be entered with what starts


def load_command():
    spec = importlib.util.spec_from_file_location("bench_command_of_test_bench_names", COMMAND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def patched() -> list[str]:
    """Dotted names, as bench/command.py writes them, that it replaces: `owner.name = ...` and trace(owner, "name")."""
    found = []
    for node in ast.walk(ast.parse(COMMAND.read_text())):
        if isinstance(node, ast.Assign):
            targets = [part for target in node.targets for part in getattr(target, "elts", [target])]
            found += [ast.unparse(target) for target in targets if isinstance(target, ast.Attribute)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "trace":
            owner, name = node.args[:2]
            found.append(f"{ast.unparse(owner)}.{ast.literal_eval(name)}")
    return sorted({name for name in found if not name.startswith("self.")})


def traced_phases() -> set[str]:
    calls = (node for node in ast.walk(ast.parse(COMMAND.read_text())) if isinstance(node, ast.Call))
    return {ast.literal_eval(call.args[2]) for call in calls if getattr(call.func, "id", "") == "trace"}


def test_the_search_finds_what_is_patched():
    assert (
        len(patched()) >= 13 and "Clock._enter" in patched() and "burnish.log.rollout_writer.dump_rollouts" in patched()
    )
    assert {"resume", "write", "reward", "dump", "act"} <= traced_phases()


@pytest.mark.parametrize("name", patched())
def test_a_patched_name_exists(name):
    value = load_command()
    for part in name.split("."):
        assert hasattr(value, part), f"bench/command.py patches {name}, which has no {part}"
        value = getattr(value, part)


@pytest.mark.parametrize("file", FAULTS, ids=lambda file: file.name)
def test_the_phases_that_faults_wait_for_exist(file):
    known = traced_phases() | {
        phase for source in (ROOT / "burnish").rglob("*.py") for phase in _PHASE.findall(source.read_text())
    }
    waited = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name == "Instant" and node.args and isinstance(node.args[0], ast.Constant):
            waited.add(node.args[0].value)
        elif name == "random_instant":
            waited |= {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and part.value}
    assert file.name == "killing.py" or waited
    assert waited <= known, f"{file.name} waits for {sorted(waited - known)}, which no run enters"
