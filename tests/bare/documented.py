"""The commands of a page as a reader would type them, and what a comment says they need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..laws.source import ROOT, Block, blocks

# `# needs a GPU`, on the line of a command or above it, marks what does not run in a bare clone.
NEEDS = re.compile(r"#.*?\bneeds (.+?):?$")
FILE_NAME = re.compile(r"# (\w+\.py)")


@dataclass(frozen=True)
class Command:
    """A command of a page. `shown` is the output that the page shows below it."""

    where: str
    text: str
    needs: str = ""
    shown: str = ""

    def __str__(self) -> str:
        return f"{self.where} {' '.join(self.text.replace(chr(92), ' ').split())[:60]}"


def documented_commands(page: Path) -> list[Command]:
    """Commands of the shell and console blocks, Python blocks as commands, in the order of the page."""
    return [command for block in blocks(page) for command in commands_of(block)]


def commands_of(block: Block) -> list[Command]:
    where = f"{block.page.relative_to(ROOT) if block.page.is_absolute() else block.page}:{block.line}"
    if block.language in {"bash", "sh"}:
        return _shell(block.text.splitlines(), where)
    if block.language == "console":
        return _console(block.text.splitlines(), where)
    if block.language == "python":
        return [_python(block.text, where)]
    return []


def _shell(lines: list[str], where: str) -> list[Command]:
    found, needs, typed = [], "", []
    for line in lines:
        if not typed and (not line.strip() or line.startswith("#")):
            mark = NEEDS.search(line)
            needs = mark[1] if mark else needs
            continue
        typed.append(line)
        if line.endswith("\\"):
            continue
        mark = NEEDS.search(line)
        found.append(Command(where, "\n".join(typed), mark[1] if mark else needs))
        needs, typed = "", []
    return found


def _console(lines: list[str], where: str) -> list[Command]:
    """Lines behind `$ ` with those that continue them; the lines up to the next one are their output."""
    found: list[tuple[list[str], list[str]]] = []
    goes_on = False
    for line in lines:
        if line.startswith("$ "):
            found.append(([line.removeprefix("$ ")], []))
        else:
            found[-1][0 if goes_on else 1].append(line)
        goes_on = (goes_on or line.startswith("$ ")) and line.endswith("\\")
    return [Command(where, "\n".join(typed), shown=" ".join(shown)) for typed, shown in found]


def _python(text: str, where: str) -> Command:
    """A program, which is run, or a file for a later command if the first line names it."""
    first = text.partition("\n")[0]
    mark, name = NEEDS.search(first), FILE_NAME.fullmatch(first)
    write = f"cat > {name[1] if name else 'page.py'} <<'END'\n{text}\nEND"
    return Command(where, write if name else f"{write}\npython page.py", mark[1] if mark else "")
