"""How the source is written: sizes, names, no printing, no evaluated text, no trace of the machine it was made on."""

from __future__ import annotations

import ast
import re

import pytest

from burnish.config.jobs import JOBS
from burnish.config.tree import tree

from .source import PACKAGE, ROOT, calls, dotted, modules, tracked_files

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 80
PRINTING_PACKAGES = {"cli", "log"}
EMPTY_NAMES = re.compile(r"(^|_)(utils?|misc|helpers?|common|v\d+)($|_)")
# Paths that exist on this or that machine only. What verl's own defaults are is a fact about verl.
VERL_DEFAULT = re.compile(r"verl=\"|verl's default|verl 默认值")
MACHINE = [
    re.compile(pattern)
    for pattern in (
        r"(?<![\w.~-])/(?:work|home|Users|root|mnt|data0?|opt/conda)/[\w.]",
        r"(?<![\w.~-])/tmp/\w",
        r"[A-Z]:\\\\Users",
    )
]
TEXT_ENDINGS = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".txt", ".json", ".jsonl", ""}


def test_files_are_short():
    lines = {module.where: len(module.path.read_text(encoding="utf-8").splitlines()) for module in modules()}
    assert len(lines) > 100
    # A section of the config is as long as its keys are many, and the Chinese catalogue as all of them.
    held = {where: count for where, count in lines.items() if where not in sections() and "config/zh" not in where}
    assert {where: count for where, count in held.items() if count > MAX_FILE_LINES} == {}


def sections() -> set[str]:
    """Files of the config that hold nothing but keys."""
    owners = {leaf.owner.__module__ for job in JOBS for leaf in tree(job).leaves.values()}
    return {f"{owner.replace('.', '/')}.py" for owner in owners}


def test_functions_fit_on_a_screen():
    long = {
        f"{module.where}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(long) > 300
    assert {name: lines for name, lines in long.items() if lines > MAX_FUNCTION_LINES} == {}


def test_only_the_command_line_and_the_log_print():
    printing = [
        f"{module.where}:{call.lineno}"
        for module in modules()
        if module.package not in PRINTING_PACKAGES
        for call in calls(module.tree)
        if dotted(call.func) == "print"
    ]
    assert not printing, printing


# Standard output and standard error are escaped in the processes of these, or read by another process of ours.
RAW_OUTPUT = {
    *("burnish/escape.py", "burnish/config/keys_doc.py", "burnish/dialects/openrlhf/flag_reference.py"),
    *("burnish/isolation/launcher.py", "burnish/isolation/program.py", "burnish/isolation/weak.py"),
    *("burnish/reward/worker.py", "burnish/reward/sandbox/python_call.py"),
    "burnish/rollout/tools/builtin/mcp_relay.py",  # its streams are pipes of the client
}
RAW_DESCRIPTORS = {"burnish/loop/watchdog.py", "burnish/log/console.py"}  # signals and hangs: the streams may be locked


def test_what_is_printed_is_escaped():
    """Text of models, rewards and files reaches a terminal through the console or the streams of `burnish.escape`."""
    raw = [
        f"{module.where}:{line}"
        for module in modules()
        for name, line in module.imports()
        if name in ("rich.console.Console", "rich.print", "rich.get_console")
        and module.where != "burnish/log/console.py"
    ]
    for module in modules():
        allowed = module.package in PRINTING_PACKAGES or module.where in RAW_OUTPUT
        streams = [node for node in ast.walk(module.tree) if dotted(node) in ("sys.stdout", "sys.stderr")]
        raw += [f"{module.where}:{node.lineno}" for node in streams if not allowed]
        raw += [
            f"{module.where}:{call.lineno}"
            for call in calls(module.tree)
            if dotted(call.func) == "os.write" and getattr(call.args[0], "value", None) in (1, 2)
            if module.where not in RAW_DESCRIPTORS
        ]
        raw += [f"{module.where}: sys.__stdout__" for node in ast.walk(module.tree) if "sys.__std" in dotted(node)]
    assert not raw, raw


COMPILES = "burnish/isolation/spawn.py"  # compiles modules of Burnish once, for launchers that start without imports


def test_no_text_is_evaluated():
    evaluated = [
        f"{module.where}:{call.lineno} {dotted(call.func)}"
        for module in modules()
        if module.where != COMPILES
        for call in calls(module.tree)
        if dotted(call.func) in {"eval", "exec", "compile", "builtins.eval", "builtins.exec", "os.system"}
    ]
    assert not evaluated, evaluated


def test_no_shell_runs_a_text():
    shells = [
        f"{module.where}:{call.lineno}"
        for module in modules()
        for call in calls(module.tree)
        for word in call.keywords
        if word.arg == "shell" and not (isinstance(word.value, ast.Constant) and word.value.value is False)
    ]
    assert not shells, shells


def test_errors_are_not_swallowed():
    """`except: pass` hides what went wrong; `except SomeError: pass` needs a reason beside it."""
    hidden = []
    for module in modules():
        lines = module.path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ExceptHandler) or not all(isinstance(item, ast.Pass) for item in node.body):
                continue
            said = any("#" in line for line in lines[node.lineno - 1 : node.end_lineno])
            if node.type is None or dotted(node.type) in {"Exception", "BaseException"} or not said:
                hidden.append(f"{module.where}:{node.lineno}")
    assert not hidden, hidden


@pytest.mark.parametrize("folder", ["burnish", "tests", "bench", "examples"])
def test_files_are_named_for_what_they_hold(folder):
    named = [path.relative_to(ROOT) for path in tracked_files() if path.relative_to(ROOT).parts[0] == folder]
    # Stand-ins have the module names of the system that they stand in for.
    named = [path for path in named if "stand_ins" not in path.parts]
    empty = [str(path) for path in named for part in path.with_suffix("").parts if EMPTY_NAMES.search(part)]
    assert not empty, empty


def test_modules_say_what_they_hold():
    silent = [m.where for m in modules() if m.tree.body and ast.get_docstring(m.tree) is None]
    assert not silent, silent


def test_modules_postpone_annotations():
    """So that an import that only hints need can stand under TYPE_CHECKING."""
    without = [
        module.where
        for module in modules()
        if module.path.name != "__init__.py"
        and ("__future__.annotations") not in {name for name, _ in module.imports()}
    ]
    assert not without, without


def test_nothing_is_left_for_later():
    marks = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
    left = [
        f"{module.where}:{number}"
        for module in modules()
        for number, line in enumerate(module.path.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert not left, left


def test_nothing_names_a_machine():
    named = []
    for path in tracked_files():
        if path.suffix not in TEXT_ENDINGS or path.name == "LICENSE":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if any(pattern.search(line) for pattern in MACHINE) and not VERL_DEFAULT.search(line):
                named.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not named, "\n".join(named)


def test_the_package_carries_no_data():
    """Everything in burnish/ is source: what a run needs beyond it is made or given."""
    source = {".py", ".c", ".h", ".typed"}
    page = {".html", ".css", ".js", ".svg"}  # of the viewer
    odd = [
        path
        for path in tracked_files()
        if PACKAGE in path.parents and path.suffix not in (source | page if path.parent.name == "static" else source)
    ]
    assert not odd, odd
