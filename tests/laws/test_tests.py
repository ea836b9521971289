"""A test asserts something, and none is skipped."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from .source import ROOT, Module, calls, dotted, modules

TESTS = ROOT / "tests"
# Reasons to skip: comparisons with files that are not part of a clone, and a library that has no build for CPUs.
MAY_SKIP = {"shared folder is not here", "vLLM's models for images import torchvision"}
SKIPS = {"pytest.skip", "pytest.xfail", "pytest.importorskip"}
SKIP_MARKS = {"skip", "skipif", "xfail"}
ASSERTING_CALLS = {"pytest.raises", "pytest.warns", "pytest.fail", "raises", "torch.testing.assert_close"}


def test_every_test_asserts():
    silent = []
    for module in modules(TESTS):
        asserting = asserting_functions(module)
        silent += [
            f"{module.where}:{function.lineno} {function.name}"
            for function in functions(module)
            if function.name.startswith("test_") and not asserts(function, asserting)
        ]
    assert not silent, "\n".join(silent)


def test_every_test_file_has_a_test():
    files = [module for module in modules(TESTS) if module.path.name.startswith("test_")]
    empty = [module.where for module in files if not any(f.name.startswith("test_") for f in functions(module))]
    assert files and not empty, empty


def test_no_two_tests_of_a_scope_share_a_name():
    """The second would replace the first, which then never runs."""
    twice = []
    for module in modules(TESTS):
        for scope in [module.tree, *(node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))]:
            named = [node.name for node in scope.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
            twice += [f"{module.where}: {name}" for name in sorted(set(named)) if named.count(name) > 1]
    assert not twice, twice


def test_no_test_is_skipped():
    skipped = []
    for module in modules(TESTS):
        for call in calls(module.tree):
            reasons = [*call.args, *(word.value for word in call.keywords)]
            said = any(isinstance(one, ast.Constant) and one.value in MAY_SKIP for one in reasons)
            if (dotted(call.func) in SKIPS or is_skip_mark(call.func)) and not said:
                skipped.append(f"{module.where}:{call.lineno}")
        skipped += [
            f"{module.where}:{function.lineno}"
            for function in functions(module)
            for mark in function.decorator_list
            if is_skip_mark(mark)
        ]
    assert not skipped, skipped


MARKERS = ("attack", "attacks")  # for a test, and for each of its parameters


def test_every_test_of_security_names_its_attack():
    """The table of docs/security.md counts attacks by their markers."""
    tests = [
        (module, function)
        for module in modules(TESTS / "security")
        for function in functions(module)
        if function.name.startswith("test_")
    ]
    unnamed = [
        f"{module.where}:{function.lineno} {function.name}"
        for module, function in tests
        if not any(dotted(call.func) in MARKERS for mark in function.decorator_list for call in calls(mark))
    ]
    assert tests and not unnamed, unnamed


def is_skip_mark(node: ast.AST) -> bool:
    name = dotted(node)
    return name.startswith("pytest.mark.") and name.rpartition(".")[2] in SKIP_MARKS


@cache
def functions(module: Module) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]:
    return tuple(node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def helper_files(folder: Path) -> tuple[Module, ...]:
    """Files in this folder and above that hold no tests."""
    folders = {folder, *folder.parents}
    return tuple(one for one in modules(TESTS) if one.path.parent in folders and not one.path.name.startswith("test_"))


def asserting_functions(module: Module) -> set[str]:
    """Functions of this file, and of conftests and helpers beside or above it, that assert, perhaps through others."""
    near = [module, *helper_files(module.path.parent)]
    called = {function.name: asserts_or_calls(function) for one in near for function in functions(one)}
    asserting: set[str] = {name for name, names in called.items() if names is None}
    while True:
        more = {name for name, names in called.items() if names is not None and names & asserting} - asserting
        if not more:
            return asserting
        asserting |= more


@cache
def asserts_or_calls(function: ast.AST) -> frozenset[str] | None:
    """None if the function itself asserts, else the last parts of the names it calls."""
    names = [dotted(call.func) for call in calls(function)]
    if any(isinstance(node, ast.Assert) for node in ast.walk(function)) or ASSERTING_CALLS & set(names):
        return None
    return frozenset(name.rpartition(".")[2] for name in names)


def asserts(function: ast.AST, helpers: set[str]) -> bool:
    names = asserts_or_calls(function)
    return names is None or bool(names & helpers)
