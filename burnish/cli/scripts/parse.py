"""parse_script: lists the commands of a simple shell script without running it, for systems without namespaces.

Supports assignments, export, quotes, $name, ${name:-default}, arguments and here-documents. Scripts with anything else
(loops, conditions, functions, arrays, $(...) in a command) are refused, because the result would be a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from burnish.cli.scripts.record import RecordedCommand, Recording
from burnish.errors import UserError

_CONTROL = ("if", "for", "while", "until", "case", "select", "function", "{", "(", "[[", "((", "eval", "trap")
_IGNORED = ("set", "shopt", "echo", "printf", "ulimit", "wait", "exit", "cd", "pwd", "umask", "true", ":", "hash")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_HEREDOC = re.compile(r"<<(-?)\s*(['\"]?)(\w+)\2")
_REDIRECTION = re.compile(r"\d*(?:>>?|<)&?\d*|&>>?|&\d+")
_PARAMETER = re.compile(r"\{([A-Za-z_]\w*|\d+|[@*#])(?::?-([^{}]*))?\}|([A-Za-z_]\w*|\d|[@*#])")
_EXPANSION = re.compile(rf"\$(?:{_PARAMETER.pattern})")
_TERMINATORS = (";", "&", "|", "\n")
_UNKNOWN = "\0"  # positionholder for the output of a command substitution


@dataclass
class _Interpreter:
    """State of the simulated shell: its variables, and the commands recorded so far."""

    script: Path
    folder: Path
    args: Sequence[str]
    environment: Mapping[str, str]
    variables: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    commands: list[RecordedCommand] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def value(self, name: str, default: str | None) -> str:
        if name in "@*":
            return " ".join(self.args)
        if name == "#":
            return str(len(self.args))
        if name.isdigit():
            number = int(name)
            value = str(self.script) if number == 0 else self.args[number - 1] if number <= len(self.args) else ""
        else:
            value = self.variables.get(name, self.environment.get(name, ""))
        return value or (self.expand(default) if default is not None else "")

    def expand(self, text: str) -> str:
        """Expand variables. A command substitution becomes _UNKNOWN."""
        text = re.sub(r"\$\(.*?\)|`[^`]*`", _UNKNOWN, text, flags=re.DOTALL)

        def replace(match: re.Match[str]) -> str:
            name, default, bare = match.groups()
            return self.value(name or bare, default)

        if "${" in _EXPANSION.sub("", text):
            raise _unsupported(self.script, "an array or an unsupported `${...}`")
        return _EXPANSION.sub(replace, text)

    def run(self, words: list[str], here: str | None) -> None:
        """Apply one simple command: assignments, a builtin, or a program, which is recorded."""
        assignments: dict[str, str] = {}
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            if match[2].startswith("("):
                raise _unsupported(self.script, "an array")
            assignments[match[1]] = match[2]
            words = words[1:]
        if not words:
            self.variables |= assignments
            return
        name = words[0]
        if name in _CONTROL or name.endswith("()"):
            raise _unsupported(self.script, f"`{name}`")
        if name == "export":
            pairs = [match for word in words[1:] if (match := _ASSIGNMENT.fullmatch(word))]
            self.variables |= {match[1]: match[2] for match in pairs}
            self.exported |= {word.partition("=")[0] for word in words[1:]}
        elif name == "read" and here is not None:
            self.variables[words[-1]] = here
        elif name in ("source", "."):
            self.notes.append(f"{' '.join(words)}: not read")
        elif name not in _IGNORED:
            if any(_UNKNOWN in word for word in words):
                raise _unsupported(self.script, f"`$(...)` in the command of {name}")
            env = {name: self.variables[name] for name in sorted(self.exported) if name in self.variables}
            self.commands.append(RecordedCommand(tuple(words), env | assignments, str(self.folder)))


def parse_script(
    text: str, script: Path, args: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Recording:
    """The commands of a simple script with this environment. UserError if it needs a real shell."""
    interpreter = _Interpreter(script, folder, args, environment)
    for command, here in _commands(text.replace("\\\n", " "), interpreter):
        interpreter.run(command, here)
    notes = ["the script was parsed, not run: this system has no process isolation", *interpreter.notes]
    return Recording(interpreter.commands, notes)


def _unsupported(script: Path, what: str) -> UserError:
    return UserError(
        f"{script} contains {what}, which needs a real shell, and this system cannot isolate one",
        hint="burnish convert -- COMMAND, with the command that the script starts",
    )


def _commands(text: str, interpreter: _Interpreter) -> Iterator[tuple[list[str], str | None]]:
    """Split into simple commands, each with its here-document."""
    position = 0
    while position < len(text):
        words, position = _words(text, position, interpreter)
        here = None
        heredoc = next((match for word in words if (match := _HEREDOC.fullmatch(word))), None)
        if heredoc is not None:
            words = [word for word in words if not _HEREDOC.fullmatch(word)]
            end = re.compile(rf"^{chr(9)}*{heredoc[3]}$", re.MULTILINE).search(text, position)
            body = text[position : end.start() if end else len(text)]
            position = end.end() + 1 if end else len(text)
            here = body if heredoc[2] else interpreter.expand(body)
        if words:
            yield words, here


def _words(text: str, position: int, interpreter: _Interpreter) -> tuple[list[str], int]:
    """The words of one command, and the position of the next."""
    words: list[str] = []
    skip = False  # the next word is the target of a redirection
    while position < len(text):
        letter = text[position]
        if letter in " \t":
            position += 1
        elif letter == "#":
            position = _line_end(text, position)
        elif (heredoc := _HEREDOC.match(text, position)) is not None:
            words.append(heredoc[0])
            position = heredoc.end()
        elif (redirection := _REDIRECTION.match(text, position)) is not None:
            skip = redirection[0][-1] in "<>"
            position = redirection.end()
        elif letter in _TERMINATORS:
            while position < len(text) and text[position] in "&|;":
                position += 1
            return words, position + (letter == "\n")
        else:
            new_words, position = _word(text, position, interpreter)
            words += [] if skip else new_words
            skip = False
    return words, position


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _word(text: str, position: int, interpreter: _Interpreter) -> tuple[list[str], int]:
    """One word, or several if an unquoted variable expands to several."""
    parts, bare = "", ""
    is_assignment = _ASSIGNMENT.match(text, position) is not None
    fields: list[str] = []
    quoted = False

    def flush() -> None:
        """Expand and split the unquoted text so far."""
        nonlocal parts, bare
        expanded = interpreter.expand(bare)
        pieces = [expanded] if is_assignment else re.split(r"\s+", expanded)
        parts += pieces[0]
        for piece in pieces[1:]:
            fields.append(parts)
            parts = piece
        bare = ""

    while position < len(text) and text[position] not in " \t" + "".join(_TERMINATORS):
        letter = text[position]
        if letter == "'":
            end = _closing(text, position, "'")
            flush()
            parts, position, quoted = parts + text[position + 1 : end], end + 1, True
        elif letter == '"':
            end = _closing(text, position, '"')
            flush()
            inner = re.sub(r'\\(["\\`])', r"\1", interpreter.expand(text[position + 1 : end]))
            parts, position, quoted = parts + inner, end + 1, True
        elif letter == "\\":
            flush()
            parts, position = parts + text[position + 1 : position + 2], position + 2
        elif text.startswith("$(", position):
            end = _closing(text, position + 1, ")")
            bare, position = bare + _UNKNOWN, end + 1
        else:
            bare, position = bare + letter, position + 1
    flush()
    fields.append(parts)
    return [word for word in fields if word or quoted], position


def _closing(text: str, position: int, mark: str) -> int:
    """The position of the closing quote or bracket. A backslash escapes it, except in single quotes."""
    depth = 0
    for index in range(position + 1, len(text)):
        if text[index] == "\\" and mark != "'":
            continue
        if text[index] == "(" and mark == ")":
            depth += 1
        elif text[index] == mark and (mark == "'" or text[index - 1] != "\\"):
            if depth == 0:
                return index
            depth -= 1
    return len(text)
