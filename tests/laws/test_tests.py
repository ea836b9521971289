"""A test asserts something, and none is skipped."""

from __future__ import annotations

import ast
from functools import cache

from .source import ROOT, Module, calls, dotted, modules

TESTS = ROOT / "tests"
# The one reason to skip: comparisons with files that are not part of a clone.
MAY_SKIP = "shared folder is not here"
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
            said = any(isinstance(one, ast.Constant) and one.value == MAY_SKIP for one in reasons)
            if (dotted(call.func) in SKIPS or is_skip_mark(call.func)) and not said:
                skipped.append(f"{module.where}:{call.lineno}")
        skipped += [
            f"{module.where}:{function.lineno}"
            for function in functions(module)
            for mark in function.decorator_list
            if is_skip_mark(mark)
        ]
    assert not skipped, skipped


def is_skip_mark(node: ast.AST) -> bool:
    name = dotted(node)
    return name.startswith("pytest.mark.") and name.rpartition(".")[2] in SKIP_MARKS


def functions(module: Module) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def asserting_functions(module: Module) -> set[str]:
    """Functions of this file, and of conftests and helpers beside or above it, that assert, perhaps through others."""
    beside = [one for one in modules(TESTS) if one.path.parent in {module.path.parent, *module.path.parents}]
    near = [module, *(one for one in beside if not one.path.name.startswith("test_"))]
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
