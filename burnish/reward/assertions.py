"""Check statements about a program without believing the program.

This file is the beginning of a program in the sandbox (see wrapper.py), so it imports the standard library only. The
model's code runs in a child process; the statements run in this one, where its functions are stand-ins that send a call
to the child. Results come back as plain data: numbers, texts and containers of them, as exactly these types. Any other
object stays in the child. Its methods can be called, but it has no operators here, so that no object can claim to be
equal to, greater than or part of everything.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import signal
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

_PR_SET_DUMPABLE = 4
_CONTAINERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque
}  # fmt: skip
_MUTABLE = (list, dict, set, bytearray, deque)
# Values of the standard library that cross as text: module and class -> method to write it, method to read it.
_AS_TEXT = {
    ("decimal", "Decimal"): ("__str__", None),
    ("fractions", "Fraction"): ("__str__", None),
    ("datetime", "datetime"): ("isoformat", "fromisoformat"),
    ("datetime", "date"): ("isoformat", "fromisoformat"),
    ("datetime", "time"): ("isoformat", "fromisoformat"),
}
_MAX_PLAIN_INT = 2**53
UNDEFINED = object()


class ProgramEndedError(BaseException):
    """The child exited or sent nonsense. A BaseException: statements may catch every Exception."""


class Channel:
    """Two pipes to the other process. The child, `is_program`, answers; it may call functions that it was given."""

    def __init__(self, reader: int, writer: int, *, is_program: bool) -> None:
        self._reader = os.fdopen(reader, "r", encoding="ascii")
        self._writer = os.fdopen(writer, "w", encoding="ascii")
        self.is_program = is_program
        self.scope: dict[str, Any] = {}  # the program's globals, in the child
        self._kept: list[Any] = []  # objects of this process that the other one knows by their number
        self._stand_ins: dict[str, type[Exception]] = {}  # for exceptions that the program defines

    def ask(self, kind: str, *values: Any) -> Any:
        """Send a request and return the reply; answer requests of the other process meanwhile."""
        self._send([kind, *map(self.encode, values)])
        while True:
            kind, *content = self._receive()
            if kind == "result":
                return self.decode(content[0])
            if kind == "raised":
                raise self._exception(*content)
            self._reply(kind, content)

    def serve(self) -> None:
        """Answer requests until the other process ends."""
        while True:
            kind, *content = self._receive()
            self._reply(kind, content)

    def call(self, target: Remote, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Call an object of the other process. Arguments that it changes in place are changed here too."""
        result, changed = self.ask("call", target, list(arguments), keywords)
        for argument, content in zip([*arguments, *keywords.values()], changed, strict=False):
            if isinstance(argument, _MUTABLE):
                _replace_content(argument, content)
        return result

    def _reply(self, kind: str, content: list[Any]) -> None:
        try:
            values = [self.decode(item) for item in content]
            if kind == "call":
                target, arguments, keywords = values
                result = target(*arguments, **keywords)
                reply = self.encode((result, [*arguments, *keywords.values()]))
            elif self.is_program:
                reply = self._answer(kind, *values)
            else:
                raise TypeError(f"{kind}: only functions that were passed to the program can be called")
        except Exception as error:
            self._send(["raised", _class_names(type(error)), self.encode(error.args)])
        else:
            self._send(["result", reply])

    def _answer(self, kind: str, target: Any, *values: Any) -> Any:
        """Do with an object of the program what its stand-in was told to do."""
        if kind == "name":
            value = self.scope.get(target, UNDEFINED)
            if isinstance(value, type) and issubclass(value, BaseException):
                return ["exception", _class_names(value)]
            return ["undefined"] if value is UNDEFINED else self.encode(value)
        actions: dict[str, Callable[..., Any]] = {
            "attribute": getattr, "set attribute": setattr, "length": len, "text": str, "repr": repr, "truth": bool,
            "iterate": iter, "next": next, "is instance": isinstance,
            "item": lambda one, key: one[key], "set item": lambda one, key, value: one.__setitem__(key, value),
        }  # fmt: skip
        return self.encode(actions[kind](target, *values))

    def _send(self, message: list[Any]) -> None:
        try:
            self._writer.write(json.dumps(message) + "\n")
            self._writer.flush()
        except OSError as error:
            raise ProgramEndedError from error

    def _receive(self) -> list[Any]:
        try:
            message = json.loads(self._reader.readline())
            if not isinstance(message, list) or not message or not isinstance(message[0], str):
                raise ValueError("not a message")
        except (ValueError, RecursionError) as error:
            raise ProgramEndedError from error
        return message

    def _exception(self, names: list[str], arguments: Any) -> Exception:
        cls = self.exception_class(names)
        return cls.__new__(cls, *self.decode(arguments))  # not its __init__, which may want other arguments

    def exception_class(self, names: list[str]) -> type[Exception]:
        """The built-in exception of the first name, or a stand-in that is derived as the program's exception is."""
        chosen: type[Exception] = Exception
        for name in reversed(names):
            known = getattr(builtins, name, None)
            if isinstance(known, type) and issubclass(known, Exception):
                chosen = known
            elif known is None:
                chosen = self._stand_ins.setdefault(name, type(name, (chosen,), {}))
        return chosen

    def encode(self, value: Any) -> Any:
        """A value as JSON: exactly what `decode` builds again, or the number of an object that stays here."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            return int(value) if abs(value) < _MAX_PLAIN_INT else ["int", hex(value)]
        if isinstance(value, float):
            return float(value)
        for name, kind in _CONTAINERS.items():
            if isinstance(value, kind):  # pyright: ignore[reportArgumentType]
                return [name, [self.encode(item) for item in value]]
        if isinstance(value, dict):
            return ["dict", [[self.encode(key), self.encode(item)] for key, item in value.items()]]
        if isinstance(value, bytes | bytearray):
            return ["bytes" if isinstance(value, bytes) else "bytearray", value.hex()]
        return self._encode_other(value)

    def _encode_other(self, value: Any) -> Any:
        if isinstance(value, complex):
            return ["complex", value.real, value.imag]
        if isinstance(value, range):
            return ["range", value.start, value.stop, value.step]
        kind = (type(value).__module__, type(value).__name__)
        if kind in _AS_TEXT:
            return ["text", *kind, getattr(value, _AS_TEXT[kind][0])()]
        if isinstance(value, Remote):
            return ["yours", value._number]
        if not self.is_program and getattr(builtins, getattr(value, "__name__", ""), None) is value:
            return ["built-in", value.__name__]
        if hasattr(value, "tolist"):  # numpy
            return self.encode(value.tolist())
        self._kept.append(value)
        return ["mine", len(self._kept) - 1]

    def decode(self, encoded: Any) -> Any:
        """The value of a JSON text."""
        if not isinstance(encoded, list):
            return encoded
        kind, *content = encoded
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](map(self.decode, content[0]))
        build: dict[str, Callable[..., Any]] = {
            "int": lambda text: int(text, 16),
            "dict": lambda pairs: {self.decode(key): self.decode(value) for key, value in pairs},
            "bytes": bytes.fromhex,
            "bytearray": bytearray.fromhex,
            "complex": complex,
            "range": range,
            "text": _from_text,
            "yours": self._kept.__getitem__,
            "mine": lambda number: Remote(self, number),
            # Only for the program, and only from it.
            **({"built-in": lambda name: getattr(builtins, name)} if self.is_program else {}),
            **({} if self.is_program else {"undefined": lambda: UNDEFINED, "exception": self.exception_class}),
        }
        return build[kind](*content)


class Remote:
    """An object of the other process. It is equal to itself only: the program's own comparisons are not asked."""

    def __init__(self, channel: Channel, number: int) -> None:
        object.__setattr__(self, "_channel", channel)
        object.__setattr__(self, "_number", int(number))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._channel.call(self, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        return self._channel.ask("attribute", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._channel.ask("set attribute", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._channel.ask("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._channel.ask("set item", self, key, value)

    def __contains__(self, item: Any) -> bool:
        raise TypeError("an object of the program is not asked what it contains: it could contain everything")

    def __len__(self) -> int:
        return self._channel.ask("length", self)

    def __str__(self) -> str:
        return self._channel.ask("text", self)

    def __repr__(self) -> str:
        return self._channel.ask("repr", self)

    def __bool__(self) -> bool:
        return self._channel.ask("truth", self) is True

    def __iter__(self) -> Any:
        return self._channel.ask("iterate", self)

    def __next__(self) -> Any:
        return self._channel.ask("next", self)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and self._channel.ask("is instance", instance, self) is True


def _class_names(cls: type) -> list[str]:
    return [base.__name__ for base in cls.__mro__[:-1]]


def _from_text(module: str, name: str, text: str) -> Any:
    reader = _AS_TEXT[module, name][1]
    cls = getattr(importlib.import_module(module), name)
    return cls(text) if reader is None else getattr(cls, reader)(text)


def _replace_content(container: Any, content: Any) -> None:
    """Give a container the content of another one of its type."""
    if type(container) is type(content) and container != content:
        container.clear()
        (container.update if isinstance(container, dict | set) else container.extend)(content)


def fork_program() -> Channel:
    """Fork. Returns the channel, in both processes.

    The child has neither the statements, which are read later, nor the streams of this process. The memory and the open
    files of this process are closed to others of the same user.
    """
    _forbid_inspection()
    request_reader, request_writer = os.pipe()
    reply_reader, reply_writer = os.pipe()
    if os.fork() != 0:
        os.close(request_reader)
        os.close(reply_writer)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return Channel(reply_reader, request_writer, is_program=False)
    os.close(request_writer)
    os.close(reply_reader)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    return Channel(request_reader, reply_writer, is_program=True)


def _forbid_inspection() -> None:
    if sys.platform.startswith("linux"):
        import ctypes

        if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
            raise OSError("prctl(PR_SET_DUMPABLE)")


def fill_scope(channel: Channel, scope: dict[str, Any], names: Iterable[str]) -> None:
    """Add stand-ins for those of the names that the program defines. Built-in names are never the program's."""
    module = types.ModuleType("solution")
    for name in names:
        if name not in scope and not hasattr(builtins, name):
            value = channel.ask("name", name)
            if value is not UNDEFINED:
                scope[name] = value
                setattr(module, name, value)
    sys.modules["solution"] = module


def run_tests(scope: dict[str, Any], before: set[str]) -> None:
    """Call the test functions and classes that statements have defined, as pytest would."""
    for name in [name for name in scope if name not in before]:
        value = scope[name]
        if name.startswith("test") and isinstance(value, types.FunctionType):
            value()
        elif isinstance(value, type):
            for method in [method for method in dir(value) if method.startswith("test")]:
                if hasattr(value, "debug"):  # unittest.TestCase
                    value(method).debug()
                else:
                    getattr(value(), method)()
