"""read_script: a plain shell script read without running it, for systems where no program can be isolated.

It knows assignments, export, quotes, $name, ${name:-default}, arguments and here-documents. A script with more than
that (loops, conditions, functions, arrays, $(...) in a command) is refused: a guess would be worse than a question.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from burnish.cli.recording import Recorded, Recording
from burnish.errors import UserError

_CONTROL = ("if", "for", "while", "until", "case", "select", "function", "{", "(", "[[", "((", "eval", "trap")
_IGNORED = ("set", "shopt", "echo", "printf", "ulimit", "wait", "exit", "cd", "pwd", "umask", "true", ":", "hash")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_HEREDOC = re.compile(r"<<(-?)\s*(['\"]?)(\w+)\2")
_REDIRECTION = re.compile(r"\d*(?:>>?|<)&?\d*|&>>?|&\d+")
_PARAMETER = re.compile(r"\{([A-Za-z_]\w*|\d+|[@*#])(?::?-([^{}]*))?\}|([A-Za-z_]\w*|\d|[@*#])")
_EXPANSION = re.compile(rf"\$(?:{_PARAMETER.pattern})")
_ENDS = (";", "&", "|", "\n")
_UNKNOWN = "\0"  # stands for what only a shell could tell


@dataclass
class _Reader:
    script: Path
    folder: Path
    args: Sequence[str]
    variables: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    commands: list[Recorded] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def value(self, name: str, default: str | None) -> str:
        if name in "@*":
            return " ".join(self.args)
        if name == "#":
            return str(len(self.args))
        if name.isdigit():
            number = int(name)
            found = str(self.script) if number == 0 else self.args[number - 1] if number <= len(self.args) else ""
        else:
            found = self.variables.get(name, os.environ.get(name, ""))
        return found or (self.expand(default) if default is not None else "")

    def expand(self, text: str) -> str:
        """Variables in a text; a command substitution becomes the unknown."""
        text = re.sub(r"\$\(.*?\)|`[^`]*`", _UNKNOWN, text, flags=re.DOTALL)

        def one(found: re.Match[str]) -> str:
            name, default, bare = found.groups()
            return self.value(name or bare, default)

        if "${" in _EXPANSION.sub("", text):
            raise _too_much(self.script, "an array or another `${...}`")
        return _EXPANSION.sub(one, text)

    def take(self, words: list[str], here: str | None) -> None:
        """One simple command: assignments, a builtin, or a program."""
        own: dict[str, str] = {}
        while words and (found := _ASSIGNMENT.fullmatch(words[0])):
            if found[2].startswith("("):
                raise _too_much(self.script, "an array")
            own[found[1]] = found[2]
            words = words[1:]
        if not words:
            self.variables |= own
            return
        name = words[0]
        if name in _CONTROL or name.endswith("()"):
            raise _too_much(self.script, f"`{name}`")
        if name == "export":
            pairs = [found for word in words[1:] if (found := _ASSIGNMENT.fullmatch(word))]
            self.variables |= {found[1]: found[2] for found in pairs}
            self.exported |= {word.partition("=")[0] for word in words[1:]}
        elif name == "read" and here is not None:
            self.variables[words[-1]] = here
        elif name in ("source", "."):
            self.notes.append(f"{' '.join(words)}: not read")
        elif name not in _IGNORED:
            if any(_UNKNOWN in word for word in words):
                raise _too_much(self.script, f"`$(...)` in the command of {name}")
            env = {one: self.variables[one] for one in sorted(self.exported) if one in self.variables}
            self.commands.append(Recorded(tuple(words), env | own, str(self.folder)))


def read_script(text: str, script: Path, args: Sequence[str], folder: Path) -> Recording:
    """The commands of a plain script; UserError for one that only a shell can follow."""
    reader = _Reader(script, folder, args)
    for command, here in _commands(text.replace("\\\n", " "), reader):
        reader.take(command, here)
    notes = ["the script was read, not followed: programs cannot be isolated here", *reader.notes]
    return Recording(reader.commands, notes)


def _too_much(script: Path, what: str) -> UserError:
    return UserError(
        f"{script} has {what}, which only a shell can follow, and on this system none can be kept from doing harm",
        hint="burnish convert -- COMMAND, with the command that the script starts",
    )


def _commands(text: str, reader: _Reader) -> Iterator[tuple[list[str], str | None]]:
    """Simple commands as words, each with the here-document that it reads."""
    place = 0
    while place < len(text):
        words, place = _words(text, place, reader)
        here = None
        found = next((match for word in words if (match := _HEREDOC.fullmatch(word))), None)
        if found is not None:
            words = [word for word in words if not _HEREDOC.fullmatch(word)]
            end = re.compile(rf"^{chr(9)}*{found[3]}$", re.MULTILINE).search(text, place)
            body = text[place : end.start() if end else len(text)]
            place = end.end() + 1 if end else len(text)
            here = body if found[2] else reader.expand(body)
        if words:
            yield words, here


def _words(text: str, place: int, reader: _Reader) -> tuple[list[str], int]:
    """The words up to the end of one command, and where the next begins."""
    words: list[str] = []
    skip = False  # the next word is where output goes
    while place < len(text):
        letter = text[place]
        if letter in " \t":
            place += 1
        elif letter == "#":
            place = _line_end(text, place)
        elif (heredoc := _HEREDOC.match(text, place)) is not None:
            words.append(heredoc[0])
            place = heredoc.end()
        elif (redirection := _REDIRECTION.match(text, place)) is not None:
            skip = redirection[0][-1] in "<>"
            place = redirection.end()
        elif letter in _ENDS:
            while place < len(text) and text[place] in "&|;":
                place += 1
            return words, place + (letter == "\n")
        else:
            found, place = _word(text, place, reader)
            words += [] if skip else found
            skip = False
    return words, place


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _word(text: str, place: int, reader: _Reader) -> tuple[list[str], int]:
    """One word, or several where an unquoted variable holds several."""
    parts, bare = "", ""
    is_assignment = _ASSIGNMENT.match(text, place) is not None
    fields: list[str] = []
    quoted = False

    def flush() -> None:
        """Split what was not quoted."""
        nonlocal parts, bare
        expanded = reader.expand(bare)
        pieces = [expanded] if is_assignment else re.split(r"\s+", expanded)
        parts += pieces[0]
        for piece in pieces[1:]:
            fields.append(parts)
            parts = piece
        bare = ""

    while place < len(text) and text[place] not in " \t" + "".join(_ENDS):
        letter = text[place]
        if letter == "'":
            end = _closing(text, place, "'")
            flush()
            parts, place, quoted = parts + text[place + 1 : end], end + 1, True
        elif letter == '"':
            end = _closing(text, place, '"')
            flush()
            inner = re.sub(r'\\(["\\`])', r"\1", reader.expand(text[place + 1 : end]))
            parts, place, quoted = parts + inner, end + 1, True
        elif letter == "\\":
            flush()
            parts, place = parts + text[place + 1 : place + 2], place + 2
        elif text.startswith("$(", place):
            end = _closing(text, place + 1, ")")
            bare, place = bare + _UNKNOWN, end + 1
        else:
            bare, place = bare + letter, place + 1
    flush()
    fields.append(parts)
    return [one for one in fields if one or quoted], place


def _closing(text: str, place: int, mark: str) -> int:
    """Where a quote or a bracket ends; a backslash before it keeps it open, but in single quotes."""
    depth = 0
    for at in range(place + 1, len(text)):
        if text[at] == "\\" and mark != "'":
            continue
        if text[at] == "(" and mark == ")":
            depth += 1
        elif text[at] == mark and (mark == "'" or text[at - 1] != "\\"):
            if depth == 0:
                return at
            depth -= 1
    return len(text)
