"""What the laws read: the package as syntax trees, the texts as fenced blocks, commands and links."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from burnish.cli.main import command_parser
from burnish.config import Loaded, load

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "burnish"
OUR_MODULE = re.compile(r"burnish(\.\w+)+(:\w+)?")


@dataclass(frozen=True)
class Module:
    """One file of the package (or of the tests) and its syntax tree."""

    path: Path
    tree: ast.Module

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def name(self) -> str:
        """Its dotted name; a package goes by its folder."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def package(self) -> str:
        """The package that it is in: a folder of burnish, or the name of a file beside them."""
        parts = self.path.relative_to(PACKAGE).with_suffix("").parts
        return parts[0]

    def imports(self) -> Iterator[tuple[str, int]]:
        """(dotted module, line) of every import, wherever it stands; `from a import b` is a.b.

        Text counts too: `import_module("burnish.a")`, and the "burnish.a:name" of a lazy row.
        """
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and OUR_MODULE.fullmatch(node.value):
                yield node.value.partition(":")[0], node.lineno


@cache
def modules(folder: Path = PACKAGE) -> tuple[Module, ...]:
    """Every Python file of a folder."""
    return tuple(Module(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(folder.rglob("*.py")))


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or an attribute; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def python(code: str) -> subprocess.CompletedProcess:
    """Run code in a fresh interpreter, which has imported nothing yet."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


@dataclass(frozen=True)
class Imported:
    """What happened when every module of the package was imported, and the tables that then stood there."""

    printed: str
    begun: list[str]  # threads and processes
    tables: dict[str, dict]  # module.VARIABLE -> key, names
    api: dict[str, bool]  # name in burnish.__all__ -> whether it can then be called


_IMPORT_ALL = """
import importlib, json, os, sys, tempfile
import torch, transformers  # what they do when they are imported is theirs
begun = []
watched = ("subprocess.Popen", "os.fork", "os.posix_spawn", "_thread.start_new_thread")
sys.addaudithook(lambda event, args: event in watched and begun.append(event))
said = tempfile.TemporaryFile()
real = os.dup(1)
os.dup2(said.fileno(), 1), os.dup2(said.fileno(), 2)
modules = [importlib.import_module(name) for name in {names!r}]
sys.stdout.flush(), sys.stderr.flush()
os.dup2(real, 1)
from burnish.registry import Registry
tables = {{
    f"{{module.__name__}}.{{name}}": {{"key": value.key, "names": value.names()}}
    for module in modules for name, value in vars(module).items() if isinstance(value, Registry)
}}
said.seek(0)
import burnish
api = {{name: callable(getattr(burnish, name)) for name in burnish.__all__}}
print(json.dumps({{"printed": said.read().decode(), "begun": begun, "tables": tables, "api": api}}))
"""


@cache
def imported() -> Imported:
    """Import everything, once, in a fresh interpreter."""
    names = [module.name for module in modules() if module.path.name != "__main__.py"]
    return Imported(**json.loads(python(_IMPORT_ALL.format(names=names)).stdout))


@cache
def tracked_files() -> tuple[Path, ...]:
    """What a clone holds: every file that .gitignore does not name. (A copy without git has the same.)"""
    ignored = [".git", *(line.strip().rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines())]
    return tuple(_files_below(ROOT, [pattern for pattern in ignored if pattern and not pattern.startswith("#")]))


def _files_below(folder: Path, ignored: list[str]) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in ignored):
            continue
        if path.is_dir():
            yield from _files_below(path, ignored)
        else:
            yield path


def pages() -> list[Path]:
    """Markdown pages for people: the README in both languages, the other top-level pages, and docs/."""
    top = ("README.md", "README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md")
    return [*(ROOT / name for name in top), *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    found, opened = [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.fullmatch(r"```(\w*)\s*", line)
        if fence is None:
            if opened is not None:
                opened[2].append(line)
        elif opened is None:
            opened = (number, fence.group(1), [])
        else:
            found.append(Block(page, opened[0], opened[1], "\n".join(opened[2])))
            opened = None
    assert opened is None, f"{page.name}:{opened[0]}: a fenced block is never closed"
    return tuple(found)


def commands(text: str) -> list[list[str]]:
    """The commands of a shell text as words: comments, prompts, assignments of lines and "$@" left out."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        words = [word for word in words if word != "$@"]
        if words:
            found.append(words)
    return found


def links(page: Path) -> Iterator[str]:
    """Targets of the links and pictures of a page, fenced blocks left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text))


def resolve(words: list[str], given: tuple[str, ...] | list[str] = ()) -> Loaded:
    """Read and check what a `burnish train` command asks for; its files need not exist."""
    args = command_parser("train").parse_args(words[2:])
    return load(
        args.overrides,
        config_path=None if args.config_path is None else str(ROOT / args.config_path),
        config_name=args.config_name,
        given=given,
    )


def python_trainings(text: str) -> list[list[str]]:
    """Every `burnish.train([...], ...)` of a Python text as the words of the command that asks for the same."""
    found = []
    for call in calls(ast.parse(text)):
        if dotted(call.func) == "burnish.train" and call.args and isinstance(call.args[0], ast.List):
            files = {word.arg: word.value for word in call.keywords if word.arg in {"config_path", "config_name"}}
            options = [part for name, value in files.items() for part in (f"--{name.replace('_', '-')}", _text(value))]
            found.append(["burnish", "train", *options, *map(_text, call.args[0].elts)])
    return found


def _text(item: ast.expr) -> str:
    """A string as it stands there; what an f-string fills in counts as `value`."""
    if isinstance(item, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "value" for part in item.values)
    assert isinstance(item, ast.Constant) and isinstance(item.value, str), ast.unparse(item)
    return item.value
