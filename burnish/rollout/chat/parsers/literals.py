"""Literals of formats that are not JSON: read by hand, with a limit on nesting, and never evaluated."""

from __future__ import annotations

import math
import re
from typing import Any

from burnish.rollout.chat.tool_calls import MAX_NESTING, InvalidCall, skip_space

NUMBER = re.compile(r"[+-]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,4})?(?![\w.])", re.ASCII)
WORD = re.compile(r"[A-Za-z_][\w-]{0,255}+", re.ASCII)
CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
CLOSING = {"[": "]", "(": ")", "{": "}"}


class LiteralReader:
    """Reads values from a position on. Subclasses say what strings and keys look like."""

    quotes: tuple[str, ...] = ()  # what a string starts with

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position

    def string(self, quote: str) -> str:
        raise NotImplementedError

    def key(self) -> str:
        """The key of a mapping's entry."""
        self.skip()
        quote = self._quote()
        if quote is None:
            raise InvalidCall(f"expected a key at {self._here()}")
        return self.string(quote)

    def value(self, depth: int = 0) -> Any:
        if depth > MAX_NESTING:
            raise InvalidCall(f"nested more than {MAX_NESTING} levels deep")
        self.skip()
        quote = self._quote()
        if quote is not None:
            return self.string(quote)
        opening = self.text[self.position : self.position + 1]
        if opening == "{":
            return self.mapping(depth)
        if opening in CLOSING:
            return self.sequence(CLOSING[opening], depth)
        return self.number_or_constant()

    def number_or_constant(self) -> Any:
        match = NUMBER.match(self.text, self.position) or WORD.match(self.text, self.position)
        word = "" if match is None else match[0]
        self.position += len(word)
        if word in CONSTANTS:
            return CONSTANTS[word]
        if match is None or match.re is WORD:
            raise InvalidCall(f"expected a value at {self._here(len(word))}")
        number = float(word) if set(word) & set(".eE") else int(word)
        if not math.isfinite(number):
            raise InvalidCall(f"{word[:20]} is too large")
        return number

    def sequence(self, closing: str, depth: int) -> list[Any]:
        self.position += 1
        values: list[Any] = []
        while not self.accept(closing):
            values.append(self.value(depth + 1))
            if not self.accept(","):
                self.expect(closing)
                break
        return values

    def mapping(self, depth: int) -> dict[str, Any]:
        self.position += 1
        values: dict[str, Any] = {}
        while not self.accept("}"):
            key = self.key()
            if key in values:
                raise InvalidCall("a key appears twice")
            self.expect(":")
            values[key] = self.value(depth + 1)
            if not self.accept(","):
                self.expect("}")
                break
        return values

    def word(self) -> str:
        """A name."""
        self.skip()
        word = WORD.match(self.text, self.position)
        if word is None:
            raise InvalidCall(f"expected a name at {self._here()}")
        self.position = word.end()
        return word[0]

    def skip(self) -> None:
        self.position = skip_space(self.text, self.position)

    def accept(self, mark: str) -> bool:
        self.skip()
        if not self.text.startswith(mark, self.position):
            return False
        self.position += len(mark)
        return True

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise InvalidCall(f"expected {mark} at {self._here()}")

    def _quote(self) -> str | None:
        return next((quote for quote in self.quotes if self.text.startswith(quote, self.position)), None)

    def _here(self, back: int = 0) -> str:
        start = self.position - back
        return repr(self.text[start : start + 20])


ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"', "\n": "", "0": "\0"}
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
STRINGS = {quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\.)*+){quote}", re.DOTALL) for quote in ("'", '"')}


class PythonReader(LiteralReader):
    """Literals of Python, and JSON's constants."""

    quotes = tuple(STRINGS)

    def string(self, quote: str) -> str:
        found = STRINGS[quote].match(self.text, self.position)
        if found is None:
            raise InvalidCall("a string is not closed")
        self.position = found.end()
        return ESCAPE.sub(_character, found[1]) if "\\" in found[1] else found[1]


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code is None:
        return ESCAPES.get(escape[4], escape[0])  # Python keeps an unknown escape as it is
    number = int(code, 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise InvalidCall("a string has an escape that is no character")
    return chr(number)
