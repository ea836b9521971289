"""Which commands of the pages count as runnable, and that those which are not say so."""

from __future__ import annotations

import re

import pytest

from ..laws.source import ROOT, Block
from .documented import Command, commands_of, documented_commands

PAGES = [ROOT / "README.md", ROOT / "docs" / "start.md"]
# What a comment may name: anything else is a command that should have been made to run.
LACKING = ("the Hugging Face Hub", "GPU", "a cluster", "your ")


def block(language: str, *lines: str) -> Block:
    return Block(ROOT / "page.md", 7, language, "\n".join(lines))


def test_a_comment_marks_the_command_beside_or_below_it():
    lines = [
        "make demo   # trains",
        "# needs a GPU:",
        "burnish train \\",
        "    a=b",
        "burnish run x  # the run; needs a GPU",
        "ls",
    ]
    found = commands_of(block("bash", *lines))
    assert [(command.text.split()[0], command.needs) for command in found] == [
        ("make", ""),
        ("burnish", "a GPU"),
        ("burnish", "a GPU"),
        ("ls", ""),
    ]
    assert found[1].text == "burnish train \\\n    a=b"


def test_a_console_block_is_commands_and_their_output():
    (command,) = commands_of(block("console", "$ burnish train \\", "    a=b", "a: no such key", "b"))
    assert command == Command("page.md:7", "burnish train \\\n    a=b", shown="a: no such key b")


def test_a_python_block_is_a_program_or_a_file():
    program, file, marked = (
        commands_of(block("python", *lines))[0]
        for lines in (["print(1)"], ["# my_reward.py", "x = 1"], ["# needs a GPU", "x = 1"])
    )
    assert program.text.endswith("python page.py") and file.text.startswith("cat > my_reward.py <<'END'\n")
    assert (program.needs, file.needs, marked.needs) == ("", "", "a GPU")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_cannot_run_in_a_bare_clone_say_what_they_need(page):
    commands = documented_commands(page)
    marked = [command for command in commands if command.needs]
    assert len(commands) - len(marked) >= 4
    assert [command for command in marked if not any(word in command.needs for word in LACKING)] == []
    with_hub_names = [one for one in commands if re.search(r"(Qwen|openai)/", one.text) and not one.shown]
    assert [str(command) for command in with_hub_names if not command.needs] == []
    placeholder = re.compile(r"^[^#]*\s\.\.\.(\s|$)")
    assert [str(command) for command in commands if placeholder.search(command.text) and not command.needs] == []
